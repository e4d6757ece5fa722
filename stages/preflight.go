// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// preflight verifies what must be true before the first touch.
func preflight() converge.Stage {
	return converge.Stage{
		Name:  "preflight",
		About: "verifies what must hold before the first touch: the expected GPUs, and the cloud's own scripts",
		Notes: func(v host.View, _ spec.Spec, f facts.Facts) []string {
			return append(cloud.Limits(f), maskNotes(v)...)
		},
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			switch first := cloud.Begin(s, f); {
			case !f.Live:
				return nil, nil
			case s.Driver.GPUCount > 0:
				return append(first, gpusOnTheBus(s, f)), nil
			default:
				return append(first, gpusAsBefore(s, f)), nil
			}
		},
	}
}

// gpusAsBefore refuses a machine that has lost GPUs. Without this check a machine without GPUs would count as one that never had
// any, and a machine with seven of eight GPUs as one with seven.
func gpusAsBefore(s spec.Spec, f facts.Facts) converge.Want {
	n := gpuCount(f)
	look := func(_ context.Context, v host.View) (string, error) {
		why := node.MissingGPUs(v, s, f)
		switch {
		case why == "":
			return "", nil
		case n == 0: // gpu_count = 0 expects none in particular
			return "cannot prepare this node: no NVIDIA GPU is on the PCI bus: " + why +
				things.OrTry("if the GPUs were taken out for good: "+trouble.Command("undo --to all")+", then apply again"), nil
		}
		return fmt.Sprintf("cannot prepare this node: only %d NVIDIA GPUs are on the PCI bus: %s", n, why) +
			things.OrTry(fmt.Sprintf("if it was removed on purpose: gpu_count = %d in [driver], at least until one apply has succeeded", n)), nil
	}
	return things.Check("NVIDIA GPUs on the PCI bus", look, "a GPU that falls off the bus leaves nothing on it",
		"dmesg shows PCI errors", faults.Of("GPU-001").Fix)
}

func gpuCount(f facts.Facts) (n int) {
	for _, p := range f.GPUs {
		if p.Display() {
			n++
		}
	}
	return n
}

// gpusOnTheBus wants as many GPUs as the spec expects. A GPU that fell off the bus is gone for lspci too, and a node
// that joins without it is paid for and never used.
func gpusOnTheBus(s spec.Spec, f facts.Facts) converge.Want {
	n, expect := gpuCount(f), s.Driver.GPUCount
	look := func(_ context.Context, v host.View) (string, error) {
		if n == expect {
			return "", nil
		}
		problem := fmt.Sprintf("cannot prepare this node: %d NVIDIA GPUs are on the PCI bus, node.toml expects %d", n, expect)
		if why := node.MissingGPUs(v, s, f); why != "" {
			problem += ": " + why
		}
		meant := fmt.Sprintf("if %d is right: gpu_count = %d in [driver]", n, n)
		if n == 0 {
			meant = "if the machine should have none: remove gpu_count from [driver]"
		}
		return problem + things.OrTry(meant), nil
	}
	return things.Check("NVIDIA GPUs on the PCI bus", look, "gpu_count in [driver]",
		"lspci -d 10de: lists them, and dmesg shows PCI errors", faults.Of("GPU-001").Fix)
}
