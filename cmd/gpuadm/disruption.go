// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// drain has the pods evicted that use the GPUs, where nothing else uses them. It says whether the GPUs are free of them; refused is what
// the apply waits for.
func (c *common) drain(ctx context.Context, e *converge.Engine, h host.Host, refused error) (drained bool, err error) {
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
	d, err := c.node.Drain(ctx, h, e.Spec)
	if err != nil || d == nil {
		return false, cmp.Or(err, refused)
	}
	leaves := d.Leaves
	if c.followed.Layout != "" { // the node's label pauses more
		label, err := c.node.MIGLabel(ctx, h, e.Spec)
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
		return false, err // no pod is evicted for nothing
	}
	if err := d.Run(ctx); err != nil {
		_ = c.uncordon(context.WithoutCancel(ctx), h, &e.Spec) // the end of apply tries once more, and says so
		return false, err
	}
	return true, nil
}

// uncordon ends gpuadm's own cordon, also of a run that is over its deadline.
func (c *common) uncordon(ctx context.Context, h host.Host, s *spec.Spec) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), labelTold)
	defer cancel()
	return c.node.Uncordon(ctx, h, s)
}

// waitsForUsers says whether a change of the partitions would wait even if the clients that the node's label pauses were gone: then they
// are not paused.
func (c *common) waitsForUsers(ctx context.Context, e *converge.Engine, h host.Host, label *node.MIGLabel) bool {
	if e.Spec.Disruption.Policy == "never" {
		return false
	}
	paused, err := label.Clients(ctx, h)
	return err == nil && errors.Is(e.Interrupts(converge.WithoutPods(ctx, paused), h), converge.ErrInUse)
}
