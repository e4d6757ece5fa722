// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// longHistory is a machine with a journal of so many runs, which have changed edition 1 for 2 and
// back, and 2 last. beforeLast is the tree before the last run.
func longHistory(t *testing.T, runs int) (n *simhost.Node, first, beforeLast, last string) {
	t.Helper()
	n = node(t)
	first = tree(n)
	for i := range 3 {
		apply(t, n, edition(t, 1+i%2))
	}
	beforeLast = tree(n)
	apply(t, n, edition(t, 2))
	last = tree(n)
	var each [][]byte
	for line := range bytes.Lines(written(t, n)) {
		if bytes.Contains(line, []byte(`"what":"begin"`)) {
			each = append(each, nil)
		}
		each[len(each)-1] = append(each[len(each)-1], line...)
	}

	var text bytes.Buffer
	text.Write(bytes.Join(each[:2], nil))
	for i := 2; i < runs&^1; i++ {
		again := each[2+i%2]
		_, id, _ := bytes.Cut(again, []byte(`"run":"`))
		id, _, _ = bytes.Cut(id, []byte(`"`))
		text.Write(bytes.ReplaceAll(again, append(bytes.Clone(id), '"'), fmt.Appendf(nil, `20260102T030405Z-old%d"`, i)))
	}

	put(t, n, journal, regexp.MustCompile(`,"crc32":"[0-9a-f]*"`).ReplaceAllString(text.String(), "")) // the lines are others now
	return n, first, beforeLast, last
}

func many() int {
	if testing.Short() {
		return 1000 // under the race detector
	}
	return 10_000
}

// A history of 10,000 runs is compacted by the next apply, though it has nothing to do. Then the
// last run can be undone alone, and so can all, from one by one.
func TestLongHistoryIsCompacted(t *testing.T) {
	const most = 64 << 10
	n, first, beforeLast, last := longHistory(t, many())
	runs := len(converge.ReadJournal(n).Runs())
	must.That(t, runs == many(), "the journal has %d runs", runs)
	apply(t, n, edition(t, 2))
	size := len(written(t, n))
	check.That(t, size <= most, "compacted, the journal has %d bytes", size)
	compare(t, "compacted", last, tree(n))
	undo(t, n, edition(t, 2), "")
	compare(t, "the last run undone", beforeLast, tree(n))
	undo(t, n, edition(t, 2), "")
	compare(t, "the last two runs undone", last, tree(n))
	apply(t, n, edition(t, 3))
	undo(t, n, edition(t, 3), "")
	compare(t, "a new run undone", last, tree(n))
	undo(t, n, edition(t, 2), "all")
	compare(t, "all undone", first, tree(n))
	left := blobs(n)
	check.That(t, left <= 0, "%d blobs are kept that no undo needs", left)
}

// The same where all is undone at once, and by an undo that is the one to compact.
func TestLongHistoryIsUndone(t *testing.T) {
	n, first, _, _ := longHistory(t, many())
	undo(t, n, edition(t, 2), "all")
	compare(t, "all undone", first, tree(n))
	left := blobs(n)
	check.That(t, left <= 0, "%d blobs are kept that no undo needs", left)
}

// A power cut at each touch of the compaction loses nothing.
func TestCutWhileCompacting(t *testing.T) {
	for _, loss := range []simhost.Loss{simhost.LoseAll, simhost.LoseData, simhost.LoseNothing, 1, 2} {
		cuts := 0
		for cut := 0; ; cut++ {
			n, first, beforeLast, _ := longHistory(t, 100)
			n.CutAt(n.Touches() + cut)
			_, err := edition(t, 2).Apply(context.Background(), n)
			n.Boot(loss)
			if err == nil && len(converge.ReadJournal(n).Records) < 200 {
				break
			}
			cuts++
			runs := len(converge.ReadJournal(n).Runs())
			must.That(t, runs == 100 || runs == 17, "%s, cut at touch %d: the journal has %d runs", loss, cut, runs)
			undo(t, n, edition(t, 2), "")
			compare(t, fmt.Sprintf("%s, cut at touch %d: the last run undone", loss, cut), beforeLast, tree(n))
			undo(t, n, edition(t, 2), "all")
			compare(t, fmt.Sprintf("%s, cut at touch %d: all undone", loss, cut), first, tree(n))
			must.That(t, cut <= 40, "the journal is never compacted")
		}

		check.That(t, cuts >= 3, "%s: power was cut %d times", loss, cuts)
	}
}

