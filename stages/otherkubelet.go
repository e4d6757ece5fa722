// SPDX-License-Identifier: Apache-2.0

package stages

import "github.com/gpuadm/gpuadm/internal/host"

// OtherKubelet is the path of a kubelet's credentials in another distribution of Kubernetes, which
// configures that kubelet itself; "" if the machine has none. Sources: pkg/constant of
// https://github.com/k0sproject/k0s and its docs/backup.md; snap/hooks of
// https://github.com/canonical/microk8s and its CIS page (check 4.1.5).
func OtherKubelet(v host.View) string {
	credentials := []string{
		"/var/lib/k0s/kubelet.conf",
		"/var/snap/microk8s/current/credentials/kubelet.config",
	}
	for _, name := range credentials {
		if _, err := v.Stat(name); err == nil {
			return name
		}
	}

	return ""
}
