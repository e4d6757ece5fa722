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
	if err := e.Interrupts(devices.WithoutPods(ctx, leaves), h); errors.Is(err, converge.ErrInUse) {
		return false, d.Stays(ctx, err) // evictions would not free the GPUs
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
	return err == nil && errors.Is(r.Engine.Interrupts(devices.WithoutPods(ctx, paused), r.Host), converge.ErrInUse)
}

// AddInstall adds the install stage: after the stages that make the GPUs ready, so that kubelet waits only on a node with ready GPUs,
// and before the stages that depend on whether kubelet waits: else they would ask for a taint that keeps pods away.
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

// InstallFirst moves the install stage, if it was asked for, to the front: else it would come after the reboot that needs
// what it installs.
func InstallFirst(e *converge.Engine) {
	if i := installAt(e); i > 0 {
		st := e.Stages[i]
		e.Stages = slices.Insert(slices.Delete(e.Stages, i, i+1), 0, st)
	}
}

// AllowReboot has the run reboot where a change needs it, if a boot unit continues then. It returns a change that needs a reboot after
// which no unit would continue.
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

// Reboot reboots the machine once all is in the journal. It returns as soon as systemd has begun.
func Reboot(ctx context.Context, h host.Host) error {
	_, err := h.Do(context.WithoutCancel(ctx), "systemctl", "reboot")
	return err
}
