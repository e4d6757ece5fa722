// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/host"
)

// RolledBack is how one GPU was rolled back.
type RolledBack struct {
	GPU    string  // PCI address
	Before State   // the state before the run
	After  State   // the state now; the zero State if the GPU does not answer
	Undone []Step  // the steps that restored it
	Left   []error // why steps back failed
}

// Restored reports whether the GPU is in its former state.
func (t *RolledBack) Restored() bool {
	return t.After.String() == t.Before.String() && len(t.Left) == 0
}

// result says in words which state the GPU is in.
func (t *RolledBack) result() string {
	switch {
	case t.Restored():
		return fmt.Sprintf("GPU %s is in its former state: %s", t.GPU, t.Before)
	case t.After.Mode == Unknown:
		return fmt.Sprintf("GPU %s was %q, and gpuadm cannot read its state now", t.GPU, t.Before)
	}
	return fmt.Sprintf("GPU %s was %q and is %q now", t.GPU, t.Before, t.After)
}

// Failure is what Run returns when a step failed: all GPUs were rolled back, as far as that was
// possible.
type Failure struct {
	RolledBack              // the GPU of the failed step
	Step       Step         // the failed step
	Err        error        // why
	Others     []RolledBack // the other GPUs
}

func (f *Failure) Error() string {
	return fmt.Sprintf("cannot %s: %v", f.Step.on(f.GPU), f.Err)
}

func (f *Failure) Unwrap() error { return f.Err }

// rollBack restores the GPUs. It asks the driver first, since a step may have worked though it
// returned an error. It continues after an error, and beside a GPU that no longer answers: most of
// the old layout is better than none. At the end it asks the driver again.
func (r *runner) rollBack(ctx context.Context) []RolledBack {
	results := make([]RolledBack, len(r.gpus))
	of := map[*gpuRun]*RolledBack{}
	for i, g := range r.gpus {
		results[i] = RolledBack{GPU: g.GPU, Before: StateOf(g.before)}
		of[g] = &results[i]
	}

	if err := r.look(ctx); err != nil {
		results[0].Left = append(results[0].Left, err)
		return results
	}
	for _, g := range r.gpus {
		g.made = nil
		if g.unseen != nil {
			g.Steps = nil
			continue
		}
		resets := g.now.Mode != g.before.Mode && g.before.Arch == "ampere"
		g.Steps = stepsBetween(exactGeometry(g.now), exactGeometry(g.before), resets)
	}

	_ = r.runAll(ctx, func(f failedStep) {
		result := of[f.gpu]
		result.Left = append(result.Left, fmt.Errorf("cannot %s: %w", f.step, f.err))
	})
	for _, g := range r.gpus {
		of[g].Undone = g.made
	}

	err := r.look(ctx)
	if err != nil {
		results[0].Left = append(results[0].Left, err)
	}
	for _, g := range r.gpus {
		switch {
		case g.unseen != nil:
			of[g].Left = append(of[g].Left, g.unseen)
		case err == nil:
			of[g].After = StateOf(g.now)
		}
	}

	return results
}

// exactGeometry is a GPU's state, with the places of compute instances.
func exactGeometry(g host.GPU) geometry {
	exact := geometry{mode: mode(g.Mode), next: mode(g.Pending)}
	for _, found := range g.Instances {
		in := instance{
			name:    profileName(g, found.Profile),
			profile: found.Profile,
			at:      found.At,
			busy:    len(found.Clients) > 0,
		}
		for _, c := range found.Compute {
			in.compute = append(in.compute, computeInstance{
				slices:  computeSlices(g, found.Profile, c),
				profile: c.Profile,
				spot:    c.At,
			})
		}

		exact.instances = append(exact.instances, in)
	}

	return exact
}
