// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// TestMirrorMovesMeanwhile: a package that is another one than the lists say is fetched once more by lists read anew, since the
// repository was most likely published meanwhile. One that stays so is refused, and it is told that waiting may help.
func TestMirrorMovesMeanwhile(t *testing.T) {
	m := newMachine(t)
	m.repo.driver("570.1-1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.update()
	m.repo.add(deb{name: "dkms-like", version: "1.0-1", files: map[string]string{"/opt/more": "built anew\n"}})
	m.repo.publish()
	var said []string
	e := m.engine(drivers("570.1"))
	e.Tell = func(ev converge.Event) { said = append(said, ev.Text) }
	if _, err := e.Apply(t.Context(), m); err != nil {
		t.Fatal(wordsOf(err))
	}
	m.stands("570.1-1")
	if all := strings.Join(said, "\n"); !strings.Contains(all, "lists are read again") {
		t.Errorf("it said %s", all)
	}

	m.repo.driver("580.2-1")
	m.update()
	first := m.has()
	debs, err := filepath.Glob(m.repo.dir + "/nvidia-kernel_580.2-1_*.deb")
	if err != nil || len(debs) != 1 {
		t.Fatal(debs, err)
	}
	data, err := os.ReadFile(debs[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(debs[0], data, 0o644); err != nil {
		t.Fatal(err)
	}
	contains(t, m.refuse(drivers("580.2")), "do not fit together", "again in some minutes")
	if now := m.has(); now != first {
		t.Errorf("refused, and yet\n%s", now)
	}
}
