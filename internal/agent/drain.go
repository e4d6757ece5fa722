// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
)

// drain evicts the pods that use the GPUs, unless other processes use them too. drained says
// whether no pod uses the GPUs any more; refused is the error of the apply that waits for them.
func (r *Run) drain(ctx context.Context, refused error) (drained bool, err error) {
	ctx, cancel := r.untilStopped(ctx)
	defer cancel()
	d, err := r.Node.Drain(ctx, r.Host, r.Engine.Spec)
	if err != nil || d == nil {
		return false, cmp.Or(err, refused)
	}

	leaves := d.Leaves
	if r.Label.Layout != "" { // for the node's label gpuadm also pauses the GPUs' clients
		label, err := r.Node.MIGLabel(ctx, r.Host, r.Engine.Spec)
		if err != nil {
			return false, err
		}
		paused, err := label.Clients(ctx, r.Host)
		if err != nil {
			return false, err
		}
		leaves = func(pod string) bool { return d.Leaves(pod) || paused(pod) }
	}

	err = r.Engine.Interrupts(ctx, devices.WithoutPods(r.Host, leaves))
	if errors.Is(err, converge.ErrInUse) {
		return false, d.Stays(ctx, err) // evictions would not free the GPUs
	}
	if err := d.Run(ctx); err != nil {
		_ = r.Uncordon(ctx, &r.Engine.Spec) // the end of apply tries once more, and reports an error
		return false, err
	}
	return true, nil
}

// untilStopped returns a context that ends when the engine is to stop, and in which what a drain
// waits for is told as the engine's events are.
func (r *Run) untilStopped(ctx context.Context) (context.Context, func()) {
	e := r.Engine
	ctx = converge.Listen(ctx, func(what converge.What, text string) {
		e.Tell(converge.Event{Time: r.Host.Now(), What: what, Text: text})
	})

	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-e.Stop:
			cancel(converge.ErrStopped)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// waitsForUsers says whether a change of the partitions would still wait for other processes if the
// GPUs' clients were paused: then gpuadm does not pause them.
func (r *Run) waitsForUsers(ctx context.Context, label *node.MIGLabel) bool {
	if r.Engine.Spec.Disruption.Policy == "never" {
		return false
	}
	paused, err := label.Clients(ctx, r.Host)
	if err != nil {
		return false
	}

	err = r.Engine.Interrupts(ctx, devices.WithoutPods(r.Host, paused))
	return errors.Is(err, converge.ErrInUse)
}
