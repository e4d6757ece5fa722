// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// run is one apply or undo at work.
type run struct {
	engine  *Engine
	host    host.Host
	journal Journal
	id      string
	boot    string       // the kernel's boot id
	facts   *facts.Facts // gathered since this run last changed something; nil: not yet
	first   *facts.Facts // from before the run's first change; nil where another process began the run
	found   []Found      // the states of Perishable things before the run's first change
	result  Result

	cut  Run  // the last run, if it has no end
	open bool // whether such a run exists

	stage string // the name of the stage at work
	// doing is Made, Undone, or RolledBack: a failed stage is rolled back without consent, and does
	// not stop at a full disk.
	doing  What
	undoTo string   // the arguments of an undo: up to which run,
	leave  []string // and which things stay
	unmade []key    // files that could not be written: each has its Before, so its Followers are not affected

	// unsure: a write to the journal failed. Its line may be in the file or not, and its change may
	// not have been made.
	unsure bool
	// makeResult is the Result of the next make record: resumed for the first one of a run that
	// continues one cut short; else "".
	makeResult string
}

// resume takes the machine's run lock, reads its journal, removes what a killed run left half made,
// and notes which run was cut short. Every run begins here, and calls the returned function last:
// it reports what of the journal cannot be read, at the end of the output where an operator sees
// it, and unlocks. Without the lock nothing is touched.
func (e *Engine) resume(h host.Host) (*run, func(), error) {
	unlock, err := h.Lock()
	if err != nil {
		return nil, nil, err
	}

	e.validated.Clear() // a Validator that did not answer in the last run may answer now
	r := &run{
		engine:  e,
		host:    h,
		journal: ReadJournal(h),
		boot:    host.BootID(h),
		doing:   Made,
	}
	if r.journal.Refused != nil {
		unlock()
		return nil, nil, r.journal.Refused
	}

	end := unlock
	damage := r.journal.Damage(h)
	if damage != "" {
		end = func() {
			// Compacting changes the numbers of the lines.
			now := ReadJournal(h).Damage(h)
			r.event(Event{What: Damaged, Text: cmp.Or(now, damage)})
			unlock()
		}
	}

	r.sweep()
	if r.journal.Torn > 0 {
		text := fmt.Sprintf("a power cut has torn line %d of %s; its change was not made", r.journal.Torn, journalFile)
		r.event(Event{What: Healed, Text: text})
		_ = r.journal.rewrite(h, r.journal.Records) // where the disk is full, the next run does it
	}

	r.journal.compact(h)
	r.cut, r.open = r.journal.unfinished()
	return r, end, nil
}

// rememberFolder has what a run remembers until the next boot.
const rememberFolder = "/run"

// sweep removes temporary files, which a killed run may have left in gpuadm's own folders and next
// to what it was making. A folder that cannot be swept is no reason to stop.
func (r *run) sweep() {
	if r.journal.Newer > 0 {
		return
	}

	for _, folder := range append(r.foldersToSweep(), Home, blobsFolder, rememberFolder) {
		if err := r.host.Sweep(folder); err != nil {
			r.event(Event{What: Remains, Text: err.Error()})
		}
	}

	r.sweepPlaceholders()
}

// sweepPlaceholders removes what a killed bake has left, on an image or on the build
// machine itself.
func (r *run) sweepPlaceholders() {
	for _, name := range host.Placeholders(r.host) {
		if err := r.host.Remove(name); err != nil {
			r.event(Event{What: Remains, Text: err.Error()})
		}
	}
}

// foldersToSweep are the folders that runs have written to, back to the last run that succeeded: a
// failing disk may have kept later runs from sweeping.
func (r *run) foldersToSweep() (folders []string) {
	swept := false
	for _, run := range slices.Backward(r.journal.Runs()) {
		swept = run.Result == "ok"
		if swept {
			break
		}
		folders = append(folders, systemd.LinkFolders(r.host)...)
		for _, c := range run.Makes {
			if !strings.HasPrefix(c.Name, "/") {
				continue
			}
			folders = append(folders, path.Dir(c.Name))
			if name, err := r.host.Resolve(c.Name); err == nil {
				folders = append(folders, path.Dir(name))
			}
		}
	}

	slices.Sort(folders)
	folders = slices.Compact(folders)
	if !swept { // gpuadm may have been killed while it made the journal's own folder
		folders = append(folders, "/", "/var", path.Dir(Home))
	}
	return folders
}

