// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// GPUs is the last stage before kubelet: it checks that the GPUs work. Without it kubelet would
// start although the GPUs do not answer: the stages before can only wait for a driver that does not
// answer, and a node whose kubelet is held back has no startup taint.
func GPUs() converge.Stage {
	return converge.Stage{
		Name:  "gpus",
		About: "verifies that the GPUs work, before kubelet starts",
		Wants: gpusWants,
		Needs: func(s spec.Spec) facts.Needs {
			return readyNeeds(s, facts.Needs{Driver: true, Files: method.Files(s)})
		},
		Whole: true,
		Holds: true, // the next stages may start kubelet
	}
}

func gpusWants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !ReportsToCluster(s) || !hasGPU(f) || !f.Live {
		return nil, nil
	}
	holdsKubelet := gated(s, f) || method.SetsUpKubelet(s, f)
	if s.Join.Gate == "open" || !holdsKubelet {
		return nil, nil
	}

	var list []converge.Want
	for _, c := range gpuChecks(s, f) {
		look := func(ctx context.Context, v host.View) (string, error) {
			problem, err := c.look(ctx, v)
			if problem != "" {
				problem = "cannot let kubelet start: " + problem
			}
			return problem, err
		}

		const why = "kubelet is held back until the GPUs work"
		w := things.Check("before kubelet: "+c.what, look, why, c.try...)
		w.Section = nodeSection(s)
		list = append(list, w)
	}

	return list, nil
}

// waitForGPUs returns a function that returns the wait of the first check that has to wait. A
// failed check has already stopped the apply; a wait stops only the steps that need the GPUs.
func waitForGPUs(s spec.Spec, f facts.Facts) func(context.Context, host.View) error {
	var once sync.Once
	var wait error
	return func(ctx context.Context, v host.View) error {
		once.Do(func() {
			for _, c := range gpuChecks(s, f) {
				_, wait = c.look(ctx, v)
				if wait != nil {
					return
				}
			}
		})
		return wait
	}
}
