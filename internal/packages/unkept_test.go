// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A repository that has lost what is about to be replaced stops neither an apply nor an undo: both say what is not kept.
func TestKeepsWhatItCan(t *testing.T) {
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
	m.stands("590.3-1")
	if len(*said) != 1 || !strings.HasPrefix((*said)[0], lost) || !strings.HasSuffix((*said)[0], "will need a repository that has it") {
		t.Errorf("apply said %q", *said)
	}
	m.repo.driver("580.2-1") // it has it again
	m.update()
	if _, err := e.Undo(t.Context(), m, "", nil); err != nil {
		t.Fatalf("undo: %s", wordsOf(err))
	}
	m.stands("580.2-1")

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
func (m *machine) listening(wants func(*Set) []converge.Want) (*converge.Engine, *[]string) {
	e, said := m.engine(wants), new([]string)
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Unkept {
			*said = append(*said, ev.Text)
		}
	}
	return e, said
}

// down is a machine whose repositories cannot be reached.
type down struct{ *simhost.Node }

func (down) Do(_ context.Context, argv ...string) ([]byte, error) {
	if slices.Contains(argv, "download") {
		return nil, errors.New("cannot reach the repository")
	}
	return nil, nil
}
func (down) Ask(context.Context, ...string) ([]byte, error) { return nil, nil }
func (down) Now() time.Time                                 { return time.Time{} }

// With a repository that is down dnf keeps nothing of what gets replaced, and says so. What the plan has called lost already is
// not said again, and a run that was stopped ends there.
func TestDnfKeepsWhatItCan(t *testing.T) {
	n, err := simhost.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var h host.Host = down{n}
	name, newer := "kmod-nvidia", State{Version: "3:590.1-1.el9"}
	change := converge.Change{Kind: "package", Name: name, Before: newer.String(), After: "3:580.1-1.el9"}
	r := &dnfResolution{v: h, d: rpmDatabase{packages: map[string]State{name: newer}}, changes: []converge.Change{change}}
	var said []string
	ctx := converge.Listen(t.Context(), func(what converge.What, text string) { said = append(said, string(what)+": "+text) })
	for _, c := range []struct {
		again map[string][]offer
		want  string
	}{
		{map[string][]offer{name: {{version: newer.Version}}}, "cannot reach the repository"},
		{nil, "no repository has that version"},
	} {
		said = nil
		want := "unkept: cannot keep kmod-nvidia 3:590.1-1.el9: " + c.want + "; to install it again gpuadm will need a repository that has it"
		if err := r.keep(ctx, h, c.again); err != nil || !slices.Equal(said, []string{want}) {
			t.Errorf("%v, it said %q, want %q", err, said, want)
		}
	}
	again := map[string][]offer{name: {{version: newer.Version}}}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if err := r.keep(stopped, h, again); err == nil {
		t.Error("stopped, it went on")
	}
	said, r.changes[0].Keeps = nil, "no repository has it any more"
	if err := r.keep(ctx, h, again); err != nil || len(said) > 0 {
		t.Errorf("of what the plan called lost: %v, it said %q", err, said)
	}
}
