// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Run is what the journal says of one run.
type Run struct {
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Ended  time.Time `json:"ended,omitzero"`
	Spec   string    `json:"spec"`
	Undoes []string  `json:"undoes,omitempty"`
	Repair string    `json:"repair,omitempty"` // the code of the fault that it repairs
	Leave  []string  `json:"leave,omitempty"`
	Result string    `json:"result,omitempty"` // ok, failed, overtaken; "" = unfinished
	Undone bool      `json:"undone,omitempty"`
	Makes  []Change  `json:"changes,omitempty"`
	Took   Times     `json:"took,omitempty"`
}

// Took is how long the changes of a stage took in a run.
type Took struct {
	Stage  string `json:"stage"`
	Millis int64  `json:"ms"`
}

// Times say where the time of a run went, in the order of its stages.
type Times []Took

// String is "driver 95.2 s, runtime 1.3 s".
func (t Times) String() string {
	var all []string
	for _, one := range t {
		all = append(all, fmt.Sprintf("%s %.1f s", one.Stage, float64(one.Millis)/1000))
	}
	return strings.Join(all, ", ")
}

// with is t with the time between two records.
func (t Times) with(from, to Record) Times {
	ms, n := spent(from, to), len(t)-1
	switch {
	case ms <= 0:
		return t
	case n >= 0 && t[n].Stage == from.Change.Stage:
		t[n].Millis += ms
		return t
	}
	return append(t, Took{from.Change.Stage, ms})
}

// spent is how many milliseconds the change of a record took: until the next record. A time during
// which gpuadm was not at work, such as a reboot, does not count.
func spent(from, to Record) int64 {
	if from.What != "make" || from.Run != to.Run || to.What == "begin" || to.Result == resumed {
		return 0
	}
	return to.Time.Sub(from.Time).Milliseconds()
}

// usual is how many milliseconds the longest change of the same kind took in the last run that
// succeeded and made one; 0 if none has.
func (j Journal) usual(c Change) (longest int64) {
	run, ok := "", ""
	for i := len(j.Records) - 1; i > 0; i-- {
		from, to := j.Records[i-1], j.Records[i]
		if to.What == "end" && to.Result == "ok" {
			ok = to.Run
		}
		alike := from.What == "make" && from.Run == ok && from.Change.Kind == c.Kind && from.Change.Stage == c.Stage && (from.Change.After == "") == (c.After == "")
		if alike && cmp.Or(run, ok) == ok {
			run, longest = ok, max(longest, spent(from, to))
		}
	}
	return longest
}

// Runs returns the journal's runs, oldest first.
func (j Journal) Runs() []Run {
	var runs []Run
	at := map[string]int{}
	for n, r := range j.Records {
		i, ok := at[r.Run]
		if !ok {
			if r.What == "hold" || r.What == "lift" {
				continue
			}
			i, at[r.Run] = len(runs), len(runs)
			runs = append(runs, Run{ID: r.Run, Time: r.Time, Spec: r.Spec, Undoes: r.Undoes, Repair: r.Repair, Leave: r.Leave})
		}
		if n > 0 {
			runs[i].Took = runs[i].Took.with(j.Records[n-1], r)
		}
		switch run := &runs[i]; r.What {
		case "begin":
			run.Result = "" // continued
		case "make":
			if r.Result == resumed { // the last change of each thing may not have been made
				for k := range run.Makes {
					run.Makes[k].Unsure = true
				}
			}
			run.Makes = append(run.Makes, *r.Change)
		case "end":
			run.Result, run.Ended = r.Result, r.Time
			if r.Result != "ok" {
				break
			}
			undone := map[key]bool{}
			for _, id := range run.Undoes {
				if i, ok := at[id]; ok {
					runs[i].Undone = true
					for _, c := range runs[i].Makes {
						undone[c.key()] = true
					}
				}
			}
			for k := range runs { // what failed undos had left of these runs is undone with them
				if runs[k].Result != "ok" && overlap(runs[k].Undoes, run.Undoes) {
					runs[k].Makes = slices.DeleteFunc(runs[k].Makes, func(c Change) bool { return undone[c.key()] })
				}
			}
		}
	}
	return runs
}

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// settled says that nothing of the run is left to undo: another run undid it, it rolled itself
// back, or it undid others.
func (r Run) settled() bool {
	return r.Undone || len(r.Undoes) > 0 && r.Result == "ok" || !r.changed()
}

