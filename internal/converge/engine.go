// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Engine converges one machine by one spec.
type Engine struct {
	Stages  []Stage // the whole sequence, or the part asked for
	Before  []Stage // the whole sequence, where Stages is a part of it; nil: Stages
	Spec    spec.Spec
	Version string // of gpuadm, for the journal
	Repair  string // the code of the fault that this apply repairs; "": it applies the spec

	// ThingOf builds a thing again from the journal.
	ThingOf func(Ref) (Thing, error)
	// Clients lists the processes that hold a GPU, for breaks that affect them.
	Clients func(context.Context, host.View) ([]string, error)
	// Prune removes kept files that none of the changes needs; may be nil.
	Prune func(context.Context, host.Host, []Change) error
	// Assume adds facts about a machine that does not exist yet: the kernel that an image will
	// boot, its GPUs. May be nil.
	Assume func(*facts.Facts)

	Tell  func(Event)     // gets the progress; may be nil
	Brief bool            // the events have no diffs
	Stop  <-chan struct{} // closed: finish the current make, then stop; may be nil

	Unattended bool     // a boot unit or DaemonSet calls: a hold is obeyed
	Allow      []string // these breaks are allowed; "all": all of them

	cache     facts.Cache // versions read from binaries: the most expensive facts
	validated sync.Map    // changes that a Validator has verified: it is asked once a run
}

// allows says whether the operator or the spec allows a break, or a downgrade of gpuadm.
func (e *Engine) allows(what string) bool {
	return slices.Contains(e.Spec.Disruption.Allow, what) ||
		slices.Contains(e.Allow, what) ||
		slices.Contains(e.Allow, "all")
}

// Facts gathers what the stages need to know of the machine. It caches what a run cannot change.
func (e *Engine) Facts(ctx context.Context, v host.View) (facts.Facts, error) {
	stages := e.Stages
	if slices.ContainsFunc(stages, func(st Stage) bool { return st.Whole }) {
		stages = slices.Concat(e.Before, stages)
	}

	var needs facts.Needs
	for _, st := range stages {
		if st.Needs != nil {
			needs = needs.And(st.Needs(e.Spec))
		}
	}

	f, err := e.cache.Gather(ctx, v, needs)
	if err == nil && e.Assume != nil {
		e.Assume(&f)
	}
	return f, err
}

// GPUs are the GPUs that Facts has; Facts and GPUs share one reading of the bus.
func (e *Engine) GPUs(v host.View) ([]facts.PCI, error) { return e.cache.GPUs(v) }

// order is the place of a stage in the sequence; -1 if it is not in it.
func (e *Engine) order(stage string) int {
	return slices.IndexFunc(e.Stages, func(st Stage) bool { return st.Name == stage })
}

func (e *Engine) tell(ev Event) {
	if e.Tell != nil {
		e.Tell(ev)
	}
}

// ErrStopped reports that a run was asked to stop between two changes. The next run continues it.
var ErrStopped = errors.New("stopped as asked; the same command continues from here")

// stopped says whether the caller has asked the engine to stop.
func (e *Engine) stopped() bool {
	select {
	case <-e.Stop:
		return true
	default:
		return false
	}
}
