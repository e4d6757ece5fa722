// SPDX-License-Identifier: Apache-2.0

package platform

// K3s and RKE2 start kubelet and the engine, and render the engine's configuration. How their
// settings are read is code: internal/facts/rancher.go. Sources: https://docs.k3s.io/advanced;
// https://docs.rke2.io/advanced.
var (
	k3s = Platform{
		Name:   "k3s",
		Title:  "K3s",
		Units:  []string{"k3s.service", "k3s-agent.service"},
		Engine: Engine{Writer: "k3s", How: Render, Fixed: true},
	}
	rke2 = Platform{
		Name:   "rke2",
		Title:  "RKE2",
		Units:  []string{"rke2-agent.service", "rke2-server.service"},
		Engine: Engine{Writer: "rke2", How: Render, Fixed: true},
	}
)
