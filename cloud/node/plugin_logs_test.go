// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestKeepsPluginLogs: a device plugin that ends again and again has its folder of logs between two
// starts; without one the API server is not asked.
func TestKeepsPluginLogs(t *testing.T) {
	for files, want := range map[string]bool{
		"": false,
		"-- var/log/pods/kube-system_kube-proxy-2xkpf_6c1f/kube-proxy/0.log --\n":                                   false,
		"-- var/log/pods/gpu-operator_nvidia-device-plugin-daemonset-7xq2v_81d3/nvidia-device-plugin/3.log --\nx\n": true,
	} {
		n := must.Get(simhost.New([]byte("-- etc/os-release --\nID=debian\n" + files)))(t)
		check.Equal(t, keepsPluginLogs(n), want, "%q:", files)
	}
}

// TestComparesBesideDRA: the pod of the device plugin counts, also after that of a DRA driver, which
// gives pods ComputeDomains, and in a namespace of any name. That of network cards does not, nor do
// the others of the plugin's chart.
func TestComparesBesideDRA(t *testing.T) {
	const logs = "-- var/log/pods/gpu-operator_nvidia-device-plugin-daemonset-7xq2v_81d3/nvidia-device-plugin/3.log --\nx\n"
	pod := func(namespace, name string) kubesim.Object {
		return kubesim.Object{
			"metadata": kubesim.Object{"namespace": namespace, "name": name},
			"spec":     kubesim.Object{"nodeName": "gpu-1"},
		}
	}
	const driver = "nvidia-dra-driver-gpu-kubelet-plugin-x1"
	plugin := pod("gpu-operator", "nvidia-device-plugin-daemonset-7xq2v")

	for name, c := range map[string]struct {
		pods []kubesim.Object
		want bool
	}{
		"both":          {[]kubesim.Object{pod("dra", driver), plugin}, true},
		"DRA driver":    {[]kubesim.Object{pod("nvidia-device-plugin", driver)}, false},
		"plugin":        {[]kubesim.Object{plugin}, true},
		"its chart's":   {[]kubesim.Object{pod("nvdp", "nvdp-nvidia-device-plugin-gpu-feature-discovery-4c8tn")}, false},
		"network cards": {[]kubesim.Object{pod("kube-system", "aws-efa-k8s-device-plugin-x1")}, false},
	} {
		text := apiSpec + "[sharing]\nstrategy = \"none\"\n"
		a := apiFixture(t, text, logs)
		for _, p := range c.pods {
			a.sim.AddPod(p)
		}

		r := newReadyStage(new(Session), specs.Of(t, text), a.facts)
		node := &kube.Node{}
		node.Name = "gpu-1"
		compares, err := r.comparesOffer(t.Context(), a, node)
		check.That(t, err == nil && compares == c.want, "%s: %v, %v", name, compares, err)
	}
}
