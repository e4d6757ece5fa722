// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// Follow sets the spec's layout to the layout in the node's label, if the spec asks for it.
func (r *Run) Follow(ctx context.Context, s *spec.Spec) error {
	if !s.MIG.FollowLabel {
		return nil
	}
	label, err := r.Node.MIGLabel(ctx, r.Host, *s)
	if err != nil {
		return err
	}
	if r.Label, err = label.Layout(ctx, r.Host); err != nil {
		return err
	}
	s.MIG.Layout = r.Label.Layout
	return nil
}

// partitions is the part of an apply that the label controls.
type partitions struct {
	follows  bool // gpuadm writes the label's state
	made     bool // all changes are made
	now      int  // changes to make
	deferred int  // changes that wait for an event
}

// choosesMIG says whether the run's stages include mig.
func (r *Run) choosesMIG() bool {
	return slices.ContainsFunc(r.Engine.Stages, func(st converge.Stage) bool { return st.Name == mig.Stage.Name })
}

// partitions plans the stage mig alone.
func (r *Run) partitions(ctx context.Context) (partitions, error) {
	e, all := r.Engine, r.Engine.Stages
	e.Stages = slices.DeleteFunc(slices.Clone(all), func(st converge.Stage) bool { return st.Name != mig.Stage.Name })
	p, err := e.Plan(ctx, r.Host)
	e.Stages = all
	if err != nil {
		return partitions{follows: true}, err
	}
	is := partitions{follows: p.Host.Facts.MIGOwner == nil && p.Host.Facts.DynamicMIG == ""}
	for _, ch := range p.Changes {
		switch {
		case ch.Kind != "mig" && ch.Kind != "check": // things that follow a change disturb no client
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

// beginMIG pauses the clients of the GPUs if the label asks for other partitions. An unattended run
// does not pause them again for a layout that has failed: pods need the device plugin while a GPU
// stays busy.
func (r *Run) beginMIG(ctx context.Context) (partitions, error) {
	e, h, f := r.Engine, r.Host, r.Label
	if f.Layout == "" || !h.Live() || !r.choosesMIG() {
		return partitions{}, nil
	}
	if j := converge.ReadJournal(h); e.Unattended && (j.Held() != "" || e.LeavesTo(j) != "") {
		return partitions{}, nil
	}
	is, err := r.partitions(ctx)
	if err != nil || !is.follows {
		return is, nil // apply reports it, or another owner changes the partitions
	}
	label, err := r.Node.MIGLabel(ctx, h, e.Spec)
	if err != nil {
		return is, err
	}
	if err := label.Keep(h, f); err != nil {
		return is, err
	}
	again := e.Unattended && f.State == node.MIGFailed && f.Layout == f.Kept
	if !f.Asked || is.now == 0 || again || r.waitsForUsers(ctx, label) {
		return is, nil
	}
	if err := label.Begin(ctx, h); err != nil {
		_, _ = label.End(context.WithoutCancel(ctx), h, node.MIGFailed)
		return is, err
	}
	return is, nil
}

// endMIG writes the result of the change to the label, and restarts the programs that read
// partitions only at their start. The change itself is over: gpuadm reports an error, and the next
// apply writes the label.
func (r *Run) endMIG(ctx context.Context, is partitions, res converge.Result, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellLimit)
	defer cancel()
	resumed, err := false, error(nil)
	if is.follows {
		resumed, err = r.writeState(ctx, is, res, failed)
	}
	changed := slices.ContainsFunc(res.Made, func(ch converge.Change) bool { return ch.Kind == "mig" })
	if err == nil && changed && !resumed && r.Host.Live() {
		err = restartPlugin(ctx, r.Host)
	}
	if err != nil {
		r.Say(Event{What: Unlabelled, Err: err})
	}
}

// writeState writes the label of the state, if the API server answers.
func (r *Run) writeState(ctx context.Context, is partitions, res converge.Result, failed error) (resumed bool, err error) {
	label, err := r.Node.MIGLabel(ctx, r.Host, r.Engine.Spec)
	if err != nil {
		return false, err
	}
	now, err := label.Layout(ctx, r.Host)
	if err != nil || !now.Asked {
		return false, err
	}
	// The boot unit's next attempt reads these values.
	r.Label.Kept, r.Label.State = r.Label.Layout, r.migState(ctx, is, res, failed)
	return label.End(ctx, r.Host, r.Label.State)
}

// migState is the state to write after an apply.
func (r *Run) migState(ctx context.Context, is partitions, res converge.Result, failed error) string {
	if errors.Is(failed, converge.ErrInUse) && trouble.Passes(failed) {
		return node.MIGPending
	}
	err := error(nil)
	if !is.made {
		is, err = r.partitions(ctx)
	}
	switch {
	case res.Reboot != "" && r.Reboots:
		return node.MIGRebooting
	case err != nil || is.now > 0:
		return node.MIGFailed
	case is.deferred > 0:
		return node.MIGPending
	}
	return node.MIGSuccess
}

// restartPlugin ends NVIDIA's device plugin if it runs in a pod: it lists the partitions only at
// its start, and kubelet restarts the container, like all of a DaemonSet. GPU Feature Discovery
// lists them once a minute. Sources: cmd/nvidia-device-plugin and cmd/gpu-feature-discovery in
// https://github.com/NVIDIA/k8s-device-plugin at 1b826acc (main.go); mig-parted's manager, which
// makes the operator restart both.
func restartPlugin(ctx context.Context, h host.Host) error {
	open, err := devices.Holders(ctx, h)
	if err != nil {
		return err
	}
	return devices.EndHolders(ctx, h, slices.DeleteFunc(open, func(p devices.Holder) bool {
		return p.Pod == "" || p.Command != "nvidia-device-p" // the kernel cuts a command at 15 characters
	}))
}
