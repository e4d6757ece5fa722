// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/stages"
)

// ClearFailed has systemd forget that units of gpuadm's have failed: an apply has ended well since,
// and it is all that these units do. It starts a kubelet that failed at gpuadm's gate alone, which
// is open now. A kubelet that systemd starts again anyway needs nothing. ClearFailed returns the
// units that are no longer failed.
func (r *Run) ClearFailed(ctx context.Context) (cleared []string, err error) {
	if !r.Host.Live() {
		return nil, nil
	}
	now := view.Snapshot(r.Host) // lists systemd's folders once for all units
	has, err := stages.HasBootUnit(now)
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether units of gpuadm's have failed: %w", err)
	}
	if !has {
		return nil, nil
	}

	for _, unit := range stages.OwnServices() {
		if !hasFailed(ctx, now, unit, func(host.Unit) bool { return true }) {
			continue
		}
		if err := r.Host.SetUnit(ctx, unit, host.UnitChange{Job: "reset-failed"}); err != nil {
			return cleared, err
		}
		cleared = append(cleared, unit)
	}

	if hasFailed(ctx, now, stages.KubeletUnit, refusedByGate) {
		if err := r.Host.SetUnit(ctx, stages.KubeletUnit, host.UnitChange{Job: "start"}); err != nil {
			return cleared, err
		}
		cleared = append(cleared, stages.KubeletUnit)
	}

	return cleared, nil
}

// hasFailed says whether a unit has failed in this way.
func hasFailed(ctx context.Context, v host.View, unit string, way func(host.Unit) bool) bool {
	u, err := v.Unit(ctx, unit)
	return err == nil && u.Active == "failed" && way(u)
}

// refusedByGate says whether it was gpuadm's gate that kept a unit from starting. A package's
// drop-in runs the program in /usr/bin.
func refusedByGate(u host.Unit) bool {
	program := path.Base(stages.Binary)
	return len(u.Refused) == 2 && path.Base(u.Refused[0]) == program && u.Refused[1] == "gate"
}
