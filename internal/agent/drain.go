// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
)

// drain evicts the pods that use the GPUs, unless other processes use them too. drained says whether the GPUs are free of pods; refused
// is what the apply waits for.
func (r *Run) drain(ctx context.Context, refused error) (drained bool, err error) {
	e, h := r.Engine, r.Host
	ctx, cancel := context.WithCancelCause(converge.Listen(ctx, func(what converge.What, text string) {
		e.Tell(converge.Event{Time: h.Now(), What: what, Text: text})
	}))
	defer cancel(nil)
	go func() {
		select {
		case <-e.Stop:
			cancel(converge.ErrStopped)
		case <-ctx.Done():
		}
	}()
	d, err := r.Node.Drain(ctx, h, e.Spec)
	if err != nil || d == nil {
		return false, cmp.Or(err, refused)
	}
	leaves := d.Leaves
	if r.Label.Layout != "" { // the node's label pauses more
		label, err := r.Node.MIGLabel(ctx, h, e.Spec)
		if err != nil {
			return false, err
		}
		paused, err := label.Clients(ctx, h)
		if err != nil {
			return false, err
		}
		leaves = func(pod string) bool { return d.Leaves(pod) || paused(pod) }
	}
	if err := e.Interrupts(converge.WithoutPods(ctx, leaves), h); errors.Is(err, converge.ErrInUse) {
		return false, err // evictions would not free the GPUs
	}
	if err := d.Run(ctx); err != nil {
		_ = r.Uncordon(ctx, &e.Spec) // the end of apply tries once more, and says so
		return false, err
	}
	return true, nil
}

// waitsForUsers says whether a change of the partitions would wait even without the clients that the node's label pauses: then they
// are not paused.
func (r *Run) waitsForUsers(ctx context.Context, label *node.MIGLabel) bool {
	if r.Engine.Spec.Disruption.Policy == "never" {
		return false
	}
	paused, err := label.Clients(ctx, r.Host)
	return err == nil && errors.Is(r.Engine.Interrupts(converge.WithoutPods(ctx, paused), r.Host), converge.ErrInUse)
}
