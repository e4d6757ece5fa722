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
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestOlderLeavesTheMachine: of two versions on one machine, as of an image and of a DaemonSet, the
// newer one writes. The older one changes nothing: unattended it ends well, so that the gate opens
// and the newer one's pod can come; an operator gets an error. What a power cut has left open any
// version finishes.
func TestOlderLeavesTheMachine(t *testing.T) {
	const newer, older = "v1.10.0", "v1.9.0"
	for _, c := range []struct {
		what, first, then string
		unattended        bool
		made, fails       bool
	}{
		{"older, unattended", newer, older, true, false, false},
		{"older, by an operator", newer, older, false, false, true},
		{"newer", older, newer, true, true, false},
		{"the same", newer, newer, true, true, false},
		{"a build without a release", newer, "devel-0123456789ab", true, true, false},
		{"after a build without a release", "devel", older, true, true, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := node(t)
			one := engineOf(t, stage(things.Exact("/etc/one", nil, 0o644, "")))
			one.Version = c.first
			apply(t, n, one)
			two := engineOf(t, stage(things.Exact("/etc/one", []byte("2"), 0o644, "")))
			two.Version, two.Unattended = c.then, c.unattended
			res, err := two.Apply(context.Background(), n)
			b, _ := n.ReadFile("/etc/one")
			made := string(b) == "2"
			check.That(t, made == c.made && (err != nil) == c.fails && (res.Newer != "") == (!c.made && !c.fails), "made %v, newer %q, error %v", made, res.Newer, err)
			two.Stages = one.Stages // as the newer one made it
			if !c.made {
				res, err := two.Apply(context.Background(), n)
				check.That(t, err == nil && (res.Newer != "") == c.unattended, "a machine that is converged for the older one too: %v, newer %q", err, res.Newer)
				_, err = two.Undo(context.Background(), n, "", nil)
				check.That(t, err == nil, "undo by the older one: %v", err)
				two.Unattended = false
				apply(t, n, two) // from now on the machine is the older one's
			}
		})
	}
}

// TestOlderCannotPlan: the older gpuadm's plan of a newer machine fails, or refuses. Unattended it
// does not plan: its gate opens, and the newer one's pod can come. An operator gets the reason.
func TestOlderCannotPlan(t *testing.T) {
	failed := errors.New("cannot read a file of the newer one")
	for what, wants := range map[string]func(spec.Spec, facts.Facts) ([]converge.Want, error){
		"fails": func(spec.Spec, facts.Facts) ([]converge.Want, error) { return nil, failed },
		"refuses": func(spec.Spec, facts.Facts) ([]converge.Want, error) {
			refuses := func(context.Context, host.View) (string, error) { return failed.Error(), nil }
			return []converge.Want{things.Check("one", refuses, "", "nothing helps")}, nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			n := node(t)
			one := engineOf(t, stage(things.Exact("/etc/one", nil, 0o644, "")))
			one.Version = "v1.10.0"
			apply(t, n, one)
			two := engineOf(t, converge.Stage{Name: "driver", Wants: wants})
			two.Version, two.Unattended = "v1.9.0", true
			all := n.Tree()
			res, err := two.Apply(context.Background(), n)
			check.That(t, err == nil && res.Newer == "v1.10.0", "unattended: newer %q, %v", res.Newer, err)
			two.Unattended = false
			_, err = two.Apply(context.Background(), n)
			check.That(t, err != nil && strings.Contains(err.Error(), failed.Error()), "by an operator: %v", err)
			compare(t, what, all, n.Tree())
		})
	}
}

// TestOlderByItsJournal: a journal of a newer format is a newer gpuadm's, also for a build without
// a release. No word allows a change then: what it says cannot be continued.
func TestOlderByItsJournal(t *testing.T) {
	for _, version := range []string{"v1.9.0", "devel"} {
		for _, allow := range [][]string{nil, {"downgrade-gpuadm"}} {
			n := node(t)
			apply(t, n, engineOf(t, stage(things.Exact("/etc/zero", nil, 0o644, ""))))
			put(t, n, converge.Home+"/journal.jsonl", `{"format":2,"what":"begin","run":"x"}`+"\n")
			e := engineOf(t, stage(things.Exact("/etc/one", nil, 0o644, "")))
			e.Version, e.Unattended, e.Allow = version, true, allow
			all := n.Tree()
			res, err := e.Apply(context.Background(), n)
			check.That(t, err == nil && res.Newer == "of journal format 2" && len(res.Made) == 0,
				"%s, --allow %q: newer %q, made %s, %v", version, allow, res.Newer, names(res.Made), err)
			compare(t, version, all, n.Tree())
		}
	}
}

// TestOlderOnPurpose: a fleet returns to an older gpuadm by a word in node.toml, an operator by the
// same word. From then on the machine is the older one's.
func TestOlderOnPurpose(t *testing.T) {
	const word = "downgrade-gpuadm"
	for _, c := range []struct {
		what       string
		spec       string
		allow      []string
		unattended bool
	}{
		{"a fleet", "[disruption]\nallow = [\"" + word + "\"]\n", nil, true},
		{"an operator", "", []string{word}, false},
		{"an operator, by all", "", []string{"all"}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := node(t)
			one := engineOf(t, stage(things.Exact("/etc/one", nil, 0o644, "")))
			one.Version = "v1.10.0"
			apply(t, n, one)
			two := engineOf(t, stage(things.Exact("/etc/one", []byte("2"), 0o644, "")))
			two.Spec, two.Version, two.Allow, two.Unattended = specs.Of(t, c.spec), "v1.9.0", c.allow, c.unattended
			res := apply(t, n, two)
			check.That(t, len(res.Made) == 1 && res.Newer == "", "made %s, newer %q", names(res.Made), res.Newer)
			check.None(t, converge.ReadJournal(n).NewerThan("v1.9.0"), "the machine is still of")
		})
	}
}
