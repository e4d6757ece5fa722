// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestDRAReady: a node on which NVIDIA's DRA driver has registered has what that needs, or is not
// ready and says what is missing.
func TestDRAReady(t *testing.T) {
	engine := func(version string) []facts.Engine {
		return []facts.Engine{{Name: "containerd", Version: version}}
	}
	for name, c := range map[string]struct {
		socket  string
		engines []facts.Engine
		lacks   bool
	}{
		"all there":              {"gpu.nvidia.com-1b2c-reg.sock", engine("2.1.0"), false},
		"nothing has registered": {"other.example-reg.sock", engine("1.4.0"), false},
		"without CDI":            {"gpu.nvidia.com-1b2c-reg.sock", engine("1.6.33"), true},
		"ComputeDomains without": {"compute-domain.nvidia.com-reg.sock", engine("1.6.33"), true},
	} {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec, "-- var/lib/kubelet/"+draRegistry+"/"+c.socket+" --\n")
			a.facts.Engines, a.facts.Kubelet.Endpoint = c.engines, "unix:///run/containerd/containerd.sock"
			if c.lacks {
				a.faulted(name, "ready: dynamic resource allocation")
				return
			}
			a.apply()
			check.That(t, a.ready(), "%s", a.condition())
		})
	}
}
