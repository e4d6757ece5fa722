// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// machine is what planning knows of the machine.
type machine struct {
	view  host.View
	facts facts.Facts
	owned []owned      // gpuadm's changes that are on the machine
	asked map[key]bool // things whose changes have asked for a reboot in this boot
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

	e.cache.Memory = e.Memory
	f, err := e.cache.Gather(ctx, v, needs)
	if err != nil {
		return f, &trouble.Unknown{Err: err}
	}
	if e.Assume != nil {
		e.Assume(&f)
	}
	return f, nil
}

// GPUs are the GPUs that Facts has; Facts and GPUs share one reading of the bus.
func (e *Engine) GPUs(v host.View) ([]facts.PCI, error) {
	e.cache.Memory = e.Memory
	found, err := e.cache.GPUs(v)
	if err != nil {
		return found, &trouble.Unknown{Err: err}
	}
	return found, nil
}
