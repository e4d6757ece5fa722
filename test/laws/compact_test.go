// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// longHistory is a machine with a journal of so many runs, which have changed edition 1 for 2 and back, and 2 last. beforeLast is the
// tree before the last run.
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
	put(t, n, journal, text.String())
	return n, first, beforeLast, last
}

func many() int {
	if testing.Short() {
		return 1000 // under the race detector
	}
	return 10_000
}

// A history of 10,000 runs is compacted by the next apply, though it has nothing to do. Then the last run can be undone alone, and
// so can all, from one by one.
func TestLongHistoryIsCompacted(t *testing.T) {
	const most = 64 << 10
	n, first, beforeLast, last := longHistory(t, many())
	if runs := len(converge.ReadJournal(n).Runs()); runs != many() {
		t.Fatalf("the journal has %d runs", runs)
	}
	apply(t, n, edition(t, 2))
	if size := len(written(t, n)); size > most {
		t.Errorf("compacted, the journal has %d bytes", size)
	}
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
	if left := blobs(n); left > 0 {
		t.Errorf("%d blobs are kept that no undo needs", left)
	}
}

// The same where all is undone at once, and by an undo that is the one to compact.
func TestLongHistoryIsUndone(t *testing.T) {
	n, first, _, _ := longHistory(t, many())
	undo(t, n, edition(t, 2), "all")
	compare(t, "all undone", first, tree(n))
	if left := blobs(n); left > 0 {
		t.Errorf("%d blobs are kept that no undo needs", left)
	}
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
			if runs := len(converge.ReadJournal(n).Runs()); runs != 100 && runs != 17 {
				t.Fatalf("%s, cut at touch %d: the journal has %d runs", loss, cut, runs)
			}
			undo(t, n, edition(t, 2), "")
			compare(t, fmt.Sprintf("%s, cut at touch %d: the last run undone", loss, cut), beforeLast, tree(n))
			undo(t, n, edition(t, 2), "all")
			compare(t, fmt.Sprintf("%s, cut at touch %d: all undone", loss, cut), first, tree(n))
			if cut > 40 {
				t.Fatal("the journal is never compacted")
			}
		}
		if cuts < 3 {
			t.Errorf("%s: power was cut %d times", loss, cuts)
		}
	}
}

// What a run that was cut short may not have made is still known when the run has been compacted.
func TestCompactedRunThatWasCutShort(t *testing.T) {
	a := func(text string) converge.Want { return things.Exact("/srv/a", []byte(text), 0o644, "") }
	b := func(i int) converge.Want { return things.Exact("/srv/b", fmt.Appendf(nil, "%d\n", i%2), 0o644, "") }
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
		if now := string(written(t, n)); strings.HasPrefix(now, text) {
			t.Fatal("the journal is not compacted")
		}
		undo(t, n, engineOf(t, stage(a("a\n"))), "all")
		compare(t, fmt.Sprintf("undo cut at touch %d, overtaken, compacted, undone", cut), first, tree(n))
	}
	if cuts < 5 {
		t.Errorf("power was cut %d times", cuts)
	}
}
