// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	goversion "github.com/hashicorp/go-version"
)

// Engine converges one machine by one spec.
type Engine struct {
	Stages  []Stage                                            // the whole sequence, or the part asked for
	Before  []Stage                                            // the whole sequence, where Stages is a part of it; nil: Stages
	Spec    spec.Spec                                          //
	ThingOf func(Ref) (Thing, error)                           // builds a thing again from the journal
	Clients func(context.Context, host.View) ([]string, error) // lists the processes that hold a GPU, for breaks that affect them
	Prune   func(context.Context, host.Host, []Change) error   // removes kept files that none of the changes needs; may be nil
	Tell    func(Event)                                        // progress; may be nil
	Brief   bool                                               // the events have no diffs
	Stop    <-chan struct{}                                    // closed: finish the current make, then stop; may be nil
	Version string                                             // of gpuadm, for the journal
	Repair  string                                             // the code of the fault that this apply repairs; "": it applies the spec

	// Assume adds facts about a machine that does not exist yet: the kernel that an image will
	// boot, its GPUs. May be nil.
	Assume func(*facts.Facts)

	Unattended bool     // a boot unit or DaemonSet calls: a hold is obeyed
	Allow      []string // these breaks are allowed; "all": all of them

	cache     facts.Cache // versions read from binaries: the most expensive facts
	validated sync.Map    // changes that a Validator has verified: it is asked once a run
}

// allows says whether the operator or the spec allows a break, or a downgrade of gpuadm.
func (e *Engine) allows(what string) bool {
	return slices.Contains(e.Spec.Disruption.Allow, what) || slices.Contains(e.Allow, what) || slices.Contains(e.Allow, "all")
}

// forbidden returns the breaks of the changes that were not allowed, in their order.
func (e *Engine) forbidden(changes []Change) (list []string) {
	podsRun := []string{"restart-runtime", "restart-kubelet", "pause-services"}
	for _, c := range changes {
		for _, b := range c.Breaks {
			if c.Deferred == "" && !e.allows(b) && !slices.Contains(podsRun, b) {
				list = also(list, b)
			}
		}
	}
	return list
}

// ErrInUse reports that a change would take the GPUs from a process, and the operator has not
// allowed that. The GPUs are not at fault.
var ErrInUse = errors.New("the GPUs are in use")

// errKept is an ErrInUse that waiting does not end.
var errKept = fmt.Errorf("%w, and stay so", ErrInUse)

// Interrupts says what Apply would refuse to interrupt now. It touches nothing.
func (e *Engine) Interrupts(ctx context.Context, v host.View) error {
	p, err := e.Plan(ctx, v)
	if err == nil {
		err = refuse(p)
	}
	if err == nil {
		err = e.consent(ctx, v, p.Changes)
	}
	return e.untilIdle(err)
}

// untilIdle turns a refusal that ends once the GPUs are idle into a wait, unless policy = "never"
// in [disruption]. Only the error that a run ends with becomes a wait. Inside a run, gpuadm rolls
// back a stage that finds the GPUs in use: if it waited there, no process could use the GPUs
// meanwhile.
func (e *Engine) untilIdle(err error) error {
	if p := e.Spec.Disruption.Policy; p == "" || p == "never" || !errors.Is(err, ErrInUse) || errors.Is(err, errKept) || trouble.Passes(err) {
		return err
	}
	t := troubleOf(err)
	t.Try = append(t.Try, "or wait: once nothing uses the GPUs, the same command makes the change")
	t.Err = errors.Join(err, trouble.Wait{For: t.What})
	return t
}

// consent refuses changes whose breaks affect a process and are not allowed.
func (e *Engine) consent(ctx context.Context, v host.View, changes []Change) error {
	for _, what := range e.forbidden(changes) {
		var names, clients []string
		asksAll := false
		for _, c := range changes {
			if c.Deferred == "" && slices.Contains(c.Breaks, what) {
				names, clients = append(names, c.String()), append(clients, c.Clients[what]...)
				asksAll = asksAll || len(c.Clients[what]) == 0
			}
		}
		if asksAll && e.Clients != nil {
			holders, err := e.Clients(ctx, v)
			if err != nil {
				return fmt.Errorf("cannot list the processes that use the GPUs: %w", err)
			}
			clients = append(clients, holders...)
		}
		if len(clients) > 0 {
			why, try, err := objection(what)
			return &trouble.Error{
				What:    fmt.Sprintf("cannot make %s: that needs %s, and %s", strings.Join(trouble.Few(names, 6), ", "), what, why),
				Because: trouble.Few(clients, 6),
				Try:     []string{try + "run again with --allow " + what},
				Err:     err,
			}
		}
	}
	return nil
}

