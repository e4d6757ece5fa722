// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// CUDA is host.View's: where the driver answers CUDA starts, and counts what there is of the
// devices that it was shown. No answer is remembered, since none costs anything.
func (n *Node) CUDA(ctx context.Context, _ string, shown ...[]string) (answers []host.CUDA, err error) {
	if !n.Live() {
		return nil, host.FirstBoot
	}
	err = n.look(func() error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		for _, list := range shown {
			answer := n.startCUDA(list)
			answer.Shown = list
			answers = append(answers, answer)
		}

		return nil
	})
	return answers, err
}

// CUDAAnswers lets CUDA answer as a test says.
func (n *Node) CUDAAnswers(answer func(shown []string) host.CUDA) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuda = answer
}

// startCUDA starts CUDA in one process; the node is locked.
func (n *Node) startCUDA(shown []string) host.CUDA {
	if n.cuda != nil {
		return n.cuda(shown)
	}
	if _, err := n.answers(); err != nil {
		return host.CUDA{NoLibrary: "libcuda.so.1: cannot open shared object file: No such file or directory"}
	}
	c := host.CUDA{Library: "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}
	for _, id := range shown {
		if !n.device(id) {
			break
		}
		c.Devices++
	}

	if c.Devices == 0 {
		c.Code = host.CUDANoDevice
		c.Name = "CUDA_ERROR_NO_DEVICE"
	}
	return c
}

// device reports whether a GPU or a MIG device has a name.
func (n *Node) device(id string) bool {
	hasID := func(c host.ComputeInstance) bool { return c.UUID == id }
	return slices.ContainsFunc(n.driver.gpus, func(g *host.GPU) bool {
		whole := g.UUID == id && !g.Mode
		part := slices.ContainsFunc(g.Instances, func(in host.Instance) bool {
			return slices.ContainsFunc(in.Compute, hasID)
		})
		return g.Lost == "" && (whole || part)
	})
}
