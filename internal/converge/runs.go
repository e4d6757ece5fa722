// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"slices"
)

// Runs returns the journal's runs, oldest first.
func (j Journal) Runs() []Run {
	var runs []Run
	at := map[string]int{}
	halfUndos := map[int]bool{}
	for n, r := range j.Records {
		i, known := at[r.Run]
		if !known {
			if slices.Contains([]string{"hold", "lift", "learned"}, r.What) {
				continue
			}
			i = len(runs)
			at[r.Run] = i
			if len(r.Undoes) > 0 {
				halfUndos[i] = true
			}
			runs = append(runs, Run{
				ID:     r.Run,
				Time:   r.Time,
				Spec:   r.Spec,
				Undoes: r.Undoes,
				Repair: r.Repair,
				Leave:  r.Leave,
				Found:  r.Found,
			})
		}

		if n > 0 {
			runs[i].Took = runs[i].Took.with(j.Records[n-1], r)
		}
		runs[i].add(r)
		if r.What == "end" && r.Result == "ok" {
			delete(halfUndos, i)
			settleUndone(runs, at, runs[i].Undoes, halfUndos)
		}
	}

	return runs
}

// add notes a record of the run.
func (r *Run) add(rec Record) {
	switch rec.What {
	case "begin":
		r.Result = "" // continued
	case "make":
		if rec.Result == resumed { // the last change of each thing may not have been made
			for i := range r.Makes {
				r.Makes[i].Unsure = true
			}
		}

		r.Makes = append(r.Makes, *rec.Change)
	case "end":
		r.Result = rec.Result
		r.Ended = rec.Time
	}
}

// settleUndone marks runs as undone. What failed undos had left of these runs is undone with them:
// the parts of an undo that named other runs too, or all of it.
func settleUndone(runs []Run, at map[string]int, ids []string, halfUndos map[int]bool) {
	if len(ids) == 0 {
		return
	}

	undone := map[key]bool{}
	for _, id := range ids {
		i, known := at[id]
		if !known {
			continue
		}
		runs[i].Undone = true
		for _, c := range runs[i].Makes {
			undone[c.key()] = true
		}
	}

	isLeft := func(id string) bool {
		i, known := at[id]
		return known && !runs[i].settled()
	}

	for i := range halfUndos {
		run := &runs[i]
		switch {
		case !overlap(run.Undoes, ids):
		case !slices.ContainsFunc(run.Undoes, isLeft):
			run.Makes = nil
		default:
			run.Makes = slices.DeleteFunc(run.Makes, func(c Change) bool {
				return undone[c.key()]
			})
		}
	}
}

// unfinished returns the last run if it has no end.
func (j Journal) unfinished() (Run, bool) { return unfinished(j.Runs()) }

// CutShort returns the last run if it has changed something and has no end: a crash, a power cut or
// a signal has ended it, or it waits for what passes. A run that waits for a reboot is
// not cut short.
func (j Journal) CutShort(boot string) (run Run, cut bool) {
	run, open := j.unfinished()
	waits := func(r Record) bool { return r.Run == run.ID && r.What == "reboot" && r.Boot == boot }
	if !open || len(run.Makes) == 0 || slices.ContainsFunc(j.Records, waits) {
		return Run{}, false
	}
	return run, true
}

// asksForReboot returns the things whose changes have asked for a reboot in this boot. A run that
// was undone asks for none.
func (j Journal) asksForReboot(boot string) map[key]bool {
	asks := map[key]bool{}
	undone := func(r Run) bool { return r.Undone }
	remaining := idsOf(slices.DeleteFunc(j.Runs(), undone))
	for _, r := range j.Records {
		if r.What == "reboot" && r.Boot == boot && remaining[r.Run] {
			asks[r.Change.key()] = true
		}
	}

	return asks
}

func unfinished(runs []Run) (Run, bool) {
	if len(runs) == 0 || runs[len(runs)-1].Result != "" {
		return Run{}, false
	}
	return runs[len(runs)-1], true
}

// present folds runs into gpuadm's changes that are on the machine.
func present(runs []Run) []owned {
	return fold(slices.DeleteFunc(slices.Clone(runs), Run.settled))
}

// idsOf is the set of the runs' ids.
func idsOf(runs []Run) map[string]bool {
	ids := map[string]bool{}
	for _, run := range runs {
		ids[run.ID] = true
	}
	return ids
}

// Repairing is the code of the fault that a repair was to fix which was cut short; "" if none was.
func (j Journal) Repairing() string {
	cut, _ := j.unfinished()
	return cut.Repair
}

// settled says that nothing of the run is left to undo: another run undid it, it rolled itself
// back, or it undid others.
func (r Run) settled() bool {
	undidOthers := len(r.Undoes) > 0 && r.Result == "ok"
	return r.Undone || undidOthers || !r.changed()
}

// changed says whether the run has left anything that could be undone.
func (r Run) changed() bool {
	return slices.ContainsFunc(fold([]Run{r}), func(o owned) bool { return o.present() })
}

// countChanged counts the things that are not as before the run, restarts included, and those that
// the run may not have changed.
func (r Run) countChanged() int {
	before := map[key]State{}
	differs := map[key]bool{}
	for _, c := range r.Makes {
		is := c.key()
		if _, again := before[is]; !again {
			before[is] = c.Before
		}

		if c.After == before[is] { // rolled back
			delete(differs, is)
		} else {
			differs[is] = true
		}
	}

	return len(differs)
}

// restores says whether undo would restore anything of the run.
func (r Run) restores() bool {
	return slices.ContainsFunc(fold([]Run{r}), func(o owned) bool {
		return o.Keeps == "" && o.present()
	})
}

// in is the run with its changes of some stages alone.
func (r Run) in(of func(stage string) bool) Run {
	r.Makes = slices.DeleteFunc(slices.Clone(r.Makes), func(c Change) bool {
		return !of(c.Stage)
	})
	return r
}

// stages are those whose changes of this run remain.
func (r Run) stages() (list []string) {
	for _, o := range fold([]Run{r}) {
		if !o.restored() {
			list = appendUnique(list, o.Stage)
		}
	}
	return list
}

// rollingBack says whether the run was about to restore a thing that it had changed.
func (r Run) rollingBack() bool {
	return slices.ContainsFunc(fold([]Run{r}), func(o owned) bool {
		last := len(o.makes) - 1
		return o.makes[last].Before == o.After || knows(o.makes[:last], o.After)
	})
}

// firstState is the state of a thing before the first change of it in some runs; "" if they do not
// have it.
func firstState(runs []Run, of key) State {
	for _, run := range runs {
		for _, c := range run.Makes {
			if c.key() == of {
				return c.Before
			}
		}
	}
	return ""
}

// interrupted is what a Follower interrupted when one of the runs made it: its undo interrupts the
// same.
func interrupted(runs []Run, follower key) (breaks []string) {
	for _, run := range slices.Backward(runs) {
		for _, c := range run.Makes {
			if c.key() == follower && len(c.Breaks) > 0 {
				return c.Breaks
			}
		}
	}
	return nil
}
