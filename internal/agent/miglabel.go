// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
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
	r.Label, err = label.Layout(ctx, r.Host)
	if err != nil {
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

func isMIG(st converge.Stage) bool { return st.Name == mig.Stage.Name }

// partitions plans the stage mig alone.
func (r *Run) partitions(ctx context.Context) (partitions, error) {
	e := r.Engine
	all := e.Stages
	e.Stages = slices.DeleteFunc(slices.Clone(all), func(st converge.Stage) bool {
		return !isMIG(st)
	})
	p, err := e.Plan(ctx, r.Host)
	e.Stages = all
	if err != nil {
		return partitions{follows: true}, err
	}

	f := p.Host.Facts
	parts := partitions{follows: f.MIGOwner == nil && f.DynamicMIG == ""}
	for _, ch := range p.Changes {
		switch {
		case ch.Kind != "mig" && ch.Kind != "check": // things that follow a change disturb no client
		case ch.When == "":
			parts.now++
		default:
			parts.deferred++
		}
	}

	cannot := p.Cannot()
	if len(cannot) > 0 {
		return parts, errors.New(cannot[0].Cannot)
	}
	unseen := p.Unseen()
	if len(unseen) > 0 {
		return parts, &trouble.Unknown{
			What: unseen[0].String(),
			Err:  errors.New(unseen[0].Unknown),
		}
	}

	parts.made = parts.now+parts.deferred == 0
	return parts, nil
}

// beginMIG pauses the clients of the GPUs if the label asks for other partitions. An unattended run
// does not pause them again for a layout that has failed: pods need the device plugin while a GPU
// stays busy.
func (r *Run) beginMIG(ctx context.Context) (partitions, error) {
	if !r.followsLabel() {
		return partitions{}, nil
	}
	parts, err := r.partitions(ctx)
	if err != nil || !parts.follows {
		return parts, nil // apply reports the error, or another owner changes the partitions
	}

	label, err := r.Node.MIGLabel(ctx, r.Host, r.Engine.Spec)
	if err != nil {
		return parts, err
	}
	err = label.Keep(r.Host, r.Label)
	if err != nil {
		return parts, err
	}
	if !r.pausesFor(parts) || r.waitsForUsers(ctx, label) {
		return parts, nil
	}

	err = label.Begin(ctx, r.Host)
	if err != nil {
		_, _ = label.End(context.WithoutCancel(ctx), r.Host, node.MIGFailed)
	}
	return parts, err
}

// followsLabel says whether this apply brings the partitions to the label's layout.
func (r *Run) followsLabel() bool {
	e := r.Engine
	if r.Label.Layout == "" || !r.Host.Live() || !slices.ContainsFunc(e.Stages, isMIG) {
		return false
	}
	return !e.Unattended || !r.appliesNothing()
}

// pausesFor says whether the clients of the GPUs must be paused for the changes of partitions.
func (r *Run) pausesFor(parts partitions) bool {
	label := r.Label
	failedBefore := label.State == node.MIGFailed && label.Layout == label.Kept
	if r.Engine.Unattended && failedBefore {
		return false
	}
	return label.Asked && parts.now > 0
}

// appliesNothing says whether an unattended apply leaves the machine as it is: an undo holds, or a
// newer gpuadm changed the machine last.
func (r *Run) appliesNothing() bool {
	j := converge.ReadJournal(r.Host)
	return j.Held() != "" || r.Engine.LeavesTo(j) != ""
}

// endMIG writes the result of the change to the label, and restarts the programs that read
// partitions only at their start. The change itself is over: gpuadm reports an error, and the next
// apply writes the label.
func (r *Run) endMIG(ctx context.Context, parts partitions, result converge.Result, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportLimit)
	defer cancel()

	var resumed bool
	var err error
	if parts.follows {
		resumed, err = r.writeState(ctx, parts, result, failed)
	}
	changed := slices.ContainsFunc(result.Made, func(c converge.Change) bool {
		return c.Kind == "mig"
	})
	restart := changed && !resumed && r.Host.Live()
	if err == nil && restart {
		err = restartPlugin(ctx, r.Host)
	}
	if err != nil {
		r.Say(Event{What: Unlabelled, Err: err})
	}
}

// writeState writes the label of the state, if the API server answers.
func (r *Run) writeState(
	ctx context.Context, parts partitions, result converge.Result, failed error,
) (resumed bool, err error) {
	label, err := r.Node.MIGLabel(ctx, r.Host, r.Engine.Spec)
	if err != nil {
		return false, err
	}
	now, err := label.Layout(ctx, r.Host)
	if err != nil || !now.Asked {
		return false, err
	}

	// The boot unit's next attempt reads these values.
	r.Label.Kept = r.Label.Layout
	r.Label.State = r.migState(ctx, parts, result, failed)
	return label.End(ctx, r.Host, r.Label.State)
}

// migState is the state to write after an apply.
func (r *Run) migState(
	ctx context.Context, parts partitions, result converge.Result, failed error,
) string {
	if errors.Is(failed, converge.ErrInUse) && trouble.Passes(failed) {
		return node.MIGPending
	}

	var err error
	if !parts.made {
		parts, err = r.partitions(ctx)
	}
	switch {
	case result.Reboot != "" && r.Reboots:
		return node.MIGRebooting
	case err != nil || parts.now > 0:
		return node.MIGFailed
	case parts.deferred > 0:
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
	holders, err := devices.Holders(ctx, h)
	if err != nil {
		return err
	}

	const command = "nvidia-device-p" // the kernel cuts a command at 15 characters
	isOther := func(p devices.Holder) bool { return p.Pod == "" || p.Command != command }
	return devices.EndHolders(ctx, h, slices.DeleteFunc(holders, isOther))
}
