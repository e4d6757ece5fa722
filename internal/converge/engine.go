// SPDX-FileCopyrightText: The gpuadm authors
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
)

// Engine converges one machine by one spec.
type Engine struct {
	Stages  []Stage                                            // the whole sequence, or the part asked for
	Before  []Stage                                            // the whole sequence, where a part is asked for; nil: Stages
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
