// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Engine converges one machine by one spec.
type Engine struct {
	Stages  []Stage // the whole sequence, or the part asked for
	Before  []Stage // the whole sequence, where Stages is a part of it; nil: Stages
	Spec    spec.Spec
	Own     bool   // Spec is the machine's own, and Stages are all: an apply that ends well keeps it
	Version string // of gpuadm, for the journal
	Repair  string // the code of the fault that this apply repairs; "": it applies the spec

	// ThingOf builds a thing again from the journal.
	ThingOf func(Ref) (Thing, error)
	// Clients lists the processes that hold a GPU, for breaks that affect them.
	Clients func(context.Context, host.View) ([]string, error)
	// Pods lists the pods among them. No break stops a pod's processes, since kubelet
	// starts them again.
	Pods func(context.Context, host.View) ([]string, error)
	// Prune removes kept files that none of the changes needs; may be nil.
	Prune func(context.Context, host.Host, []Change) error
	// Places says where the files of the spec state its keys; the zero Places: it is not known.
	Places spec.Places
	// Named looks at what the spec names outside itself and a pending change uses; may be nil.
	Named func(context.Context, host.View, spec.Spec, facts.Facts, []Line) []Seen
	// Assume adds facts about a machine that does not exist yet: the kernel that an image will
	// boot, its GPUs. May be nil.
	Assume func(*facts.Facts)

	Tell  func(Event)     // gets the progress; may be nil
	Brief bool            // the events have no diffs
	Stop  <-chan struct{} // closed: finish the current make, then stop; may be nil

	Unattended bool     // a boot unit or DaemonSet calls: a hold is obeyed
	Allow      []string // these breaks are allowed; "all": all of them

	// Memory knows what modules and programs of the machine said, which are the most expensive
	// facts; nil: the engine has one of its own.
	Memory *recall.Memory

	cache     facts.Cache
	validated sync.Map // changes that a Validator has verified: it is asked once a run
}

// Seen is what a look has found at a value of the spec that names something outside the spec, such
// as a file, a repository or a parameter.
type Seen struct {
	Key   string // "driver.repo.key"
	Value string
	Stage string // of the first pending change that uses the value
	Err   error  // why the value cannot be used; a host.Later: only that moment shows it
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

func (e *Engine) tell(ev Event) {
	if e.Tell != nil {
		e.Tell(ev)
	}
}

// order is the place of a stage in the sequence; -1 if it is not in it.
func (e *Engine) order(stage string) int {
	return slices.IndexFunc(e.Stages, func(st Stage) bool { return st.Name == stage })
}
