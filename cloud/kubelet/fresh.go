// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// freshUnit is a kubelet that has read its files since they changed. It is things.Restart for a
// daemon that may fail for good reasons: before the machine has joined, kubelet exits because it
// has no credentials, and systemd restarts it repeatedly. Between two starts it counts as
// converged, since the next start reads the files; an exit after a restart is not a failure.
type freshUnit struct {
	converge.Follower // of kind restart
	unit              string
	validate          things.PrecheckFunc
}

// Fresh wants a running kubelet to have read these files since they changed.
func Fresh(k facts.Kubelet, files []string, why string) converge.Want {
	w := things.Restart(k.Unit, files, nil, why)
	w.Breaks = []string{"restart-kubelet"}
	w.Thing = freshUnit{
		Follower: things.NewRestart(k.Unit, files, nil),
		unit:     k.Unit,
		validate: canRestart(k),
	}
	return w
}

// Validate says why kubelet would not start again.
func (f freshUnit) Validate(ctx context.Context, v host.View, _, _ converge.State) error {
	if f.validate == nil {
		return nil
	}
	return f.validate(ctx, v)
}

// FormUnit is the form of kubelet's thing of kind restart, for the journal.
const FormUnit = "kubelet"

// Ref is the restart's, with the form by which undo finds NewRestart.
func (f freshUnit) Ref() converge.Ref {
	r := f.Follower.Ref()
	r.Form = FormUnit
	return r
}

// IsUnit says whether kubelet runs in this unit, alone or together with its engine: undo builds
// each of the unit's restarts with NewRestart. K3s's installer can name its unit k3s-NAME.service.
func IsUnit(name string) bool {
	return slices.Contains(facts.KubeletUnits(), name) || strings.HasPrefix(name, "k3s-")
}

// NewRestart builds kubelet's thing of kind restart, for undo.
func NewRestart(unit string, files []string) converge.Thing {
	return NewJudged(unit, files, nil)
}

// NewJudged is NewRestart with a verdict: where the engine runs in kubelet's unit, it restarts with
// kubelet.
func NewJudged(unit string, files []string, verdict things.PrecheckFunc) converge.Thing {
	return freshUnit{Follower: things.NewJudged(unit, files, nil, verdict), unit: unit}
}

func (f freshUnit) Look(ctx context.Context, v host.View) (converge.State, error) {
	state, err := f.Follower.Look(ctx, v)
	stopped := state == "failed" || state == "inactive" || state == ""
	if err != nil || !stopped {
		return state, err
	}
	unit, err := v.Unit(ctx, f.unit)
	if err != nil {
		return "", err
	}

	switch {
	case state == "failed" && unit.Active == "activating": // between two starts
		return things.UpToDate, nil
	case state == "failed":
		return "inactive", nil // systemd gave up; its next start reads the files
	case unit.Enabled != "enabled": // undo of a join has stopped it, and must not start it again
		return "", host.Later{Until: "its start"}
	}

	return state, nil
}
