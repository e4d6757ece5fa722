// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

// drain evicts the pods that use the GPUs, unless other processes use them too. drained says
// whether no pod uses the GPUs any more; refused is the error of the apply that waits for them.
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
	if r.Label.Layout != "" { // for the node's label gpuadm also pauses the GPUs' clients
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
	if err := e.Interrupts(devices.WithoutPods(ctx, leaves), h); errors.Is(err, converge.ErrInUse) {
		return false, d.Stays(ctx, err) // evictions would not free the GPUs
	}
	if err := d.Run(ctx); err != nil {
		_ = r.Uncordon(ctx, &e.Spec) // the end of apply tries once more, and reports an error
		return false, err
	}
	return true, nil
}

// waitsForUsers says whether a change of the partitions would still wait for other processes if the
// GPUs' clients were paused: then gpuadm does not pause them.
func (r *Run) waitsForUsers(ctx context.Context, label *node.MIGLabel) bool {
	if r.Engine.Spec.Disruption.Policy == "never" {
		return false
	}
	paused, err := label.Clients(ctx, r.Host)
	return err == nil && errors.Is(r.Engine.Interrupts(devices.WithoutPods(ctx, paused), r.Host), converge.ErrInUse)
}

// AddInstall adds the install stage after the stages that make the GPUs ready, so that kubelet
// waits only on a node with ready GPUs, and before the stages that need to know whether kubelet
// waits: else they would add a taint that keeps pods off.
func AddInstall(chosen []converge.Stage, install converge.Stage) []converge.Stage {
	at := slices.IndexFunc(chosen, func(st converge.Stage) bool {
		return !slices.ContainsFunc(stages.BeforeKubelet(), func(b converge.Stage) bool { return b.Name == st.Name }) || st.Name == "node"
	})
	if at < 0 {
		at = len(chosen)
	}
	return slices.Insert(slices.Clone(chosen), at, install)
}

// Installs says whether the install stage was asked for.
func Installs(e *converge.Engine) bool { return installAt(e) >= 0 }

func installAt(e *converge.Engine) int {
	return slices.IndexFunc(e.Stages, func(st converge.Stage) bool { return st.Name == stages.InstallName })
}

// InstallFirst moves the install stage, if it was asked for, to the front: else it would come after
// the reboot that needs the installed unit.
func InstallFirst(e *converge.Engine) {
	if i := installAt(e); i > 0 {
		st := e.Stages[i]
		e.Stages = slices.Insert(slices.Delete(e.Stages, i, i+1), 0, st)
	}
}

// AllowReboot lets the run reboot for a change that needs it, if a boot unit continues afterwards.
// It returns a change that needs a reboot if no unit would continue.
func (r *Run) AllowReboot(ctx context.Context) (*converge.Change, error) {
	if r.Reboots = true; Installs(r.Engine) {
		return nil, nil
	}
	u, err := r.Host.Unit(ctx, stages.BootUnit)
	if err != nil {
		return nil, fmt.Errorf("cannot check the boot unit: %w", err)
	}
	if u.Enabled == "enabled" {
		return nil, nil
	}
	r.Reboots = false // also where a change asks for a reboot that the plan does not show
	p, err := r.Engine.Plan(ctx, r.Host)
	if err != nil {
		return nil, err
	}
	for _, ch := range p.Changes {
		if slices.Contains(ch.Breaks, "reboot") && ch.Cannot == "" {
			return &ch, nil
		}
	}
	return nil, nil
}

// Reboot reboots the machine after the journal is written to disk. It returns as soon as systemd
// has begun the reboot.
func Reboot(ctx context.Context, h host.Host) error {
	_, err := h.Do(context.WithoutCancel(ctx), "systemctl", "reboot")
	return err
}
