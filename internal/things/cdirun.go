// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// cdiRun is the toolkit's service run again after partitions have changed, also by an undo of them. It judges nothing, so that no
// spec that cannot be written takes partitions back: that is for the thing cdi, which a crash between the two is healed by as well.
type cdiRun struct{}

const (
	cdiRan = "ran"
	cdiDue = "due"
)

// CDIRun wants the toolkit's service to run after partitions have changed, where it is installed.
func CDIRun() converge.Want {
	return converge.Want{Thing: cdiRun{}, Why: "the CDI spec names partitions, and does not follow them by itself", To: func(found converge.State) (converge.State, error) {
		return cdiRun{}.Settled(found), nil
	}}
}

// NewCDI builds a thing of the kind again.
func NewCDI(name string) converge.Thing {
	if name == (cdiRun{}).Name() {
		return cdiRun{}
	}
	return cdi{}
}

func (cdiRun) Kind() string { return "cdi" }
func (cdiRun) Name() string { return CDIUnit }

func (cdiRun) Look(ctx context.Context, v host.View) (converge.State, error) {
	u, err := v.Unit(ctx, CDIUnit)
	if u.Load == "not-found" || u.Load == "masked" {
		return cdiNone, nil
	} else if err != nil {
		return "", err
	}
	return cdiRan, nil
}

func (cdiRun) Make(ctx context.Context, h host.Host, to converge.State) error {
	u, err := h.Unit(ctx, CDIUnit)
	if err != nil || to != cdiRan {
		return err
	}
	if waits, err := cdiWaits(ctx, h, u); err != nil || waits {
		return err
	}
	_ = h.SetUnit(ctx, CDIUnit, host.UnitChange{Job: "restart"}) // the spec says whether it worked
	return nil
}

// Unsettled says that the service is due once partitions have changed.
func (cdiRun) Unsettled(found converge.State, by converge.Change) converge.State {
	if by.Kind != "mig" || found == cdiNone {
		return found
	}
	return cdiDue
}

// Settled says that what is due has run.
func (cdiRun) Settled(found converge.State) converge.State {
	if found == cdiDue {
		return cdiRan
	}
	return found
}
