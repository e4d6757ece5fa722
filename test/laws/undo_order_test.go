// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/must"
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

// depends is a package of which version 2 depends on the package lib, as the next branch of a driver does on a library of its own.
type depends struct{ pkgThing }

func (d depends) MakeAll(ctx context.Context, h host.Host, all []converge.Change) error {
	now := map[string]converge.State{}
	for _, name := range []string{"driver", "lib"} {
		s, err := pkgThing{name}.Look(ctx, h)
		if err != nil {
			return err
		}
		now[name] = s
	}
	for _, c := range all {
		now[c.Name] = c.After
	}
	if now["driver"] == "2" && now["lib"] == "" {
		return errors.New("cannot make packages: apt would remove driver 2, which depends on what would change")
	}
	return d.pkgThing.MakeAll(ctx, h, all)
}

// What is made in one transaction goes in one, also where a later run has drawn some of it along: no other order would be taken.
func TestUndoOfAnUpgradeThatDrewMore(t *testing.T) {
	at := func(version converge.State, more ...string) *converge.Engine {
		var wants []converge.Want
		for _, name := range more {
			wants = append(wants, converge.Want{Thing: depends{pkgThing{name}}, To: to("1")})
		}
		wants = append(wants, converge.Want{Thing: depends{pkgThing{"driver"}}, To: to(version)})
		e := engineOf(t, stage(wants...), converge.Stage{Name: "runtime", Wants: stage(things.Exact("/srv/unit", []byte("of the driver\n"), 0o644, "")).Wants})
		e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
			if ref.Kind == "packages" {
				return depends{pkgThing{ref.Name}}, nil
			}
			return kinds(ref)
		}
		return e
	}
	n := node(t)
	first := n.Tree(converge.Home, "/srv/last-transaction")
	apply(t, n, at("1"))
	apply(t, n, at("2", "lib"))
	p := must.Get(at("2", "lib").PlanUndo(t.Context(), n.View(), "all", nil))(t)
	if got := strings.Fields(names(p.Changes)); !slices.Equal(got, []string{"file", "/srv/unit", "packages", "lib", "packages", "driver"}) {
		t.Errorf("planned: %q", got)
	}
	must.Get(at("2", "lib").Undo(t.Context(), n, "all", nil))(t)
	compare(t, "undo", first, n.Tree(converge.Home, "/srv/last-transaction"))
}
