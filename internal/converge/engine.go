// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"path"
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
	Clients func(context.Context, host.View) ([]string, error) // processes that hold a GPU, for the breaks that would kill them
	Prune   func(context.Context, host.Host, []Change) error   // removes kept files that none of the changes needs; may be nil
	Tell    func(Event)                                        // progress; may be nil
	Brief   bool                                               // nothing shows diffs: the events have none
	Stop    <-chan struct{}                                    // closed: finish the current make, then stop; may be nil
	Version string                                             // of gpuadm, for the journal
	Repair  string                                             // the code of the fault that this apply repairs; "": it applies the spec

	// Assume says what is known of a machine that cannot be seen yet: the kernel that an image will boot, its GPUs. May be nil.
	Assume func(*facts.Facts)

	Unattended bool     // a boot unit or DaemonSet calls: a hold is obeyed
	Allow      []string // these breaks are allowed; "all": all of them

	cache     facts.Cache // versions read from binaries: the most expensive facts
	validated sync.Map    // changes that a Validator has verified: it is asked once a run
}

// forbidden returns the breaks of the changes that were not allowed, in their order.
func (e *Engine) forbidden(changes []Change) (list []string) {
	if slices.Contains(e.Allow, "all") {
		return nil
	}
	ok := map[string]bool{"restart-runtime": true, "restart-kubelet": true, "pause-services": true} // pods keep running
	for _, a := range append(e.Spec.Disruption.Allow, e.Allow...) {
		ok[a] = true
	}
	for _, c := range changes {
		for _, b := range c.Breaks {
			if c.Deferred == "" && !ok[b] {
				ok[b] = true
				list = append(list, b)
			}
		}
	}
	return list
}

// ErrInUse reports that a change would take the GPUs from a process, and the operator has not allowed that. The GPUs are not at fault.
var ErrInUse = errors.New("the GPUs are in use")

// errKept is an ErrInUse that does not end by waiting.
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

// untilIdle makes something to wait for of a refusal that ends once the GPUs are idle, unless policy = "never" in [disruption]. It is
// made of what a run ends with, and not inside one: a stage that finds the GPUs in use is rolled back, since to wait half-way may keep
// the GPUs from all.
func (e *Engine) untilIdle(err error) error {
	if p := e.Spec.Disruption.Policy; p == "" || p == "never" || !errors.Is(err, ErrInUse) || errors.Is(err, errKept) || trouble.Passes(err) {
		return err
	}
	t := troubleOf(err)
	t.Try = append(t.Try, "or wait: once nothing uses the GPUs, the same command makes the change")
	t.Err = errors.Join(err, trouble.Wait{For: t.What})
	return t
}

type podsKey struct{}

// WithoutPods has the users of the GPUs listed as if the pods were gone for which gone is true, by NAMESPACE/NAME or "uid UID".
func WithoutPods(ctx context.Context, gone func(pod string) bool) context.Context {
	return context.WithValue(ctx, podsKey{}, gone)
}

// Gone says whether a pod counts as gone.
func Gone(ctx context.Context, pod string) bool {
	gone, ok := ctx.Value(podsKey{}).(func(string) bool)
	return ok && pod != "" && gone(pod)
}

// consent refuses changes that interrupt what was not allowed to be interrupted.
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
			why, try, err := hits(what)
			return &trouble.Error{
				What:    fmt.Sprintf("cannot make %s: that needs %s, and %s", strings.Join(names, ", "), what, why),
				Because: trouble.Few(clients, 6),
				Try:     []string{try + "run again with --allow " + what},
				Err:     err,
			}
		}
	}
	return nil
}

// hits says why an operator has to agree to a break, and what else they can do.
func hits(what string) (why, try string, err error) {
	if what == "lose-partitions" {
		return "the GPUs are partitioned", "", errKept
	}
	if what == "change-held" {
		return "another tool holds what would change", "lift the hold (apt-mark unhold, dnf versionlock delete), or ", errKept
	}
	if what == "stop-containers" {
		return "containers run", "stop them, or have them live on (live-restore in Docker's documentation), or ", errKept
	}
	return "the GPUs are in use", "stop them, or ", ErrInUse
}

