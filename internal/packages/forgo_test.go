// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
)

// The way back does not hang on a repository that has lost what it is about to replace: it goes on, and says what is not kept.
// Going forward that is refused, before anything is touched.
func TestWayBackKeepsWhatItCan(t *testing.T) {
	m := newMachine(t)
	m.repo.driver("570.1-1")
	m.repo.driver("580.2-1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.update()
	m.apply(drivers("570.1"))
	first := m.has()
	newer := m.apply(drivers("580.2"))
	for _, name := range members { // somebody has cleaned up
		if err := os.Remove(m.dir + Store + "/" + name + "_570.1-1_" + m.repo.arch + ".deb"); err != nil {
			t.Fatal(err)
		}
	}
	m.must("apt-get", "clean")
	m.repo.drop("nvidia-kernel", "580.2-1") // the lists still name it

	contains(t, m.refuse(drivers("570.1")), "cannot fetch what would be replaced, for the way back")
	m.stands("580.2-1")
	var said []string
	e := m.engine(drivers("*"))
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Unkept {
			said = append(said, ev.Text)
		}
	}
	if _, err := e.Undo(t.Context(), m, newer.Run, nil); err != nil {
		t.Fatalf("undo: %s", wordsOf(err))
	}
	if last := m.has(); last != first {
		t.Errorf("after undo:\n%swas:\n%s", last, first)
	}
	if len(said) != 1 || !strings.Contains(said[0], "nvidia-kernel 580.2-1") {
		t.Errorf("it said %q", said)
	}
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

// With a repository that is down dnf keeps nothing of what gets replaced: going forward that is refused, on the way back told.
func TestDnfWayBackKeepsWhatItCan(t *testing.T) {
	n, err := simhost.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var h host.Host = down{n}
	name, newer := "kmod-nvidia", State{Version: "3:590.1-1.el9"}
	r := &dnfResolution{v: h, d: rpmDatabase{packages: map[string]State{name: newer}}, changes: []converge.Change{{Kind: "package", Name: name, Before: newer.String(), After: "3:580.1-1.el9"}}}
	again := map[string][]offer{name: {{version: newer.Version}}}

	if err := r.keep(t.Context(), h, again); err == nil || !strings.Contains(err.Error(), "cannot fetch what would be replaced") {
		t.Errorf("going forward: %v", err)
	}
	var said []string
	back := converge.WayBack(t.Context(), func(text string) { said = append(said, text) })
	if err := r.keep(back, h, again); err != nil || len(said) != 1 || !strings.Contains(said[0], name+" "+newer.Version) {
		t.Errorf("on the way back: %v, it said %q", err, said)
	}
	stopped, stop := context.WithCancel(back)
	stop()
	if err := r.keep(stopped, h, again); err == nil {
		t.Error("stopped on the way back, it went on")
	}
}
