// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
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