// changed says whether a run has left anything that could be undone.
func (r Run) changed() bool {
	return slices.ContainsFunc(fold([]Run{r}), func(o ours) bool { return o.unsure() || !o.restored() })
}

// countChanged counts the things that are not as before the run, restarts included, and a change
// that the run may not have made.
func (r Run) countChanged() int {
	before, differs := map[key]State{}, map[key]bool{}
	for _, c := range r.Makes {
		if _, again := before[c.key()]; !again {
			before[c.key()] = c.Before
		}
		if differs[c.key()] = true; c.After == before[c.key()] { // rolled back
			delete(differs, c.key())
		}
	}
	return len(differs)
}

// restores says whether undo would restore anything of it.
func (r Run) restores() bool {
	return slices.ContainsFunc(fold([]Run{r}), func(o ours) bool { return o.Keeps == "" && (o.unsure() || !o.restored()) })
}

// in is the run with its changes of some stages alone.
func (r Run) in(of func(stage string) bool) Run {
	r.Makes = slices.DeleteFunc(slices.Clone(r.Makes), func(c Change) bool { return !of(c.Stage) })
	return r
}

// stages are those whose changes of this run remain.
func (r Run) stages() (list []string) {
	for _, o := range fold([]Run{r}) {
		if !o.restored() {
			list = also(list, o.Stage)
		}
	}
	return list
}

// rollingBack says whether a run was about to restore a thing that it had changed.
func (r Run) rollingBack() bool {
	return slices.ContainsFunc(fold([]Run{r}), func(o ours) bool {
		last := len(o.makes) - 1
		return o.makes[last].Before == o.After || knows(o.makes[:last], o.After)
	})
}

// ours is what gpuadm has done to one thing.
type ours struct {
	Change // the last one, as journalled
	is     key
	makes  []Change // all of them; Unsure: may not have been made, since its run was cut short
	first  *Run     // which run touched it first
	last   *Run     // and last
}

// present folds runs into gpuadm's changes that are on the machine.
func present(runs []Run) []ours {
	return fold(slices.DeleteFunc(slices.Clone(runs), Run.settled))
}

// makesOf returns gpuadm's changes to a thing; nil if there are none.
func makesOf(all []ours, is key) []Change {
	for i := range all {
		if all[i].is == is {
			return all[i].makes
		}
	}
	return nil
}

// leftOf lists the states in which changes may have left a thing: the last, and the one before each
// that may not have been made.
func leftOf(makes []Change) (left []State) {
	for _, c := range slices.Backward(makes) {
		if left = append(left, c.After); !c.Unsure {
			break
		}
	}
	if len(left) == 0 {
		return []State{""}
	}
	return left
}

// fold groups the runs' changes by thing, in the order of the first touch. A thing was touched
// after the things that it needs, so undo reverts it before them, even if they were changed again
// later. fold skips Followers: they have nothing to undo.
func fold(runs []Run) (list []ours) {
	at := map[key]int{}
	for r := range runs {
		run := &runs[r]
		for _, c := range run.Makes {
			if c.Follows {
				continue
			}
			is := c.key()
			i, ok := at[is]
			if !ok {
				i, at[is] = len(list), len(list)
				list = append(list, ours{is: is, first: run})
			}
			if len(c.Brings) == 0 { // the change was to the package's mark alone
				c.Brings = list[i].Brings
			}
			list[i].Change, list[i].last = c, run
			c.Unsure = c.Unsure || run.Result == "" || run.Result == overtaken
			list[i].makes = append(list[i].makes, c)
		}
	}
	return list
}

// unsure says that the last change may not have been made.
func (o *ours) unsure() bool { return o.makes[len(o.makes)-1].Unsure }

// restored says that the thing has its first Before again, as far as the journal knows.
func (o *ours) restored() bool {
	s := o.After
	for _, c := range slices.Backward(o.makes) {
		switch s {
		case c.After:
			s = c.Before
		case c.Before:
		default:
			return false // it was changed outside gpuadm meanwhile
		}
	}
	return s == o.After
}