func (e *Engine) tell(ev Event) {
	if e.Tell != nil {
		e.Tell(ev)
	}
}

// Distrust says what to do about what View.Trusted refuses on a machine whose files lie at root.
func Distrust(root string, err error) *trouble.Error {
	u := (*host.Untrusted)(nil)
	if !errors.As(err, &u) {
		return &trouble.Error{What: err.Error(), Err: err}
	}
	var whys, fix []string
	for _, part := range []struct {
		argv   string
		faults []host.Fault
	}{{"chown root:root", u.Owners}, {"chmod go-w", u.Modes}} {
		for _, f := range part.faults {
			name, what := path.Join(root, f.Name), "it"
			if f.Name != u.Name {
				what = name
			}
			whys, part.argv = append(whys, f.Why+" "+what), part.argv+" "+host.ShellWord(name)
		}
		if len(part.faults) > 0 {
			fix = append(fix, part.argv)
		}
	}
	t := &trouble.Error{What: fmt.Sprintf("cannot trust %s: %s", path.Join(root, u.Name), whys[0]), Err: err}
	const most = 4
	for _, why := range whys[1:min(most, len(whys))] {
		t.Because = append(t.Because, "also: "+why)
	}
	if more := len(whys) - most; more > 0 {
		t.Because = append(t.Because, fmt.Sprintf("also: %d more, which the command names", more))
	}
	t.Because = append(t.Because, "a user who can change it decides what root does here", nothingTouched)
	t.Try = []string{"see what is in it, then: " + strings.Join(fix, " && ")}
	return t
}

// DriverLoads waits for a unit that loads the driver.
func DriverLoads(unit string) trouble.Wait {
	return trouble.Wait{For: unit + " loads the NVIDIA driver", Try: []string{"journalctl -u " + unit}}
}

// unknown replaces the wants of a stage that does not know them yet, or cannot be made as a whole.
type unknown struct {
	stage string
	err   error
}

func (u unknown) Ref() Ref { return Ref{Kind: "check", Name: u.stage} }

func (u unknown) Look(context.Context, host.View) (State, error) { return "", u.err }

func (u unknown) Make(context.Context, host.Host, State) error { return u.err }

// standIn is the one step of a stage that knows none. One that waits is looked at again.
func standIn(stage string, err error) (s step) {
	u := unknown{stage, err}
	s.Change = Change{Stage: stage, Ref: u.Ref(), Reason: reasonOf(err)}
	if trouble.Passes(err) {
		s.want.Thing = u
	}
	return s
}

// waiting returns what the changes that are left wait for, as an error; nil if none waits for more than a later boot.
func waiting(left []Change) error {
	var t *trouble.Error
	for _, c := range left {
		switch {
		case c.Waits == "":
		case t == nil:
			t = c.trouble()
		case c.Waits != t.What:
			t.Because = also(t.Because, "also: "+c.Waits)
		}
	}
	if t == nil {
		return nil
	}
	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run the same command again: it continues from here"}
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

// NewerThan returns the version of the gpuadm that changed the machine last, where it is newer than the given one; else "". A build
// without a release (devel, devel-COMMIT) has no order, and a compacted journal names no version: then both write. A journal of a newer
// format is a newer gpuadm's, of whatever version.
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

// LeavesTo returns the newer gpuadm that changed the machine last and to which this one leaves it; "" if this one may change it. Without
// that an image's gpuadm and a DaemonSet's would change the machine to and fro. A run that was cut short any version finishes, since the
// gate waits for it; but not where the journal's format is newer, since nothing can be journaled there.
func (e *Engine) LeavesTo(j Journal) string {
	allowed := slices.Contains(e.Spec.Disruption.Allow, downgrade) || slices.Contains(e.Allow, downgrade) || slices.Contains(e.Allow, "all")
	if _, open := j.unfinished(); j.Newer == 0 && (open || allowed) {
		return ""
	}
	return j.NewerThan(e.Version)
}

// older refuses the changes of an operator's gpuadm that is older than the one that changed the machine last.
func (r *run) older() error {
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
