// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A repository that has lost what is about to be replaced stops neither an apply nor an undo: both say what is not kept.
func TestKeepsWhatItCan(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("570.1-1")
	m.repo.driver("580.2-1")
	m.repo.driver("590.3-1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.update()
	m.apply(drivers("570.1"))
	first := m.has()
	newer := m.apply(drivers("580.2"))
	m.must("apt-get", "clean")
	m.repo.drop("nvidia-kernel", "580.2-1") // the lists still name it

	lost := "cannot keep nvidia-kernel 580.2-1: "
	e, said := m.listening(drivers("590.3"))
	if _, err := e.Apply(t.Context(), m); err != nil {
		t.Fatalf("apply: %s", wordsOf(err))
	}
	m.converged("590.3-1")
	if len(*said) != 1 || !strings.HasPrefix((*said)[0], lost) || !strings.HasSuffix((*said)[0], "will need a repository that has it") {
		t.Errorf("apply said %q", *said)
	}
	m.repo.driver("580.2-1") // it has it again
	m.update()
	if _, err := e.Undo(t.Context(), m, "", nil); err != nil {
		t.Fatalf("undo: %s", wordsOf(err))
	}
	m.converged("580.2-1")

	m.must("apt-get", "clean")
	m.repo.drop("nvidia-kernel", "580.2-1")
	e, said = m.listening(drivers("*"))
	if _, err := e.Undo(t.Context(), m, newer.Run, nil); err != nil {
		t.Fatalf("undo: %s", wordsOf(err))
	}
	if last := m.has(); last != first {
		t.Errorf("after undo:\n%swas:\n%s", last, first)
	}
	if len(*said) != 1 || !strings.HasPrefix((*said)[0], lost) {
		t.Errorf("undo said %q", *said)
	}
}

// listening is an engine, and what it says is not kept.
func (m *machine) listening(wants func(*packages.Set) []converge.Want) (*converge.Engine, *[]string) {
	e, said := m.engine(wants), new([]string)
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Unkept {
			*said = append(*said, ev.Text)
		}
	}
	return e, said
}
