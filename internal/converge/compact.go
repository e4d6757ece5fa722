// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// compactKeeps is how many of the newest runs keep their records.
const compactKeeps = 16

// joinedTool is the gpuadm version of the run that joins others.
const joinedTool = "compacted"

// compact rewrites a journal that has grown: it drops runs that have nothing left to undo, and
// joins all but the newest into one run with the id of the oldest. Undos that name a run which was
// joined name that one then. compact keeps the records of an apply that was cut short, and leaves
// the journal as it is while an undo is: the next run ends that undo. A full disk does not stop the
// run.
func (j *Journal) compact(h host.Host) {
	if len(j.Records) <= compactAbove || j.Newer > 0 || j.Problem != "" {
		return
	}
	runs := j.Runs()
	cut, open := unfinished(runs)
	if open && len(cut.Undoes) > 0 {
		return
	}

	recent := recentRuns(runs)
	old := oldRuns(runs, recent)
	records := append(joinedRecords(old), j.learned(compactKeeps)...)
	hold := j.holds()
	for i, r := range j.Records {
		if r.What == "learned" {
			continue
		}
		if recent[r.Run] && r.What != "hold" || i == hold {
			r.Undoes = renamed(r.Undoes, old)
			records = append(records, r)
		}
	}

	_ = j.rewrite(h, records)
}

// joins is the run that joins others; "" if no runs were joined.
func (j *Journal) joins() string {
	if len(j.Records) == 0 || j.Records[0].Tool != joinedTool {
		return ""
	}
	return j.Records[0].Run
}

// recentRuns are the ids of the runs that keep their records.
func recentRuns(runs []Run) map[string]bool {
	recent := map[string]bool{}
	cut, open := unfinished(runs)
	for _, run := range slices.Backward(runs) {
		isOpen := open && run.ID == cut.ID
		if isOpen || !run.settled() && len(recent) < compactKeeps {
			recent[run.ID] = true
		}
	}

	// An undo of joined runs alone, which was cut short, is joined with them.
	for _, run := range runs {
		if !recent[run.ID] {
			continue
		}
		namesRecent := slices.ContainsFunc(run.Undoes, func(id string) bool {
			return recent[id]
		})
		if len(run.Undoes) == 0 || namesRecent {
			break
		}
		delete(recent, run.ID)
	}

	return recent
}

// oldRuns are the runs that are not recent and that could be undone.
func oldRuns(runs []Run, recent map[string]bool) (old []Run) {
	for _, run := range runs {
		if !recent[run.ID] && !run.settled() {
			old = append(old, run)
		}
	}
	return old
}

// renamed are the ids of runs, where those of old ones are the id of the run that joins them.
func renamed(ids []string, old []Run) (names []string) {
	isOld := idsOf(old)
	for _, id := range ids {
		if isOld[id] {
			id = old[0].ID
		}
		if len(names) == 0 || names[len(names)-1] != id { // the old ones are next to each other
			names = append(names, id)
		}
	}

	return names
}

// joinedRecords joins old runs into one run.
func joinedRecords(old []Run) (records []Record) {
	if len(old) == 0 {
		return nil
	}

	add := func(r Record) {
		r.Format = JournalFormat
		r.Run = old[0].ID
		r.Time = old[0].Time
		records = append(records, r)
	}

	all := fold(old)
	add(Record{
		What:  "begin",
		Spec:  old[0].Spec,
		Tool:  joinedTool,
		Found: foundFirst(all),
	})
	for _, o := range all {
		for _, c := range joined(o.makes) {
			add(Record{What: "make", Change: &c})
		}
	}

	add(Record{What: "end", Result: "ok"})
	return records
}

// foundFirst are the states in which the run that first touched each thing had found it.
func foundFirst(all []owned) (list []Found) {
	for _, o := range all {
		for _, f := range o.first.Found {
			if f.key() == o.key {
				list = append(list, f)
			}
		}
	}
	return list
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