// begin opens the run; due counts the changes that an undo has to make.
func (r *run) begin(undoes []string, due int, leave ...string) error {
	if err := r.mayWrite(); err != nil {
		return err
	}
	if r.continues(undoes) {
		r.id = r.cut.ID
		r.found = r.cut.Found
		r.result.Run = r.cut.ID
		r.makeResult = resumed
		r.event(Event{
			What:   Began,
			Text:   "continues",
			Undoes: undoes,
			Count:  due,
		})
		return nil
	}

	if r.open { // another kind of run overtakes it
		if err := r.write(Record{What: "end", Run: r.cut.ID, Result: overtaken}); err != nil {
			return err
		}
	}

	r.id = r.newID()
	r.result.Run = r.id
	r.event(Event{What: Began, Undoes: undoes, Count: due})
	return r.journal.note(r.host, Record{
		What:   "begin",
		Run:    r.id,
		Boot:   r.boot,
		Tool:   r.engine.Version,
		Spec:   r.engine.Spec.Digest(),
		Undoes: undoes,
		Repair: r.engine.Repair,
		Leave:  leave,
		Found:  r.found,
	})
}

// mayWrite refuses to change a machine whose journal this gpuadm cannot continue, and moves one
// aside that it cannot read.
func (r *run) mayWrite() error {
	switch {
	case r.journal.Newer > 0:
		return &trouble.Error{
			What: "cannot change this machine: its journal was written by a newer gpuadm",
			Because: []string{
				fmt.Sprintf("the journal's format is %d, and this gpuadm writes %d", r.journal.Newer, JournalFormat),
			},
			Undone: []string{trouble.NothingTouched},
			Try:    []string{"install the gpuadm that was here last, or a newer one"},
		}
	case r.journal.Problem == "":
		return nil
	}

	aside := journalFile + ".unreadable-" + r.now()
	if err := r.host.Rename(journalFile, aside); err != nil {
		return &trouble.Error{
			What:    fmt.Sprintf("cannot move the journal aside, which cannot be read: %v", err),
			Because: []string{r.journal.Problem},
			Undone:  []string{trouble.NothingTouched},
			Err:     err,
		}
	}

	r.journal = Journal{}
	return nil
}

// continues says whether this run continues the run that was cut short: it undoes the same runs, or
// applies at least the same stages, and repairs the same fault.
func (r *run) continues(undoes []string) bool {
	if !r.open || r.cut.Repair != r.engine.Repair || !slices.Equal(r.cut.Undoes, undoes) {
		return false
	}
	return len(undoes) > 0 || r.coversCut()
}

// coversCut says whether the stages of this run include all that the cut run has changed things
// for.
func (r *run) coversCut() bool {
	return !slices.ContainsFunc(r.cut.Makes, func(c Change) bool {
		return r.engine.order(c.Stage) < 0
	})
}

// newID is the time of day, with a number where another run has it already.
func (r *run) newID() string {
	base := r.now()
	id := base
	taken := func(rec Record) bool { return rec.Run == id }
	for n := 2; slices.ContainsFunc(r.journal.Records, taken); n++ {
		id = fmt.Sprintf("%s-%d", base, n)
	}
	return id
}

// now is the host's time, as it stands in the names of runs and files.
func (r *run) now() string { return r.host.Now().UTC().Format("20060102T150405Z") }

// end closes the run in the journal. A run that was stopped or waits for a reboot stays open, and
// the next run continues it.
func (r *run) end(err error) (Result, error) {
	r.engine.cache.Keep(r.host)
	r.result.Changed = r.journalled().countChanged()
	if err != nil {
		r.result.Stage = r.stage
	}
	if pauses(err) && len(r.journalled().Makes) > 0 {
		err = changedSomething(err)
	}

	var reboot host.Reboot
	switch {
	case errors.As(err, &reboot):
		r.result.Reboot = reboot.Why
		r.event(Event{What: Reboots, Text: reboot.Why})
		return r.result, nil
	case pauses(err):
		return r.result, err
	}

	result := "ok"
	if err != nil {
		result = "failed"
	}
	var taught Taught
	if errors.As(err, &taught) {
		lesson := taught.Lesson
		_ = r.write(Record{What: "learned", Run: r.id, Lesson: &lesson}) // it serves the next plan alone
	}
	record := Record{What: "end", Run: r.id, Result: result}
	if r.unsure || r.continuesRollBack() {
		record.Result = overtaken
	}
	writeErr := r.write(record)
	if err == nil && writeErr != nil {
		err = unclosed(writeErr)
	}
	r.event(Event{What: Ended, Text: result, Took: r.journalled().Took})
	return r.result, err
}

