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

// preflight is the stage that verifies what must be true before the first touch.
func preflight() converge.Stage {
	return converge.Stage{
		Name:  "preflight",
		About: "verifies what must hold before the first touch: the expected GPUs, and the cloud's own scripts",
		Notes: preflightNotes,
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			if !f.Live {
				return nil, nil
			}
			return append(cloud.Begin(s, f), gpusOnTheBus(s, f)), nil
		},
	}
}

func preflightNotes(v host.View, _ spec.Spec, f facts.Facts) []string {
	notes := append(cloud.Limits(f), maskNotes(v)...)
	for _, name := range []string{"/etc", converge.Home} {
		room, err := v.Room(name)
		if err == nil && room.ReadOnly {
			notes = append(notes, name+" is on a read-only file system: an apply that has something to change there fails")
		}
	}

	return notes
}

// gpusOnTheBus wants as many GPUs as the spec expects, else those of before. A GPU that fell off
// the bus leaves nothing on it: without this check a machine that lost all its GPUs would pass as a
// machine that never had any, and a machine with seven of eight as complete.
func gpusOnTheBus(s spec.Spec, f facts.Facts) converge.Want {
	found := 0
	for _, p := range f.GPUs {
		if p.Display() {
			found++
		}
	}

	look := func(_ context.Context, v host.View) (string, error) {
		expected := s.Driver.GPUCount
		if expected > 0 && found == expected {
			return "", nil
		}
		why := node.MissingGPUs(v, s, f)
		if expected == 0 && why == "" {
			return "", nil
		}
		return gpusMissing(found, expected, why), nil
	}

	return things.Check("NVIDIA GPUs on the PCI bus", look,
		"a GPU that falls off the bus leaves nothing on it",
		"lspci -d 10de: lists them, and dmesg shows PCI errors")
}

// gpusMissing says what is wrong with the number of GPUs, and what to do. expected is 0 where the
// spec expects no number.
func gpusMissing(found, expected int, why string) string {
	problem := "cannot prepare this node: the PCI bus has " + trouble.Count(found, "NVIDIA GPU")
	if expected > 0 {
		problem += fmt.Sprintf(", node.toml expects %d", expected)
	}
	if why != "" {
		problem += ": " + why
	}

	ifMeant := fmt.Sprintf("if %d is right: gpu_count = %d in [driver]", found, found)
	switch {
	case found == 0 && expected == 0:
		ifMeant = "if the GPUs were taken out for good: " + trouble.Command("undo --to all") + ", then apply again"
	case found == 0:
		ifMeant = "if the machine should have none: remove gpu_count from [driver]"
	}

	return problem + things.OrTry(faults.Of("GPU-001").Fix) + things.OrTry(ifMeant)
}
