// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Holds says what keeps pods off the machine at its next boot until the GPUs are ready; "" where it is no node that gpuadm
// manages, or has no GPUs. A taint gates new pods alone: those that are bound to the node already come back with kubelet, as after
// any reboot.
func Holds(ctx context.Context, v host.View, s spec.Spec) (string, error) {
	if !TellsCluster(s) || !v.Live() {
		return "", nil
	}
	f, err := facts.Gather(ctx, v, StartupNeeds())
	if err != nil || !hasGPU(f) {
		return "", err
	}
	return holds(s, f), nil
}

func holds(s spec.Spec, f facts.Facts) string {
	startup, on, why, err := startupTaint(s, f)
	held := gated(s, f) && s.Join.Gate != "open"
	switch {
	case err != nil:
		return "" // the plan has it
	case held:
		return "at a boot kubelet waits until the GPUs are ready, and pods that are bound to the node wait with it"
	case on:
		return fmt.Sprintf("at a boot the taint %s keeps new pods away until the GPUs are ready; those that are bound to the node already come back with kubelet: drain it first, or have kubelet wait, by "+trouble.Command("apply --install"), startup)
	}
	return "at a boot nothing keeps pods away before the GPUs are ready: " + why
}
