// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

const (
	compactAbove = 256 // a journal with more records is compacted when a run starts
	compactKeeps = 16  // so many of the newest runs keep their records
)

// compact rewrites a journal that has grown: it drops runs that have nothing left to undo, and
// joins all but the newest into one run with the id of the oldest. It keeps the records of a run
// that was cut short. A full disk does not stop the run.
func (j *Journal) compact(h host.Host) {
	if len(j.Records) <= compactAbove || j.Newer > 0 || j.Problem != "" {
		return
	}

	recent := j.recentRuns()
	records := joinedRecords(j.Runs(), recent)
	hold := j.holds()
	for i, r := range j.Records {
		if recent[r.Run] && r.What != "hold" || i == hold {
			records = append(records, r)
		}
	}
	_ = j.rewrite(h, records)
}

// recentRuns are the ids of the runs that keep their records.
func (j *Journal) recentRuns() map[string]bool {
	recent := map[string]bool{}
	last, open := j.unfinished()
	for _, run := range slices.Backward(j.Runs()) {
		unfinished := open && run.ID == last.ID
		if unfinished || !run.settled() && len(recent) < compactKeeps {
			recent[run.ID] = true
		}
	}
	return recent
}

// joinedRecords joins the runs that are not recent and that could be undone into one run.
func joinedRecords(runs []Run, recent map[string]bool) (records []Record) {
	var old []Run
	for _, run := range runs {
		if !recent[run.ID] && !run.settled() {
			old = append(old, run)
		}
	}
	if len(old) == 0 {
		return nil
	}

	add := func(r Record) {
		r.Format = JournalFormat
		r.Run = old[0].ID
		r.Time = old[0].Time
		records = append(records, r)
	}
	add(Record{What: "begin", Spec: old[0].Spec, Tool: "compacted"})
	for _, o := range fold(old) {
		for _, c := range joined(o.makes) {
			add(Record{What: "make", Change: &c})
		}
	}
	add(Record{What: "end", Result: "ok"})
	return records
}

// joined merges consecutive changes of a thing, where each starts at the After of the one before.
// It does not merge a change that may not have been made, nor the change before that, nor the last.
func joined(makes []Change) (list []Change) {
	for i, c := range makes {
		n := len(list)
		continues := n > 0 && list[n-1].After == c.Before
		sure := n > 0 && !list[n-1].Unsure && !c.Unsure
		last := i == len(makes)-1
		if continues && sure && !last {
			list[n-1].After = c.After
		} else {
			list = append(list, c)
		}
	}
	return list
}
