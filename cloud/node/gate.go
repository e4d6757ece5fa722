// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// BootUnit is the unit that runs apply at each boot.
const BootUnit = "/etc/systemd/system/gpuadm.service"

// GateOf returns the drop-in that makes a unit wait for gpuadm.service.
func GateOf(unit string) string {
	return "/etc/systemd/system/" + unit + ".d/50-gpuadm.conf"
}

// gated reports whether kubelet is held back until the GPUs are ready: by a drop-in of its own
// unit, or of the platform's unit that starts it, which stage join orders after gpuadm.service. Of
// the second drop-in gated asks the spec, since it does not exist yet at the first call.
func gated(s spec.Spec, f facts.Facts) bool {
	if f.Kubelet.Unit != "" && f.Files[GateOf(f.Kubelet.Unit)] != nil {
		return true
	}
	join := platform.Of(f.Cloud.Managed).Join
	usesJoin := s.Join.Method == join.Method || s.Join.Method == "auto"
	return join.Unit != "" && usesJoin && f.Files[BootUnit] != nil
}

// KeepsPodsOff says what keeps pods off the machine at its next boot until the GPUs are ready; ""
// if gpuadm does not manage the node, or if it has no GPUs. A taint affects only new pods: pods
// that are already bound to the node restart with kubelet, as after any reboot.
func KeepsPodsOff(ctx context.Context, v host.View, s spec.Spec) (string, error) {
	if !ReportsToCluster(s) || !v.Live() {
		return "", nil
	}
	f, err := facts.Gather(ctx, v, StartupNeeds())
	if err != nil || !hasGPU(f) {
		return "", err
	}
	return keepsPodsOff(s, f), nil
}

func keepsPodsOff(s spec.Spec, f facts.Facts) string {
	startup, why, err := startupTaint(s, f)
	switch {
	case err != nil:
		return "" // the plan has it
	case gated(s, f) && s.Join.Gate != "open":
		return "at a boot kubelet waits until the GPUs are ready, and pods that are bound to the node wait with it"
	case startup.Key != "":
		const text = "at a boot the taint %s keeps new pods away until the GPUs are ready; those that are bound to the node already come back with kubelet: drain it first, or have kubelet wait, by %s"
		return fmt.Sprintf(text, startup, trouble.Command("apply --install"))
	}

	return "at a boot nothing keeps pods away before the GPUs are ready: " + why
}
