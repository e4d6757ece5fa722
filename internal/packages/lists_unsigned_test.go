// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Where our files only pin, and no repository of the machine has a signed list (deb [trusted=yes] of a flat folder), the
// lists settle.
func TestPinsOnlyOverUnsignedRepository(t *testing.T) {
	m := newMachine(t)
	m.repo.branches()
	m.repo.publish()
	for _, f := range []string{"Release", "Release.gpg", "InRelease"} {
		m.repo.run("rm", "-f", m.repo.dir+"/"+f)
	}
	m.repo.run("rm", "-f", m.dir+ourSource)
	m.write("/etc/apt/sources.list", "deb [trusted=yes] "+m.repo.url+"/ ./\n")
	m.must("apt-get", "-q", "update")
	want := func(*Set) []converge.Want {
		wants, err := Repositories(new(Reading), "apt", []Repository{{ID: "driver", About: "x", Pins: []Pin{KeepAt("580.95.05", "*nvidia*")}}}, host.Via{})
		if err != nil {
			t.Fatal(err)
		}
		return wants
	}
	if said := m.tried(want); said != "" {
		t.Errorf("refused:\n%s", said)
	}
	m.packagers()
	if said := m.tried(want); said != "" || len(m.packagers()) > 0 {
		t.Errorf("the second apply asks apt again:\n%s", strings.TrimSpace(said))
	}
}
