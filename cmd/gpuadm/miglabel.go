// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// labelTold is how long the end of a change may take to write the node's labels.
const labelTold = 20 * time.Second

// follow has the node's label name the layout, where the spec wants that.
func (c *common) follow(ctx context.Context, h host.View, s *spec.Spec) error {
	if !s.MIG.FollowLabel {
		return nil
	}
	label, err := c.node.MIGLabel(ctx, h, *s)
	if err != nil {
		return err
	}
	if c.followed, err = label.Layout(ctx, h); err != nil {
		return err
	}
	s.MIG.Layout = c.followed.Layout
	return nil
}

// followNote says where the layout comes from.
func (c *common) followNote(s spec.Spec) []string {
	switch f := c.followed; {
	case !s.MIG.FollowLabel:
		return nil
	case f.Layout == "":
		return []string{"no label " + node.MIGConfig + " has named a layout yet: gpuadm leaves the partitions"}
	case !f.Asked:
		return []string{fmt.Sprintf("the layout is %s, as the label %s said last: the API server does not answer now", f.Layout, node.MIGConfig)}
	default:
		return []string{fmt.Sprintf("the layout is %s, by the node's label %s", f.Layout, node.MIGConfig)}
	}
}

// partitions is the part of an apply that the label asks for.
type partitions struct {
	follows  bool // gpuadm writes the label's state
	made     bool // all changes are
	now      int  // changes to make
	deferred int  // changes that wait for an event
}

// partitions plans the stage mig alone.
func (c *common) partitions(ctx context.Context, e *converge.Engine, h host.Host) (partitions, error) {
	all := e.Stages
	e.Stages = slices.DeleteFunc(slices.Clone(all), func(st converge.Stage) bool { return st.Name != mig.Stage.Name })
	p, err := e.Plan(ctx, h)
	e.Stages = all
	if err != nil {
		return partitions{follows: true}, err
	}
	is := partitions{follows: p.Host.Facts.MIGOwner == "" && p.Host.Facts.DynamicMIG == ""}
	for _, ch := range p.Changes {
		switch {
		case ch.Kind != "mig" && ch.Kind != "check": // what runs after a change disturbs no client
		case ch.When == "":
			is.now++
		default:
			is.deferred++
		}
	}
	if len(p.Cannot()) > 0 {
		err = fmt.Errorf("%s", p.Cannot()[0].Cannot)
	}
	is.made = err == nil && is.now+is.deferred == 0
	return is, err
}

// beginMIG pauses the clients of the GPUs where the label asks for other partitions. A change that has failed is made again without
// that, unless an operator runs it or the label has changed: pods keep their device plugin while a GPU stays busy.
func (c *common) beginMIG(ctx context.Context, e *converge.Engine, h host.Host) (partitions, error) {
	f := c.followed
	chosen := slices.ContainsFunc(e.Stages, func(st converge.Stage) bool { return st.Name == mig.Stage.Name })
	if f.Layout == "" || !h.Live() || !chosen {
		return partitions{}, nil
	}
	if j := converge.ReadJournal(h); e.Unattended && (j.Held() != "" || e.LeavesTo(j) != "") {
		return partitions{}, nil
	}
	is, err := c.partitions(ctx, e, h)
	if err != nil || !is.follows {
		return is, nil // apply says it, or it is another owner's change
	}
	label, err := c.node.MIGLabel(ctx, h, e.Spec)
	if err != nil {
		return is, err
	}
	if err := label.Keep(h, f); err != nil {
		return is, err
	}
	again := e.Unattended && f.State == node.MIGFailed && f.Layout == f.Kept
	if !f.Asked || is.now == 0 || again || c.waitsForUsers(ctx, e, h, label) {
		return is, nil
	}
	if err := label.Begin(ctx, h); err != nil {
		_, _ = label.End(context.WithoutCancel(ctx), h, node.MIGFailed)
		return is, err
	}
	return is, nil
}

// endMIG tells by the label how the change went, and renews what reads partitions only when it starts. The partitions are made by then:
// an error is printed, and the next apply writes the label.
func (c *common) endMIG(ctx context.Context, e *converge.Engine, h host.Host, is partitions, res converge.Result, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), labelTold)
	defer cancel()
	resumed, err := false, error(nil)
	if is.follows {
		resumed, err = c.tellState(ctx, e, h, is, res, failed)
	}
	changed := slices.ContainsFunc(res.Made, func(ch converge.Change) bool { return ch.Kind == "mig" })
	if err == nil && changed && !resumed && h.Live() {
		err = renewPlugin(ctx, h)
	}
	if err != nil {
		printf(c.stderr, "gpuadm: cannot tell the GPUs' clients of the partitions: %v\n", err)
	}
}

// tellState writes the label of the state, where the API server answers.
func (c *common) tellState(ctx context.Context, e *converge.Engine, h host.Host, is partitions, res converge.Result, failed error) (resumed bool, err error) {
	label, err := c.node.MIGLabel(ctx, h, e.Spec)
	if err != nil {
		return false, err
	}
	now, err := label.Layout(ctx, h)
	if err != nil || !now.Asked {
		return false, err
	}
	// The boot unit's next attempt goes by what is written.
	c.followed.Kept, c.followed.State = c.followed.Layout, c.migState(ctx, e, h, is, res, failed)
	return label.End(ctx, h, c.followed.State)
}

// migState is the state to write after an apply.
func (c *common) migState(ctx context.Context, e *converge.Engine, h host.Host, is partitions, res converge.Result, failed error) string {
	if errors.Is(failed, converge.ErrInUse) && trouble.Passes(failed) {
		return node.MIGPending
	}
	err := error(nil)
	if !is.made {
		is, err = c.partitions(ctx, e, h)
	}
	switch {
	case res.Reboot != "" && c.reboots:
		return node.MIGRebooting
	case err != nil || is.now > 0:
		return node.MIGFailed
	case is.deferred > 0:
		return node.MIGPending
	}
	return node.MIGSuccess
}

// renewPlugin ends NVIDIA's device plugin where it runs in a pod: it lists the partitions only when it starts, and kubelet starts it
// again, as all containers of a DaemonSet. GPU Feature Discovery lists them once a minute by itself. Sources: cmd/nvidia-device-plugin
// and cmd/gpu-feature-discovery in https://github.com/NVIDIA/k8s-device-plugin at 1b826acc (main.go); mig-parted's manager, which has
// the operator start both again.
func renewPlugin(ctx context.Context, h host.Host) error {
	open, err := things.GPUHolders(ctx, h)
	if err != nil {
		return err
	}
	return things.End(ctx, h, slices.DeleteFunc(open, func(p things.Holder) bool {
		return p.Pod == "" || p.Command != "nvidia-device-p" // the kernel cuts a command at 15 characters
	}))
}
