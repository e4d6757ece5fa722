// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMPSNotReady: the device plugin offers nothing before the control daemon of MPS answers it. The
// cause is named: none runs, one runs that is not the plugin's, or NVIDIA's program has started none.
// Reports: NVIDIA/k8s-device-plugin issues 634, 712 (none), 762 (by hand), 1614 (started none).
func TestMPSNotReady(t *testing.T) {
	process := func(pid, comm string, environ ...string) string {
		return "-- proc/" + pid + "/comm --\n" + comm + "\n-- proc/" + pid + "/status --\nUid:\t0\t0\n" +
			"-- proc/" + pid + "/environ --\n" + strings.Join(environ, "\x00") + "\n"
	}

	plugin := process("4711", "nvidia-device-p", "MIG_STRATEGY=none")
	manager := process("4712", "mps-control-dae")
	const label = "nvidia.com/mps.capable"

	for name, c := range map[string]struct {
		machine string
		labels  map[string]string
		says    string // "" is another cause
		try     string
	}{
		"none":         {plugin, map[string]string{label: "true"}, "no MPS control daemon runs here", "mps-control-daemon"},
		"no label":     {plugin, nil, "no MPS control daemon runs here", "kubectl label node gpu-1 " + label + "=true"},
		"by hand":      {plugin + process("4713", "nvidia-cuda-mps", "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"), nil, "process 4713 is another one", label},
		"no server":    {plugin + manager, nil, "NVIDIA's program for it (process 4712) has started none", podsOn("gpu-1")},
		"all runs":     {plugin + manager + process("4714", "nvidia-cuda-mps", "CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe"), nil, "", ""},
		"Bottlerocket": {plugin + manager + process("4714", "nvidia-cuda-mps", "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia/mps/nvidia.com/gpu/pipe"), nil, "", ""},
		"no plugin":    {"-- etc/os-release --\nID=debian\n", nil, "", ""},
		"time-slices":  {plugin, nil, "", ""},
	} {
		sharing := "mps = 4\n"
		if name == "time-slices" {
			sharing = "time_slicing = 4\n"
		}
		s := must.Get(spec.Parse(spec.File{
			Name: "node.toml",
			Data: []byte("format = 1\n[node]\nwait_for_allocatable = true\n[sharing]\n" + sharing),
		}))(t)
		r := readyStage{
			spec:    s,
			session: new(Session),
			facts:   facts.Facts{BootID: "b", Driver: &host.Driver{GPUs: []host.GPU{{}, {}}}},
		}
		n := &kube.Node{}
		n.Name = "gpu-1"
		n.Labels = c.labels
		n.Status.NodeInfo.BootID = "b"

		machine := must.Get(simhost.New([]byte(c.machine)))(t)
		err := r.waitForOffer(t.Context(), machine, n)
		var wait trouble.Wait
		errors.As(err, &wait)
		check.Equal(t, errors.Is(err, mpsNotReady), c.says != "", "%s: %v: the cause is MPS:", name, err)
		check.That(t, strings.Contains(wait.For, c.says), "%s: %s; want %q", name, wait.For, c.says)
		check.That(t, strings.Contains(strings.Join(wait.Try, "\n"), c.try), "%s: try %q; want %q", name, wait.Try, c.try)
	}
}
