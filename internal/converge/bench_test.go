// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// BenchmarkUndo plans the undo of 1,000 and of 10,000 runs, and compacts their journal: the time
// per run has to be the same. In one journal each run starts where the one before it ended; in the
// other another process has changed the chain between all runs, so nothing can be joined.
func BenchmarkUndo(b *testing.B) {
	const journal = converge.Home + "/journal.jsonl"
	for _, others := range []string{"alone", "with-others"} {
		for _, runs := range []int{1000, 10_000} {
			box := newToybox(b, states{"chain": lastBeads(others, runs)})
			must.Get(box.engine(stage("toys", box.want("block", "a", "blue"))).Apply(b.Context(), box))(b)
			records := longJournal(b, others, runs)
			must.OK(b, box.WriteFile(journal, records, host.Attr{Mode: 0o600}))
			perRun := func(b *testing.B) {
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(runs), "ns/run")
			}

			b.Run(fmt.Sprintf("plan/%s/%d", others, runs), func(b *testing.B) {
				for b.Loop() {
					p := must.Get(box.engine().PlanUndo(b.Context(), box, "all", nil))(b)
					must.That(b, len(p.Changes) == 1, "%d changes", len(p.Changes))
				}

				perRun(b)
			})
			b.Run(fmt.Sprintf("compact/%s/%d", others, runs), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					must.OK(b, box.WriteFile(journal, records, host.Attr{Mode: 0o600}))
					b.StartTimer()
					j := converge.ReadJournal(box)
					converge.Compact(&j, box)
				}

				perRun(b)
			})
		}
	}
}

// TestUndoIsLinear: with twice the runs, between which another process has changed the thing, an
// undo asks its Merger twice as often.
func TestUndoIsLinear(t *testing.T) {
	asked := func(runs int) (times int) {
		box := newToybox(t, states{"chain": lastBeads("with-others", runs)})
		box.apply(t, stage("toys", box.want("block", "a", "blue")))
		records := longJournal(t, "with-others", runs)
		must.OK(t, box.WriteFile(converge.Home+"/journal.jsonl", records, host.Attr{Mode: 0o600}))
		e := box.engine()
		e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
			return countedChain{chain{block{box, ref.Name}}, &times}, nil
		}
		must.Get(e.PlanUndo(t.Context(), box, "all", nil))(t)
		return times
	}

	once := asked(50)
	twice := asked(100)
	check.That(t, once >= 50 && twice <= 2*once+2, "of 50 runs it is asked %d times, of 100 %d times", once, twice)
}

// A countedChain is a chain that counts how often it is asked to take out beads.
type countedChain struct {
	chain
	times *int
}

func (k countedChain) TakeOut(
	v host.View, found, before, after converge.State,
) (rest converge.State, left []string, err error) {
	*k.times++
	return k.chain.TakeOut(v, found, before, after)
}

// longJournal is the journal of so many runs, each of which has given the chain another bead.
func longJournal(t testing.TB, others string, runs int) []byte {
	var text bytes.Buffer
	add := func(r converge.Record) {
		r.Format = converge.JournalFormat
		r.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		text.Write(must.Get(json.Marshal(r))(t))
		text.WriteByte('\n')
	}

	for i := range runs {
		id := fmt.Sprintf("20260102T030405Z-%d", i)
		before := converge.State(fmt.Sprintf("mine-%d", i-1))
		if others == "with-others" {
			before = converge.State(fmt.Sprintf("others-%d", i))
		}
		change := &converge.Change{
			Stage:  "toys",
			Ref:    converge.Ref{Kind: "chain", Name: "chain"},
			Before: before,
			After:  converge.State(fmt.Sprintf("mine-%d", i)),
		}
		if others == "with-others" {
			change.After = change.Before + ",mine"
		}
		add(converge.Record{What: "begin", Run: id})
		add(converge.Record{What: "make", Run: id, Change: change})
		add(converge.Record{What: "end", Run: id, Result: "ok"})
	}

	return text.Bytes()
}

// lastBeads is the chain as it is found after so many runs.
func lastBeads(others string, runs int) converge.State {
	if others == "alone" {
		return converge.State(fmt.Sprintf("mine-%d", runs-1))
	}
	return converge.State(fmt.Sprintf("others-%d,mine", runs))
}
