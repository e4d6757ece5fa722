// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/must"
)

// Beside partitions that were made outside gpuadm ours alone go.
func TestTakeOut(t *testing.T) {
	state := func(text string) converge.State {
		s := must.Get(ParseState(text))(t)
		return converge.State(s.String())
	}
	const ours, theirs, old = " 3g.20gb@0", " 1g.5gb@6", " 2g.10gb@4"
	for name, c := range map[string]struct{ found, before, after, rest, left string }{
		"lost by a reboot":   {"on", "off", "on" + ours, "off", ""},
		"beside theirs":      {"on" + ours + theirs, "on", "on" + ours, "on" + theirs, ""},
		"of another mode":    {"on" + ours + theirs, "off", "on" + ours, "on" + theirs, "GPU a has "},
		"of another layout":  {"on" + ours + theirs, "on" + old, "on" + ours, "on" + theirs, "GPU a has "},
		"of the same layout": {"on" + ours + old + theirs, "on" + old, "on" + ours + old, "on" + old + theirs, ""},
	} {
		rest, left, err := gpu{"a", nil}.TakeOut(nil, state(c.found), state(c.before), state(c.after))
		problems := strings.Join(left, "\n")
		if err != nil || rest != state(c.rest) || (problems == "") != (c.left == "") || !strings.HasPrefix(problems, c.left) {
			t.Errorf("%s: %q, left %q, %v", name, rest, left, err)
		}
	}
}
