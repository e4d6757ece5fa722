// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// down is a machine whose repositories cannot be reached.
type down struct{ *simhost.Node }

func (down) Do(_ context.Context, argv ...string) ([]byte, error) {
	if slices.Contains(argv, "download") {
		return nil, errors.New("cannot reach the repository")
	}
	return nil, nil
}

func (down) Ask(context.Context, ...string) ([]byte, error) { return nil, nil }

func (down) Now() time.Time { return time.Time{} }

// With a repository that is down dnf keeps nothing of what gets replaced, and says so. What the plan has called lost already is
// not said again, and a run that was stopped ends there.
func TestDnfKeepsWhatItCan(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	var h host.Host = down{n}
	name, newer := "kmod-nvidia", packages.State{Version: "3:590.1-1.el9"}
	change := converge.Change{Ref: converge.Ref{Kind: "package", Name: name}, Before: newer.String(), After: "3:580.1-1.el9"}
	s := solver{d: rpmDatabase{packages: map[string]packages.State{name: newer}}}
	r := &packages.Resolution{Solver: s, Installed: s.d.packages, Changes: []converge.Change{change}}
	keep := func(ctx context.Context, all map[string][]packages.Offer) error {
		return r.Unkept(ctx, h, s.fetch(ctx, h, r.Replaced(), all))
	}
	var said []string
	ctx := converge.Listen(t.Context(), func(what converge.What, text string) { said = append(said, string(what)+": "+text) })
	for _, c := range []struct {
		again map[string][]packages.Offer
		want  string
	}{
		{map[string][]packages.Offer{name: {{Version: newer.Version}}}, "cannot reach the repository"},
		{nil, "no repository has that version"},
	} {
		said = nil
		want := "unkept: cannot keep kmod-nvidia 3:590.1-1.el9: " + c.want + "; to install it again gpuadm will need a repository that has it"
		if err := keep(ctx, c.again); err != nil || !slices.Equal(said, []string{want}) {
			t.Errorf("%v, it said %q, want %q", err, said, want)
		}
	}
	again := map[string][]packages.Offer{name: {{Version: newer.Version}}}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if err := keep(stopped, again); err == nil {
		t.Error("stopped, it went on")
	}
	said, r.Changes[0].Keeps = nil, "no repository has it any more"
	if err := keep(ctx, again); err != nil || len(said) > 0 {
		t.Errorf("of what the plan called lost: %v, it said %q", err, said)
	}
}
