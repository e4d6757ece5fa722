// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

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
