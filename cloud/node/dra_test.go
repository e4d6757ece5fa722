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
	engine := func(name, version, config string) facts.Engine {
		return facts.Engine{Name: name, Version: version, Config: "/etc/c.toml", Files: []facts.File{{Data: []byte(config)}}}
	}
	const off2, on2 = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = false\n", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n"
	const off3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"
	docker := engine("docker", "20.10.0", "")
	good := engine("containerd", "2.1.0", "")
	for name, c := range map[string]struct {
		sockets         []string
		kubelet, driver string
		engines         []facts.Engine
		operator        bool
		lacks           bool
	}{
		"all there":                         {[]string{gpus}, "v1.34.2", "565.57.01", []facts.Engine{docker, good}, false, false},
		"a distribution's build":            {[]string{gpus}, "v1.34.2-eks-1234+k3s1", "580.1", []facts.Engine{good}, false, false},
		"nothing has registered":            {[]string{"other.example-reg.sock"}, "v1.20.0", "470.1", []facts.Engine{engine("containerd", "1.4.0", "")}, false, false},
		"unknown versions":                  {[]string{gpus, domains}, "", "", nil, false, false},
		"old Kubernetes":                    {[]string{gpus}, "v1.34.1", "580.1", []facts.Engine{good}, false, true},
		"ComputeDomains in 1.32":            {[]string{domains}, "v1.32.1", "580.1", []facts.Engine{good}, false, false},
		"ComputeDomains in 1.31":            {[]string{domains}, "v1.31.9", "580.1", []facts.Engine{good}, false, true},
		"old driver":                        {[]string{gpus}, "v1.35.0", "560.35.03", []facts.Engine{good}, false, true},
		"ComputeDomains with 570.124":       {[]string{gpus, domains}, "v1.35.0", "570.124.06", []facts.Engine{good}, false, true},
		"570 under the operator":            {[]string{gpus}, "v1.35.0", "570.158.01", []facts.Engine{good}, true, true},
		"containerd without CDI":            {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "1.6.33", "")}, false, true},
		"1.7, where it is off":              {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "1.7.28", "")}, false, true},
		"1.7, where it was put on":          {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "1.7.28", on2)}, false, false},
		"1.7, put off by a later file":      {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{{Name: "containerd", Version: "1.7.28", Files: []facts.File{{Data: []byte(on2)}, {Data: nil}, {Data: []byte(off2)}}}}, false, true},
		"2.1, put off":                      {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "2.1.0", off3)}, false, true},
		"2.4, where it cannot be off":       {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "2.4.0", off3)}, false, false},
		"CRI-O":                             {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("crio", "1.34.0", "")}, false, false},
		"an old CRI-O":                      {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("crio", "1.22.5", "")}, false, true},
		"a containerd that kubelet has not": {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{{Name: "containerd", Version: "1.4.0", Socket: "/run/other.sock"}, good}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var archive strings.Builder
			for _, s := range c.sockets {
				archive.WriteString("-- " + draRegistry[1:] + "/" + s + " --\n")
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
