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

// ErrStopped reports that a run was asked to stop between two changes. The next run continues it.
var ErrStopped = errors.New("stopped as asked; the same command continues from here")

// Result says how an apply or undo ended.
type Result struct {
	Run      string   `json:"run,omitempty"`      // "" if there was nothing to do
	Restores bool     `json:"restores,omitempty"` // undo of the run would restore something
	Made     []Change `json:"made,omitempty"`
	Deferred []Change `json:"deferred,omitempty"` // for the last line
	Left     []Change `json:"left,omitempty"`     // undo: what stays
	Damaged  []int    `json:"damaged,omitempty"`  // undo: lines of the journal that cannot be read: it did not know their changes
	Undone   []Change `json:"undone,omitempty"`   // what an unattended apply has undone, to finish an undo that was cut short
	Held     string   `json:"held,omitempty"`     // the undo that holds unattended applies
	Newer    string   `json:"newer,omitempty"`    // an unattended apply left its changes to this newer gpuadm, which changed the machine last
	Reboot   string   `json:"reboot,omitempty"`   // why a reboot is needed
	Changed  int      `json:"changed,omitempty"`  // how many things are not as before the run, which may have begun in another process
	Stage    string   `json:"stage,omitempty"`    // the stage at work when it ended with an error, or the first that cannot be made
}

// run is one apply or undo at work.
type run struct {
	*Engine
	h  host.Host
	j  Journal
	id string
	at string // the name of the stage at work
	// doing is Made, Undone, or RolledBack: a failed stage is rolled back without consent, and does
	// not stop at a full disk.
	doing      What
	unsure     bool   // a write to the journal failed: its line may be there or not, and its change may not have been made
	makeResult string // the Result of the next make record: resumed for the first one of a run that continues one cut short; else ""
	unmade     []key  // files that could not be written: each has its Before, so its Followers are not affected
	cut        Run    // the last run, if it has no end
	open       bool   // whether there is such a run
	boot       string
	facts      *facts.Facts // gathered since this run last changed something; nil: not yet
	Result
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
	r := &run{Engine: e, h: h, j: ReadJournal(h), boot: host.BootID(h), doing: Made}
	if r.j.Refused != nil {
		unlock()
		return nil, nil, r.j.Refused
	}
	end := unlock
	if text := r.j.damage(h); text != "" {
		end = func() { // read again, since compacting changes the numbers of the lines
			r.event(Event{What: Damaged, Text: cmp.Or(ReadJournal(h).damage(h), text)})
			unlock()
		}
	}
	r.cut, r.open = r.j.unfinished()
	if err := r.sweep(); err != nil {
		unlock()
		return nil, nil, err
	}
	if r.j.Torn > 0 {
		r.event(Event{What: Healed, Text: fmt.Sprintf("a power cut has torn line %d of %s; its change was not made", r.j.Torn, journalFile)})
		_ = r.j.rewrite(h, r.j.Records) // where there is no room for that, the next run does it
	}
	r.j.compact(h)
	return r, end, nil
}

// sweep removes temporary files, which a killed run may have left in gpuadm's own folders and
// beside what it was making.
func (r *run) sweep() error {
	if r.j.Newer > 0 {
		return nil
	}
	var folders []string
	swept := false
	for _, run := range slices.Backward(r.j.Runs()) { // back to the last run that succeeded: a failing disk may have kept later ones from sweeping
		if swept = run.Result == "ok"; swept {
			break
		}
		folders = append(folders, systemd.LinkFolders(r.h)...)
		for _, c := range run.Makes {
			if name, err := r.h.Resolve(c.Name); strings.HasPrefix(c.Name, "/") {
				folders = append(folders, path.Dir(c.Name))
				if err == nil {
					folders = append(folders, path.Dir(name))
				}
			}
		}
	}
	slices.Sort(folders)
	if !swept { // gpuadm may have been killed while it made the journal's own folder
		folders = append(folders, "/", "/var", path.Dir(Home))
	}
	for _, folder := range append(slices.Compact(folders), Home, Home+"/blobs") {
		if err := r.h.Sweep(folder); err != nil {
			r.event(Event{What: Remains, Text: err.Error()}) // another file's folder is no reason to stop
		}
	}
	return nil
}

// mayWrite refuses to change a machine whose journal this gpuadm cannot continue, and moves one
// aside that it cannot read.
func (r *run) mayWrite() error {
	switch {
	case r.j.Newer > 0:
		return &trouble.Error{
			What:    "cannot change this machine: its journal was written by a newer gpuadm",
			Because: []string{fmt.Sprintf("the journal's format is %d, and this gpuadm writes %d", r.j.Newer, JournalFormat), nothingTouched},
			Try:     []string{"install the gpuadm that was here last, or a newer one"},
		}
	case r.j.Problem != "":
		aside := journalFile + ".unreadable-" + r.h.Now().UTC().Format("20060102T150405Z")
		if err := r.h.Rename(journalFile, aside); err != nil {
			return &trouble.Error{What: fmt.Sprintf("cannot move the journal aside, which cannot be read: %v", err), Err: err, Because: []string{r.j.Problem, nothingTouched}}
		}
		r.j = Journal{}
	}
	return nil
}

