// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// RolledBack is how one GPU was rolled back.
type RolledBack struct {
	GPU    string // PCI address
	Before State  // the state before the run
	After  State  // the state now; the zero State if it does not answer
	Undone []Step // what was done to bring it back
	Left   []error
}

// Restored says whether the GPU is in its former state.
func (t *RolledBack) Restored() bool {
	return t.After.String() == t.Before.String() && len(t.Left) == 0
}

// Failure is what Run returns when a step failed: all GPUs were rolled back, as far as that was possible.
type Failure struct {
	RolledBack              // the GPU of the failed step
	Step       Step         // the one that failed
	Err        error        // why
	Others     []RolledBack // the other GPUs
}

func (f *Failure) Error() string { return fmt.Sprintf("cannot %s: %v", f.Step.of(f.GPU), f.Err) }

func (f *Failure) Unwrap() error { return f.Err }

// back rolls the GPUs back. It asks the driver first, which knows what was done whatever the call returned. It continues
// after an error, since most of the old layout is better than none, and asks the driver again at the end.
func (r *runner) back(ctx context.Context) []RolledBack {
	rolledBack := make([]RolledBack, len(r.gpus))
	at := map[*gpuRun]*RolledBack{}
	for i, g := range r.gpus {
		rolledBack[i] = RolledBack{GPU: g.GPU, Before: StateOf(g.before)}
		at[g] = &rolledBack[i]
	}
	if err := r.look(ctx); err != nil {
		rolledBack[0].Left = append(rolledBack[0].Left, err)
		return rolledBack
	}
	failed := map[*gpuRun][]Step{}
	for _, g := range r.gpus {
		// The modes show whether a reset is needed: only then do they differ.
		g.Steps = way(exactly(g.now), exactly(g.before), g.now.Mode != g.before.Mode && g.before.Arch == "ampere")
	}
	_, _, _ = r.walk(ctx, func(g *gpuRun, s Step, err error) {
		failed[g] = append(failed[g], s)
		at[g].Left = append(at[g].Left, fmt.Errorf("cannot %s: %w", s, err))
	})
	for _, g := range r.gpus {
		at[g].Undone = slices.DeleteFunc(g.Steps, func(s Step) bool { return slices.Contains(failed[g], s) })
	}
	if err := r.look(ctx); err != nil {
		rolledBack[0].Left = append(rolledBack[0].Left, err)
		return rolledBack
	}
	for _, g := range r.gpus {
		at[g].After = StateOf(g.now)
	}
	return rolledBack
}

// exactly is a GPU's state, with the places of compute instances.
func exactly(g host.GPU) geometry {
	out := geometry{mode: mode(g.Mode), next: mode(g.Pending)}
	for _, i := range g.Instances {
		p := piece{name: fmt.Sprintf("?%d", i.Profile), profile: i.Profile, at: i.At, busy: len(i.Clients) > 0}
		for _, q := range g.Profiles {
			if q.ID == i.Profile {
				p.name = strings.TrimPrefix(q.Name, "MIG ")
			}
		}
		for _, c := range i.Compute {
			p.compute = append(p.compute, bit{slices: computeSlices(g, i.Profile, c), profile: c.Profile, spot: c.At})
		}
		out.pieces = append(out.pieces, p)
	}
	return out
}
