// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestSnapNotMounted: the programs of a snap that is not mounted are not found. A containerd and a
// kubelet of the machine's own are not the snap's.
func TestSnapNotMounted(t *testing.T) {
	f := gather(t, files{
		"/etc/systemd/system/snap.k8s.containerd.service": service1("/usr/bin/snap run k8s.containerd"),
		"/etc/systemd/system/snap.k8s.kubelet.service":    service1("/usr/bin/snap run k8s.kubelet"),
		"/var/snap/k8s/common/args/containerd":            "--address=" + usualSocket + "\n--config=" + usualConfig + "\n",
		"/var/snap/k8s/common/args/kubelet":               "--container-runtime-endpoint=" + usualSocket + "\n",
		"/bin/containerd":                                 "x",
		"/bin/kubelet":                                    "x",
		usualConfig:                                       "version = 2\n",
	})

	check.Equal(t, f.Kubelet.Binary, "", "kubelet's program")
	for _, e := range f.Engines {
		if e.Unit == "snap.k8s.containerd.service" {
			check.Equal(t, e.Binary, "", "the engine's program")
			return
		}
	}
	t.Errorf("the snap's engine is not found: %+v", f.Engines)
}