// What a run that was cut short may not have made is still known when the run has been compacted.
func TestCompactedRunThatWasCutShort(t *testing.T) {
	a := func(text string) converge.Want {
		return things.Exact("/srv/a", []byte(text), 0o644, "")
	}
	b := func(i int) converge.Want {
		return things.Exact("/srv/b", fmt.Appendf(nil, "%d\n", i%2), 0o644, "")
	}
	cuts := 0
	for cut := range 30 {
		n := node(t)
		first := tree(n)
		apply(t, n, engineOf(t, stage(a("a\n"))))
		n.CutAt(n.Touches() + cut)
		if _, err := engineOf(t, stage(a("a\n"))).Undo(context.Background(), n, "", nil); err == nil {
			break
		}
		cuts++
		n.Boot(simhost.LoseAll)
		apply(t, n, engineOf(t, stage(a("a\n")))) // overtakes the undo
		text := string(written(t, n))
		for i := range 120 {
			apply(t, n, engineOf(t, stage(a("a\n"), b(i))))
		}
		must.That(t, !strings.HasPrefix(string(written(t, n)), text), "the journal is not compacted")
		undo(t, n, engineOf(t, stage(a("a\n"))), "all")
		compare(t, fmt.Sprintf("undo cut at touch %d, overtaken, compacted, undone", cut), first, tree(n))
	}

	check.That(t, cuts >= 5, "power was cut %d times", cuts)
}

// edition is an engine with one stage that writes two files in one of many editions, and one file
// in some of them only.
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

// Whatever was applied, undone, cut short or failed before: each run that can still be undone has
// all its bytes, and what no run needs is not kept.
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
					must.That(t, run.ID != "all" && strings.Contains(err.Error(), "no such run"), "seed %d: undo to %s: %v", seed, run.ID, err)
					continue // it has left nothing to roll back
				}
				for _, c := range p.Changes {
					thing := must.Get(kinds(c.Ref))(t)
					if st, ok := thing.(converge.Stored); ok && c.After != "" {
						data, err := st.Bytes(n, c.After)
						must.That(t, err == nil && data != nil, "seed %d: undo to %s cannot bring %s back: %v", seed, run.ID, c, err)
					}
				}
			}
		}

		_, err := edition(t, 0).Undo(ctx, n, "all", nil)
		must.That(t, err == nil, "seed %d: %v", seed, err)
		compare(t, fmt.Sprintf("seed %d, undone", seed), first, n.Tree(converge.Home))
		left := blobs(n)
		check.That(t, left <= 0, "seed %d: %d unneeded blobs are kept", seed, left)
	}

	check.That(t, collected >= 20, "only %d runs had anything to clear away", collected)
}

// What cannot be cleared away is reported, and blocks neither apply nor undo: a bad sector under an
// old copy must not hold a machine for ever.
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
	res := apply(t, n, e)
	check.That(t, len(res.Made) == 0 && *count == 1, "made %v, told %d times", res.Made, *count)
	n.Fail(n.Touches(), syscall.EIO)
	_, err := e.Undo(ctx, n, "", nil)
	check.That(t, err == nil && *count == 2, "%v, told %d times", err, *count)
	text, _ := n.ReadFile("/srv/a")
	check.That(t, string(text) == "a 1\n", "after undo: %q", text)
}
