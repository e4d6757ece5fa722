// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// drawing is a package that may leave its version open ("newest") and that brings its library
// along.
type drawing struct{ pkgThing }

func (d drawing) Ref() converge.Ref { return converge.Ref{Kind: "drawing", Name: d.name} }

func (d drawing) Resolve(_ context.Context, v host.View, pending []converge.Change) ([]converge.Change, error) {
	list, err := v.ReadFile("/srv/candidates")
	if err != nil {
		return nil, host.Later{Until: "the repository is there"}
	}
	var out []converge.Change
	for _, c := range pending {
		if c.After == "newest" {
			c.After = converge.State(strings.TrimSpace(string(list)))
		}
		if c.After == "9" {
			return nil, errors.New("cannot install 9: it is gone")
		}
		out = append(out, c)
		lib := "lib-" + c.Name
		if _, err := v.Stat("/pkg/" + lib); err != nil && c.After != "" {
			out = append(out, converge.Change{
				Ref:   converge.Ref{Kind: "drawing", Name: lib},
				After: "1",
			})
		}
	}

	return out, nil
}

// Lacks: nothing is lost.
func (drawing) Lacks(context.Context, host.View, []converge.Change) ([]converge.Change, error) {
	return nil, nil
}

func wantDrawing(name string, version converge.State) converge.Want {
	return converge.Want{Thing: drawing{pkgThing{name}}, To: func(found converge.State) (converge.State, error) {
		if version == "newest" && found != "" {
			return found, nil
		}
		return version, nil
	}}
}

func drawings(ref converge.Ref) (converge.Thing, error) {
	if ref.Kind == "drawing" {
		return drawing{pkgThing{ref.Name}}, nil
	}
	return kinds(ref)
}

func TestWhatIsDrawnAlong(t *testing.T) {
	n := node(t)
	must.OK(t, n.WriteFile("/srv/candidates", []byte("7\n"), host.Attr{Mode: 0o644}))
	first := n.Tree(converge.Home, "/srv")
	e := engineOf(t, stage(wantDrawing("x", "newest"), wantDrawing("y", "2")))
	e.ThingOf = drawings
	plan := must.Get(e.Plan(context.Background(), n))(t)
	var lines []string
	for _, c := range plan.Changes {
		line := c.Name + "=" + string(c.After)
		if c.Dependency {
			line += " drawn"
		}
		lines = append(lines, line)
	}

	check.Equal(t, strings.Join(lines, ", "), "x=7, y=2, lib-x=1 drawn, lib-y=1 drawn", "plan:")
	apply(t, n, e)
	b, _ := n.ReadFile("/srv/last-transaction")
	check.That(t, string(b) == "x y lib-x lib-y", "transaction of %q", b)
	res := apply(t, n, e)
	check.That(t, res.Run == "", "the second apply made %v", res.Made)
	shrunk := engineOf(t, stage(wantDrawing("y", "2")))
	shrunk.ThingOf = drawings
	apply(t, n, shrunk)
	b, _ = n.ReadFile("/srv/last-transaction")
	check.That(t, string(b) == "x", "shrunk in a transaction of %q", b)
	undo(t, n, e, "all")
	compare(t, "undone", first, n.Tree(converge.Home, "/srv"))
}

func TestWhatCannotBeResolved(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(wantDrawing("x", "9"), wantDrawing("y", "2")))
	e.ThingOf = drawings
	res := apply(t, n, e)
	check.That(t, len(res.Deferred) == 2 && len(res.Made) == 0, "without a repository: made %v, later %v", res.Made, res.Deferred)
	must.OK(t, n.WriteFile("/srv/candidates", []byte("7\n"), host.Attr{Mode: 0o644}))
	touches := n.Touches()
	_, err := e.Apply(context.Background(), n)
	told := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &told) && strings.Contains(told.What, "it is gone") && !strings.Contains(strings.Join(told.Because, ""), "also"),
		"a version that is gone: %v (%+v)", err, told)
	made := n.Touches() - touches
	check.That(t, made == 0, "%d touches for what cannot be made", made)
}

// What cannot be resolved when its turn comes stops the run, and does not go to the touch half
// resolved.
func TestCannotBeResolvedAnyMore(t *testing.T) {
	n := node(t)
	change := named("sources", things.Exact("/srv/candidates", []byte("9\n"), 0o644, ""))
	e := engineOf(t, change, stage(wantDrawing("x", "newest"), wantDrawing("y", "2")))
	e.ThingOf = drawings
	_, err := e.Apply(context.Background(), n)
	check.That(t, err != nil && strings.Contains(err.Error(), "it is gone"), "resolved with candidates that say 9 is gone: %v", err)
	_, err = n.Stat("/pkg/y")
	check.That(t, err != nil, "y was made, which could not be resolved with x")
}

// What was drawn along when the plan was made may have changed by the time of the touch.
func TestResolvedFromSomethingElse(t *testing.T) {
	n := node(t)
	must.OK(t, n.WriteFile("/srv/candidates", []byte("7\n"), host.Attr{Mode: 0o644}))
	meddler := converge.Stage{Name: "driver", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{
			{Thing: meddles{}, To: to("done")},
			wantDrawing("x", "newest"),
		}, nil
	}}
	e := engineOf(t, meddler)
	e.ThingOf = drawings
	_, err := e.Apply(context.Background(), n)
	check.That(t, err != nil && strings.Contains(err.Error(), " in the plan and is "), "a package that was installed outside gpuadm meanwhile: %v", err)
}

// meddles is another process, which installs x in another version between the plan and the touch.
type meddles struct{}

func (meddles) Ref() converge.Ref { return converge.Ref{Kind: "meddles", Name: "x"} }

func (meddles) Look(_ context.Context, v host.View) (converge.State, error) {
	if _, err := v.Stat("/pkg/x"); err != nil {
		return "", nil
	}
	return "done", nil
}

func (meddles) Make(_ context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return nil
	}
	return h.WriteFile("/pkg/x", []byte("3\n"), host.Attr{Mode: 0o644})
}