// A Status says what is converged and what is not, and since when.
type Status struct {
	Plan
	Runs       []Run  `json:"runs"`                  // the runs that changed something, oldest first
	Made       []Mark `json:"made"`                  // what gpuadm has made on the machine
	Held       string `json:"held,omitempty"`        // the run whose undo holds unattended applies
	Unfinished string `json:"unfinished,omitempty"`  // the run that a crash, a reboot or a signal cut short
	InProgress bool   `json:"in_progress,omitempty"` // or that is still at work
	Undoing    bool   `json:"undoing,omitempty"`     // and it was an undo
	Repairing  string `json:"repairing,omitempty"`   // and it was a repair: the code of the fault
	Torn       int    `json:"torn,omitempty"`        // the journal's last line, where a power cut has torn it
	Damaged    []int  `json:"damaged,omitempty"`     // the journal's lines that cannot be read otherwise
	Damage     string `json:"damage,omitempty"`      // what of the journal cannot be read, and what to do about it
}

// Mark is one thing that gpuadm has made, and whether it is still as gpuadm left it.
type Mark struct {
	Stage    string    `json:"stage"`
	Kind     string    `json:"kind"`
	Name     string    `json:"name"`
	Run      string    `json:"run"`
	Since    time.Time `json:"since"`
	Left     time.Time `json:"left"`               // when the last run that touched it ended
	Changed  bool      `json:"changed,omitempty"`  // it is in a state that was never gpuadm's: changed outside gpuadm
	Reverted bool      `json:"reverted,omitempty"` // it is as before gpuadm: a reboot can do that, or a run that was cut short
	State    State     `json:"-"`                  // it has now
	Unseen   string    `json:"unseen,omitempty"`   // why its state could not be read
	Released bool      `json:"released,omitempty"` // the spec no longer has its section: it stays until undo
	Drift    *Change   `json:"drift,omitempty"`    // if Changed or Reverted: from gpuadm's state to the state found
}

// Pending is Status without Made: that would look at the Node object too, and a gate must not wait
// for an API server.
func (e *Engine) Pending(ctx context.Context, v host.View) (s Status, err error) {
	j := ReadJournal(v)
	s = Status{Held: j.Held(), Torn: j.Torn, Damaged: j.Damaged, Damage: j.damage(v), Runs: []Run{}, Made: []Mark{}}
	if last, open := j.unfinished(); open {
		s.Unfinished, s.Undoing, s.Repairing = last.ID, len(last.Undoes) > 0, last.Repair
	}
	for _, run := range j.Runs() {
		if len(run.Makes) > 0 {
			s.Runs = append(s.Runs, run)
		}
	}
	f, err := e.Facts(ctx, v)
	if err == nil {
		s.Plan, err = e.shown(ctx, v, j, f)
	}
	return s, err
}

// Status looks at everything and touches nothing.
func (e *Engine) Status(ctx context.Context, v host.View) (Status, error) {
	v = view.Snapshot(v)
	s, err := e.Pending(ctx, v)
	if err != nil {
		return s, err
	}
	j, boot := ReadJournal(v), s.Host.Facts.BootID
	for _, o := range present(s.Runs) {
		if o.restored() {
			continue
		}
		m := Mark{Stage: o.Stage, Kind: o.Kind, Name: o.Name, Run: o.first.ID, Since: o.first.Time, Left: cmp.Or(o.last.Ended, o.last.Time)}
		t, err := e.ThingOf(o.Ref) // fails where a newer gpuadm made it
		if err == nil {
			m.State, err = t.Look(ctx, v)
		}
		if err != nil {
			m.Unseen = err.Error()
		} else if left := o.After; m.State != left && !(knows(o.makes, m.State) && j.waitsForReboot(boot, o.is)) {
			m.Reverted = knows(o.makes, m.State)
			m.Changed = !m.Reverted
			drift := step{Change: Change{Stage: o.Stage, Ref: Ref{Kind: o.Kind, Name: o.Name}, Before: left, After: m.State}, want: Want{Thing: t}}.show(v)
			m.Drift = &drift
		}
		m.Released = spec.IsSection(o.section()) && !e.Spec.Has(o.section())
		s.Made = append(s.Made, m)
	}
	slices.SortStableFunc(s.Made, func(a, b Mark) int { return e.order(a.Stage) - e.order(b.Stage) })
	return s, nil
}

// waitsForReboot says whether a change has asked for a reboot in this boot: until then the thing is
// as gpuadm left it.
func (j Journal) waitsForReboot(boot string, is key) bool {
	return slices.ContainsFunc(j.Records, func(rec Record) bool { return rec.What == "reboot" && rec.Boot == boot && rec.Change.key() == is })
}

func (e *Engine) order(stage string) int {
	return slices.IndexFunc(e.Stages, func(s Stage) bool { return s.Name == stage })
}
