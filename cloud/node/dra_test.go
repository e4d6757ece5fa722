// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestDRAReady: a node on which NVIDIA's DRA driver has registered has what that needs, or is not ready and says what is missing.
func TestDRAReady(t *testing.T) {
	const gpus, domains = "gpu.nvidia.com-1b2c-reg.sock", "compute-domain.nvidia.com-reg.sock"
	engine := func(version string) []facts.Engine { return []facts.Engine{{Name: "containerd", Version: version}} }
	good := engine("2.1.0")
	for name, c := range map[string]struct {
		sockets         []string
		kubelet, driver string
		engines         []facts.Engine
		operator        bool
		lacks           bool
	}{
		"all there":                   {[]string{gpus}, "v1.34.2", "565.57.01", good, false, false},
		"a distribution's build":      {[]string{gpus}, "v1.34.2-eks-1234+k3s1", "580.1", good, false, false},
		"nothing has registered":      {[]string{"other.example-reg.sock"}, "v1.20.0", "470.1", engine("1.4.0"), false, false},
		"unknown versions":            {[]string{gpus, domains}, "", "", nil, false, false},
		"old Kubernetes":              {[]string{gpus}, "v1.34.1", "580.1", good, false, true},
		"ComputeDomains in 1.32":      {[]string{domains}, "v1.32.1", "580.1", good, false, false},
		"ComputeDomains in 1.31":      {[]string{domains}, "v1.31.9", "580.1", good, false, true},
		"old driver":                  {[]string{gpus}, "v1.35.0", "560.35.03", good, false, true},
		"ComputeDomains with 570.124": {[]string{gpus, domains}, "v1.35.0", "570.124.06", good, false, true},
		"570 under the operator":      {[]string{gpus}, "v1.35.0", "570.158.01", good, true, true},
		"containerd without CDI":      {[]string{gpus}, "v1.34.2", "580.1", engine("1.6.33"), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var archive strings.Builder
			for _, s := range c.sockets {
				archive.WriteString("-- var/lib/kubelet/" + draRegistry + "/" + s + " --\n")
			}
			a := apiFixture(t, apiSpec, archive.String())
			a.facts.Kubelet.Version, a.facts.Engines, a.facts.Kubelet.Endpoint = c.kubelet, c.engines, "unix:///run/containerd/containerd.sock"
			a.facts.Driver.Version, a.facts.Driver.NVML = c.driver, c.driver
			if c.operator {
				a.facts.DriverOwner = &facts.Owner{Name: facts.GPUOperator}
			}
			if c.lacks {
				a.faulted(name, "ready: dynamic resource allocation")
				return
			}
			a.apply()
			check.That(t, a.ready(), "%s", a.condition())
		})
	}
}