// objection says why an operator has to allow a break, and what else they can do.
func objection(what string) (why, try string, err error) {
	switch what {
	case "lose-partitions":
		return "the GPUs are partitioned", "", errKept
	case "change-held":
		return "another tool holds what would change", "lift the hold (apt-mark unhold, dnf versionlock delete), or ", errKept
	case "stop-containers":
		return "containers run", "stop them, or have them live on (live-restore in Docker's documentation), or ", errKept
	}
	return "the GPUs are in use", "stop them, or ", ErrInUse
}

func (e *Engine) tell(ev Event) {
	if e.Tell != nil {
		e.Tell(ev)
	}
}

// unknown replaces the wants of a stage that does not know them yet, or cannot be made as a whole.
type unknown struct {
	stage string
	err   error
}

func (u unknown) Ref() Ref { return Ref{Kind: "check", Name: u.stage} }

func (u unknown) Look(context.Context, host.View) (State, error) { return "", u.err }

func (u unknown) Make(context.Context, host.Host, State) error { return u.err }

// standIn is the only step of a stage that does not know its wants. The engine looks again at a
// stand-in that waits.
func standIn(stage string, err error) (s step) {
	u := unknown{stage, err}
	s.Change = Change{Stage: stage, Ref: u.Ref(), Reason: reasonOf(err)}
	if trouble.Passes(err) {
		s.want.Thing = u
	}
	return s
}

// waiting returns an error that names what the remaining changes wait for; nil if each waits for a
// later boot at most.
func waiting(left []Change) error {
	t := reasons(left)
	if t == nil {
		return nil
	}
	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run the same command again: it continues from here"}
	}
	return t
}

// reasons joins the reasons of changes into one error, each reason once: several stages may have
// the same. nil: there are none.
func reasons(all []Change) (t *trouble.Error) {
	for _, c := range all {
		switch next := c.trouble(); {
		case next == nil:
		case t == nil:
			t = next
		default:
			if next.What != t.What {
				t.Because = also(t.Because, "also: "+next.What)
			}
			t.Because, t.Try, t.Err = also(t.Because, next.Because...), also(t.Try, next.Try...), errors.Join(t.Err, next.Err)
		}
	}
	return t
}

// also adds lines, each of them once.
func also(all []string, lines ...string) []string {
	for _, line := range lines {
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}

// downgrade allows an older gpuadm to change what a newer one has changed.
const downgrade = "downgrade-gpuadm"

// NewerThan returns the version of the gpuadm that changed the machine last if that is newer than
// the given one; else "". A version that is no release (devel, devel-COMMIT) cannot be compared,
// and a compacted journal names no version: then either gpuadm may write. A journal of a newer
// format was written by a newer gpuadm, whatever its version says.
func (j Journal) NewerThan(version string) string {
	if j.Newer > 0 {
		return fmt.Sprintf("of journal format %d", j.Newer)
	}
	mine, err := goversion.NewVersion(version)
	if err != nil {
		return ""
	}
	for _, r := range slices.Backward(j.Records) {
		if r.What != "begin" {
			continue
		}
		if last, err := goversion.NewVersion(r.Tool); err == nil && last.GreaterThan(mine) {
			return r.Tool
		}
		return ""
	}
	return ""
}

// LeavesTo returns the newer gpuadm that changed the machine last, if this one must leave the
// machine to it; "" if this one may change it. Otherwise an image's gpuadm and a DaemonSet's would
// revert each other's changes. Any version finishes a run that was cut short, since the gate waits
// for that run; but this one cannot write to a journal of a newer format.
func (e *Engine) LeavesTo(j Journal) string {
	if _, open := j.unfinished(); j.Newer == 0 && (open || e.allows(downgrade)) {
		return ""
	}
	return j.NewerThan(e.Version)
}

// refuseDowngrade refuses an operator's apply if a newer gpuadm changed the machine last.
func (r *run) refuseDowngrade() error {
	newer := r.LeavesTo(r.j)
	if newer == "" || r.j.Newer > 0 { // mayWrite refuses the newer format
		return nil
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot change this machine: gpuadm %s changed it last, and this is the older %s", newer, r.Version),
		Because: []string{nothingTouched},
		Try:     []string{"use gpuadm " + newer + " or a newer one", "to return to the older one, run again with --allow " + downgrade},
	}
}
