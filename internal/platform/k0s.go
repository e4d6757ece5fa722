// SPDX-License-Identifier: Apache-2.0

package platform

// k0s starts kubelet and the engine. How its settings are read is code: internal/facts/k0s.go.
// Source: https://docs.k0sproject.io/stable/runtime.
var k0s = Platform{
	Name:   "k0s",
	Title:  "k0s",
	Units:  []string{"k0sworker.service", "k0scontroller.service"},
	Engine: Engine{Writer: "k0s", How: Folder, Fixed: true},
}
