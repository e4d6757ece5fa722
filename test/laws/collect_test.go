// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// edition is an engine with one stage that writes two files in one of many editions, and one file in some of them only.
func edition(t testing.TB, n int) *converge.Engine {
	wants := []converge.Want{
		things.Exact("/srv/a", fmt.Appendf(nil, "a %d\n", n), 0o644, ""),
		things.Exact("/srv/b", fmt.Appendf(nil, "b %d\n", n/2), 0o600, ""),
	}
	if n%3 == 0 {
		wants = append(wants, things.Exact("/srv/c", fmt.Appendf(nil, "c %d\n", n), 0o644, ""))
	}
	return engineOf(t, stage(wants...))
}

func blobs(n *simhost.Node) int {
	names, _ := n.ReadDir(converge.Home + "/blobs")
	return len(names)
}

func put(t testing.TB, n *simhost.Node, name, text string) {
	t.Helper()
	must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o600}))
}

// Whatever was applied, undone, cut short or failed before: each run that can still be undone has all its bytes, and what no
// run needs is not kept.
func TestCollectLeavesWhatUndoNeeds(t *testing.T) {
	ctx := context.Background()
	collected := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 4))
		n := node(t)
		if seed%2 == 0 {
			put(t, n, "/srv/a", "theirs\n")
		}
		first := n.Tree(converge.Home)
		for range 12 {
			had := blobs(n)
			e := edition(t, r.IntN(8))
			switch r.IntN(5) {
			case 0:
				n.CutAt(n.Touches() + r.IntN(12))
				e.Apply(ctx, n)
				n.Revive()
			case 1:
				e.Undo(ctx, n, "", nil)
			default:
				apply(t, n, e)
			}
			if blobs(n) < had {
				collected++
			}
			j := must.Get(converge.ReadJournal(n), error(nil))(t)
			for _, run := range append(j.Runs(), converge.Run{ID: "all"}) {
				if run.Undone || len(run.Undoes) > 0 {
					continue
				}
				p, err := e.PlanUndo(ctx, n, run.ID, nil)
				if err != nil {
					if run.ID == "all" || !strings.Contains(err.Error(), "no such run") {
						t.Fatalf("seed %d: undo to %s: %v", seed, run.ID, err)
					}
					continue // it has left nothing to roll back
				}
				for _, c := range p.Changes {
					thing := must.Get(kinds(c.Ref))(t)
					if st, ok := thing.(converge.Stored); ok && c.After != "" {
						if data, err := st.Bytes(n, c.After); err != nil || data == nil {
							t.Fatalf("seed %d: undo to %s cannot bring %s back: %v", seed, run.ID, c, err)
						}
					}
				}
			}
		}
		if _, err := edition(t, 0).Undo(ctx, n, "all", nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		compare(t, fmt.Sprintf("seed %d, undone", seed), first, n.Tree(converge.Home))
		if left := blobs(n); left > 0 {
			t.Errorf("seed %d: %d unneeded blobs are kept", seed, left)
		}
	}
	if collected < 20 {
		t.Errorf("only %d runs had anything to clear away", collected)
	}
}

// What cannot be cleared away is reported, and blocks neither apply nor undo: a bad sector under an old copy must
// not hold a machine for ever.
func TestCollectThatFailsIsReportedAndRefusesNothing(t *testing.T) {
	ctx := context.Background()
	n := node(t)
	apply(t, n, edition(t, 1))
	apply(t, n, edition(t, 2))
	stray := converge.Home + "/blobs/" + strings.Repeat("ab", 32)
	put(t, n, stray, "no record names it")
	warnings := func(e *converge.Engine) *int {
		count := 0
		e.Tell = func(ev converge.Event) {
			if ev.What == converge.Remains && strings.Contains(ev.Text, stray) && strings.Contains(ev.Text, "input/output error") {
				count++
			}
		}
		return &count
	}
	e := edition(t, 2)
	count := warnings(e)
	n.Fail(n.Touches(), syscall.EIO)
	if res := apply(t, n, e); len(res.Made) > 0 || *count != 1 {
		t.Errorf("made %v, told %d times", res.Made, *count)
	}
	n.Fail(n.Touches(), syscall.EIO)
	if _, err := e.Undo(ctx, n, "", nil); err != nil || *count != 2 {
		t.Errorf("%v, told %d times", err, *count)
	}
	if text, _ := n.ReadFile("/srv/a"); string(text) != "a 1\n" {
		t.Errorf("after undo: %q", text)
	}
}
