// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// named is a packager of which a test needs the name alone.
type named struct{ Solver }

func (named) Name() string               { return "dnf" }
func (named) Essential(name string) bool { return name == "glibc" }

// TestUnlike: more, less and other than planned is found.
func TestUnlike(t *testing.T) {
	r := Resolution{Solver: named{}, Installed: map[string]State{"x": {Version: "1-1"}}, Changes: []converge.Change{
		{Ref: converge.Ref{Name: "a"}, Before: "1-1", After: "2-1 held"}, {Ref: converge.Ref{Name: "b"}, Before: "1-1", After: ""}, {Ref: converge.Ref{Name: "c"}, Before: "1-1", After: "1-1 held"},
	}}
	a, b := Move{"a", "2-1"}, Move{Name: "b"}
	for want, moves := range map[string][]Move{
		"":                                  {a, b},
		`dnf would leave b as it is: "1-1"`: {a},
		"dnf would install x 1-1 beside it": {a, b, {"x", "1-1"}},
		"dnf would remove x 1-1, which depends on what would change": {a, b, {Name: "x"}},
		`dnf would make a "3-1" instead of "2-1"`:                    {{"a", "3-1"}, b},
		`dnf would make a "" instead of "2-1"`:                       {{Name: "a"}, b},
		`dnf would make c "" instead of "1-1"`:                       {a, b, {Name: "c"}},
	} {
		if got := r.unlike(moves); got != want {
			t.Errorf("%v: %q, want %q", moves, got, want)
		}
	}
	r.Changes = []converge.Change{{Ref: converge.Ref{Name: "glibc"}, Before: "1-1"}}
	if got := r.unlike([]Move{{Name: "glibc"}}); got != "dnf would remove glibc, and this machine cannot work without it" {
		t.Error(got)
	}
}
