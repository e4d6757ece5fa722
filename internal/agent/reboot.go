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

// AllowReboot lets the run reboot for a change that needs it, if a boot unit continues afterwards.
// It returns a change that needs a reboot if no unit would continue.
func (r *Run) AllowReboot(ctx context.Context) (*converge.Line, error) {
	r.Reboots = true
	if Installs(r.Engine) {
		return nil, nil
	}
	unit, err := r.Host.Unit(ctx, stages.BootUnit)
	if err != nil {
		return nil, fmt.Errorf("cannot check the boot unit: %w", err)
	}
	if unit.Enabled == "enabled" {
		return nil, nil
	}

	r.Reboots = false // also where a change asks for a reboot that the plan does not show
	p, err := r.Engine.Plan(ctx, r.Host)
	if err != nil {
		return nil, err
	}
	for _, ch := range p.Changes {
		if ch.Cannot == "" && ch.Unknown == "" && slices.Contains(ch.Breaks, "reboot") {
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
