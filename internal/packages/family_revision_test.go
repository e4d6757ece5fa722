// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
)

// A packager's new revision of the same driver: the archive has dropped the old one (Ubuntu's updates have the newest only), and
// the spec now asks for one part more.
func TestNewRevisionAndOnePartMore(t *testing.T) {
	m := newMachine(t)
	add := func(v string) {
		m.repo.add(
			deb{name: "nvidia-utils-580-server", version: v, fields: "Depends: libnvidia-compute-580-server (= " + v + ")\n"},
			deb{name: "libnvidia-compute-580-server", version: v},
			deb{name: "libnvidia-cfg1-580-server", version: v},
			deb{name: "nvidia-compute-utils-580-server", version: v, fields: "Depends: libnvidia-compute-580-server (= " + v + "), libnvidia-cfg1-580-server (= " + v + ")\n"},
		)
	}
	const old = "580.159.03-0ubuntu0.24.04.1"
	add(old)
	m.update()
	m.apply(leaves(nvidia(), "580.159.03", "nvidia-utils-580-server"))
	add("580.159.03-0ubuntu0.24.04.2")
	for _, name := range []string{"nvidia-utils-580-server", "libnvidia-compute-580-server", "libnvidia-cfg1-580-server", "nvidia-compute-utils-580-server"} {
		m.repo.drop(name, old)
	}
	m.update()
	if said := m.tried(leaves(nvidia(), "580.159.03", "nvidia-utils-580-server", "nvidia-compute-utils-580-server")); said != "" {
		t.Errorf("refused:\n%s", said)
	}
}
