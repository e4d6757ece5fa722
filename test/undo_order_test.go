// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// rests is a thing that is there only while what it rests on is: a unit and its file.
type rests struct{ on, name string }

func (r rests) Ref() converge.Ref { return converge.Ref{Kind: "rests", Name: r.on + " " + r.name} }

func (r rests) Look(ctx context.Context, v host.View) (converge.State, error) {
	return pkgThing{r.name}.Look(ctx, v)
}

func (r rests) Make(ctx context.Context, h host.Host, to converge.State) error {
	if _, err := h.Stat(r.on); err != nil {
		return fmt.Errorf("cannot make %s: nothing to rest on: %w", r.name, err)
	}
	return pkgThing{r.name}.MakeAll(ctx, h, []converge.Change{{Ref: converge.Ref{Name: r.name}, After: to}})
}

// What was made first goes last, also where it was changed again since: what was made upon it needs it until it has gone itself.
func TestUndoInTheOrderOfTheFirstTouch(t *testing.T) {
	at := func(text string) *converge.Engine {
		e := engineOf(t, stage(things.Exact("/srv/unit", []byte(text), 0o644, ""), converge.Want{Thing: rests{"/srv/unit", "on"}, To: to("1")}))
		e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
			if on, name, ok := strings.Cut(ref.Name, " "); ok && ref.Kind == "rests" {
				return rests{on, name}, nil
			}
			return kinds(ref)
		}
		return e
	}
	for name, undoes := range map[string]func(e *converge.Engine, h host.Host) error{
		"undo": func(e *converge.Engine, h host.Host) error { _, err := e.Undo(t.Context(), h, "all", nil); return err },
		"a shrunk spec": func(e *converge.Engine, h host.Host) error {
			e.Stages = []converge.Stage{stage()}
			_, err := e.Apply(t.Context(), h)
			return err
		},
	} {
		n := node(t)
		first := n.Tree(converge.Home, "/srv/last-transaction")
		apply(t, n, at("1\n"))
		apply(t, n, at("2\n"))
		if err := undoes(at("2\n"), n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		compare(t, name, first, n.Tree(converge.Home, "/srv/last-transaction"))
	}
}
