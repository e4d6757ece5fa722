// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// journalled finds the touch before which a change's line is on disk and the change is not made: the process is killed there.
func killedBeforeMake(t *testing.T, make func() *simhost.Node, run func(n *simhost.Node) error, name string) *simhost.Node {
	t.Helper()
	var n *simhost.Node
	for k := 0; ; k++ {
		next := make()
		text := content(next, name)
		next.CutAt(next.Touches() + k)
		if err := run(next); err == nil || !next.Off() {
			t.Fatal("not found")
		}
		next.Revive()
		if content(next, name) != text {
			return n // the one before
		}
		n = next
	}
}

func manyRuns(t *testing.T, n *simhost.Node, wants func(i int) *converge.Engine) {
	for i := range 140 {
		n.Advance(1e9)
		apply(t, n, wants(i))
	}
}

// An undo was cut before its touch and overtaken by an apply, and another process edits the file. Hundreds of runs later the journal is
// compacted: undo still takes back what was made.
func TestHostileCompactedOvertakenUndoAndAnEdit(t *testing.T) {
	k := keys{gadget{name: "/srv/keys"}}
	one := func() *converge.Engine { return gadgets(t, nil, stage(k.with("ours"))) }
	n := killedBeforeMake(t, func() *simhost.Node {
		n := node(t)
		put(t, n, "/srv/keys", "their")
		apply(t, n, one())
		n.Advance(1e9)
		return n
	}, func(n *simhost.Node) error {
		_, err := one().Undo(context.Background(), n, "", nil)
		return err
	}, "/srv/keys")
	n.Advance(1e9)
	apply(t, n, one())
	put(t, n, "/srv/keys", content(n, "/srv/keys")+" more")
	manyRuns(t, n, func(i int) *converge.Engine {
		return gadgets(t, nil, stage(k.with("ours"), things.Exact("/srv/n", []byte(fmt.Sprint(i)), 0o644, "")))
	})
	undo(t, n, one(), "all")
	if got := content(n, "/srv/keys"); got != "their more" {
		t.Errorf("undone: %q", got)
	}
}

// A run that was cut before its touch, and then closed by an apply of another stage, may not have made its last change.
func TestHostileCutRunClosedByAnotherStage(t *testing.T) {
	k := keys{gadget{name: "/srv/keys"}}
	of := func(word string) *converge.Engine { return gadgets(t, nil, stage(k.with(word))) }
	n := killedBeforeMake(t, func() *simhost.Node {
		n := node(t)
		put(t, n, "/srv/keys", "their")
		apply(t, n, of("one"))
		n.Advance(1e9)
		return n
	}, func(n *simhost.Node) error {
		_, err := of("two").Apply(context.Background(), n)
		return err
	}, "/srv/keys")
	n.Advance(1e9)
	other := gadgets(t, nil, named("runtime", things.Exact("/srv/other", nil, 0o644, "")))
	other.Before = append(of("two").Stages, other.Stages...)
	apply(t, n, other)
	put(t, n, "/srv/keys", content(n, "/srv/keys")+" more")
	n.Advance(1e9)
	undo(t, n, of("two"), "all")
	if got := content(n, "/srv/keys"); got != "their more" {
		t.Errorf("undone: %q", got)
	}
}