const nothingTouched = "nothing was touched"

// begin opens the run; due counts the changes that an undo has to make.
func (r *run) begin(undoes []string, due int, leave ...string) error {
	if err := r.mayWrite(); err != nil {
		return err
	}
	if r.open && slices.Equal(r.cut.Undoes, undoes) && (len(undoes) > 0 || r.covers(r.cut)) && r.cut.Repair == r.Repair {
		r.id, r.Run, r.makeResult = r.cut.ID, r.cut.ID, resumed
		r.event(Event{What: Began, Text: "continues", Undoes: undoes, Count: due})
		return nil
	}
	if r.open { // another kind of run overtakes it
		if err := r.j.write(r.h, Record{What: "end", Run: r.cut.ID, Result: overtaken}); err != nil {
			return err
		}
	}
	r.id = r.h.Now().UTC().Format("20060102T150405Z")
	for n, base := 2, r.id; slices.ContainsFunc(r.j.Records, func(o Record) bool { return o.Run == r.id }); n++ {
		r.id = fmt.Sprintf("%s-%d", base, n)
	}
	r.Run = r.id
	r.event(Event{What: Began, Undoes: undoes, Count: due})
	return r.j.note(r.h, Record{What: "begin", Run: r.id, Boot: r.boot, Tool: r.Version, Spec: r.Spec.Digest(), Undoes: undoes, Repair: r.Repair, Leave: leave})
}

// covers says whether the stages of this run include all that the cut run has changed things for.
func (r *run) covers(cut Run) bool {
	return !slices.ContainsFunc(cut.Makes, func(c Change) bool { return r.order(c.Stage) < 0 })
}

// end closes the run in the journal. A run that was stopped or waits for a reboot stays open, and
// the next run continues it.
func (r *run) end(err error) (Result, error) {
	r.cache.Keep(r.h)
	r.Changed = r.journalled().countChanged()
	if err != nil {
		r.Stage = r.at
	}
	if reboot := (host.Reboot{}); errors.As(err, &reboot) {
		r.Reboot = reboot.Why
		r.event(Event{What: Reboots, Text: reboot.Why})
		return r.Result, nil
	}
	if errors.Is(err, ErrStopped) || trouble.Passes(err) {
		return r.Result, err
	}
	result := "ok"
	if err != nil {
		result = "failed"
	}
	as := result
	if r.unsure || r.unsureRollBack() {
		as = overtaken
	}
	if werr := r.j.write(r.h, Record{What: "end", Run: r.id, Result: as}); werr != nil && err == nil {
		err = unclosed(werr)
	}
	r.event(Event{What: Ended, Text: result, Took: r.journalled().Took})
	return r.Result, err
}

// unsureRollBack says whether this run continues a run that was cut short in a roll-back, and the
// journal does not say so yet.
func (r *run) unsureRollBack() bool { return r.makeResult == resumed && r.cut.rollingBack() }

// unclosed says that a run has made all changes, and could not journal its end: the next run ends
// it.
func unclosed(err error) error {
	t := troubleOf(err)
	t.What, t.Because = fmt.Sprintf("cannot close the run: %v", err), []string{"all changes were made; only the line that ends the run is missing"}
	return t
}

// newProcess says that a new process must continue this run, which stays open for it.
func (r *run) newProcess() bool {
	return slices.ContainsFunc(r.Deferred, func(c Change) bool { return c.When == host.InNewProcess })
}

func (r *run) rolling() bool { return r.doing == RolledBack }
func (r *run) back() bool    { return r.doing != Made }

func (r *run) stopped() bool { return !r.rolling() && r.Engine.stopped() }

func (e *Engine) stopped() bool {
	select {
	case <-e.Stop:
		return true
	default:
		return false
	}
}

func (r *run) event(ev Event) {
	ev.Time, ev.Run = r.h.Now(), r.id
	r.tell(ev)
}

// listen has Say tell of the stage at work.
func (r *run) listen(ctx context.Context) context.Context {
	return Listen(ctx, func(what What, text string) { r.event(Event{Stage: r.at, What: what, Text: text}) })
}

func (r *run) journal(t Thing, c Change) (err error) {
	defer func() { r.unsure = r.unsure || err != nil }()
	if err := makeHome(r.h); err != nil {
		return err
	}
	if err := keep(r.h, t, c); err != nil {
		return err
	}
	c.Diff, c.Left = "", nil
	for _, rec := range slices.Backward(r.j.Records) { // a change that waits for its reboot is made again and again
		if rec.Run == r.id && rec.Change != nil && rec.Change.key() == c.key() {
			if rec.Change.Before == c.Before && rec.Change.After == c.After && !r.unsureRollBack() {
				return nil
			}
			break
		}
	}
	if err = r.j.write(r.h, Record{What: "make", Run: r.id, Change: &c, Result: r.makeResult}); err == nil {
		r.makeResult = ""
	}
	return err
}