// pauses says that a run stays open after an error: it continues after a reboot, or with the next
// command.
func pauses(err error) bool {
	return errors.Is(err, ErrStopped) || trouble.Passes(err) || errors.As(err, new(host.Reboot))
}

// changedSomething is the error of a run that has changed something, and stays open.
func changedSomething(err error) error {
	t := troubleOf(err)
	undone := withoutClaim(t.Undone)
	if len(undone) == len(t.Undone) {
		return err
	}
	t.Undone = undone
	return t
}

// unclosed says that a run has made all changes, and could not journal its end: the next run ends
// it.
func unclosed(err error) error {
	t := troubleOf(err)
	t.What = fmt.Sprintf("cannot close the run: %v", err)
	t.Because = []string{"all changes were made; only the line that ends the run is missing"}
	return t
}

// continuesRollBack says whether this run continues a run that was cut short in a roll-back, and
// the journal does not say so yet.
func (r *run) continuesRollBack() bool {
	return r.makeResult == resumed && r.cut.rollingBack()
}

// needsNewProcess says that a new process must continue this run, which stays open for it.
func (r *run) needsNewProcess() bool {
	return slices.ContainsFunc(r.result.Deferred, func(c Line) bool {
		return c.When == host.InNewProcess
	})
}

// rollingBack says that the run rolls back a stage that has failed.
func (r *run) rollingBack() bool { return r.doing == RolledBack }

// reverting says that the run restores things: it undoes runs, or rolls back a stage.
func (r *run) reverting() bool { return r.doing != Made }

// stopped says whether the run has to stop. A roll-back does not.
func (r *run) stopped() bool { return !r.rollingBack() && r.engine.stopped() }

// currentFacts returns the machine's facts. They are gathered again once this run has changed
// something.
func (r *run) currentFacts(ctx context.Context, v host.View) (facts.Facts, error) {
	if r.facts != nil {
		return *r.facts, nil
	}

	f, err := r.engine.Facts(ctx, v)
	if err == nil {
		r.facts = &f
	}
	return f, err
}

// event reports what the run does.
func (r *run) event(ev Event) {
	ev.Time = r.host.Now()
	ev.Run = r.id
	r.engine.tell(ev)
}

// reportLeft notes a change of gpuadm's that stays.
func (r *run) reportLeft(c Line, why string) {
	c.Cannot = why
	r.result.Left = append(r.result.Left, c)
	r.event(Event{Stage: c.Stage, What: Left, Line: &c, Text: why})
}

// listen makes Say report events of the stage at work.
func (r *run) listen(ctx context.Context) context.Context {
	return Listen(ctx, func(what What, text string) {
		r.event(Event{Stage: r.stage, What: what, Text: text})
	})
}

// write adds a record to the journal, on disk when it returns.
func (r *run) write(rec Record) error { return r.journal.write(r.host, rec) }

// record journals a change, with the bytes that its states name, before it is made.
func (r *run) record(t Thing, c Change) error {
	err := r.recordMake(t, c)
	r.unsure = r.unsure || err != nil
	return err
}

func (r *run) recordMake(t Thing, c Change) error {
	if err := makeHome(r.host); err != nil {
		return err
	}
	if err := keep(r.host, t, c); err != nil {
		return err
	}
	if r.hasRecorded(c) && !r.continuesRollBack() {
		return nil
	}

	err := r.write(Record{
		What:   "make",
		Run:    r.id,
		Change: &c,
		Result: r.makeResult,
	})
	if err == nil {
		r.makeResult = ""
	}
	return err
}

// hasRecorded says whether the run's last record of the thing is this change: a change that waits
// for its reboot is made again and again.
func (r *run) hasRecorded(c Change) bool {
	for _, rec := range slices.Backward(r.journal.Records) {
		switch {
		case rec.Run != r.id:
		case rec.What == "begin":
			return false
		case rec.Change != nil && rec.Change.key() == c.key():
			return rec.Change.Before == c.Before && rec.Change.After == c.After
		}
	}
	return false
}

// journalled is what the journal says of this run.
func (r *run) journalled() Run {
	runs := r.journal.Runs()
	i := slices.IndexFunc(runs, func(run Run) bool { return run.ID == r.id })
	if i < 0 {
		return Run{}
	}
	return runs[i]
}
