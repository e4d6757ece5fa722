// SPDX-FileCopyrightText: The gpuadm authors
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
		says            string
	}{
		"all there":                         {[]string{gpus}, "v1.34.2", "565.57.01", []facts.Engine{docker, good}, false, ""},
		"a distribution's build":            {[]string{gpus}, "v1.34.2-eks-1234+k3s1", "580.1", []facts.Engine{good}, false, ""},
		"nothing has registered":            {[]string{"other.example-reg.sock"}, "v1.20.0", "470.1", []facts.Engine{engine("containerd", "1.4.0", "")}, false, ""},
		"unknown versions":                  {[]string{gpus, domains}, "", "", nil, false, ""},
		"old Kubernetes":                    {[]string{gpus}, "v1.34.1", "580.1", []facts.Engine{good}, false, "kubelet v1.34.1 is older than 1.34.2"},
		"ComputeDomains in 1.32":            {[]string{domains}, "v1.32.1", "580.1", []facts.Engine{good}, false, ""},
		"ComputeDomains in 1.31":            {[]string{domains}, "v1.31.9", "580.1", []facts.Engine{good}, false, "older than 1.32.0"},
		"old driver":                        {[]string{gpus}, "v1.35.0", "560.35.03", []facts.Engine{good}, false, "driver 560.35.03 is older than 565, which it needs (the GPU Operator's page asks for 580)"},
		"ComputeDomains with 570.124":       {[]string{gpus, domains}, "v1.35.0", "570.124.06", []facts.Engine{good}, false, "older than 570.158.01, which it needs (for ComputeDomains; the GPU Operator's page asks for 580)"},
		"570 under the operator":            {[]string{gpus}, "v1.35.0", "570.158.01", []facts.Engine{good}, true, "older than 580, which it needs under the GPU Operator (the DRA driver's own page asks for 565, and 570.158.01 for ComputeDomains)"},
		"containerd without CDI":            {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "1.6.33", "")}, false, "containerd 1.6.33 has no CDI"},
		"1.7, where it is off":              {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "1.7.28", "")}, false, "it is not enabled in /etc/c.toml"},
		"1.7, where it was put on":          {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "1.7.28", on2)}, false, ""},
		"1.7, put off by a later file":      {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{{Name: "containerd", Version: "1.7.28", Files: []facts.File{{Data: []byte(on2)}, {Data: nil}, {Data: []byte(off2)}}}}, false, "it is not enabled"},
		"2.1, put off":                      {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "2.1.0", off3)}, false, "it is not enabled"},
		"2.4, where it cannot be off":       {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("containerd", "2.4.0", off3)}, false, ""},
		"CRI-O":                             {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("crio", "1.34.0", "")}, false, ""},
		"an old CRI-O":                      {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{engine("crio", "1.22.5", "")}, false, "crio 1.22.5 has no CDI"},
		"a containerd that kubelet has not": {[]string{gpus}, "v1.34.2", "580.1", []facts.Engine{{Name: "containerd", Version: "1.4.0", Socket: "/run/other.sock"}, good}, false, ""},
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
				a.facts.DriverOwner = &facts.DriverOwner{Name: facts.GPUOperator}
			}
			_, err := a.engine().Apply(a.ctx, a)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("want %q, got %v", c.says, err)
			}
			check.Equal(t, strings.Contains(a.shown(), "True"), (c.says == ""), "ready is")
		})
	}
}
