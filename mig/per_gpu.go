// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// perGPU reports whether a GPU that cannot change waits, while the others get their partitions:
// failure in [mig] decides; with "auto" it does so at boot.
func perGPU(s spec.Spec, f facts.Facts) bool {
	return s.MIG.Failure == "per-gpu" || s.MIG.Failure != "all-or-nothing" && f.Booting
}

// mayStop reports whether the spec lets a change end the processes that use a GPU.
func mayStop(s spec.Spec) bool {
	return slices.Contains(s.Disruption.Allow, "stop-clients")
}

// gpuThatWaits is a GPU that waits while it is in use; the other GPUs get their partitions.
type gpuThatWaits struct {
	gpu
	to func(converge.State) (converge.State, error)
}

// Look returns a trouble.Wait if the change would take the GPU from the processes that use it.
func (g gpuThatWaits) Look(ctx context.Context, v host.View) (converge.State, error) {
	found, err := g.gpu.Look(ctx, v)
	if err != nil || found == "" {
		return found, err
	}
	to, err := g.to(found)
	if err != nil || to == found {
		return found, nil // the engine calls To next, and reports its error
	}

	_, clients, err := g.Breaks(ctx, v, found, to)
	users := clients["stop-clients"]
	if err == nil && len(users) > 0 {
		return "", trouble.Wait{
			For: fmt.Sprintf("GPU %s is in use: %s", g.address, strings.Join(trouble.Few(users, 3), ", ")),
			Try: []string{"end what uses it, or drain the node; the other GPUs have their partitions"},
		}
	}

	return found, err
}

// lostGPU is the want for a GPU that does not answer: it waits.
func lostGPU(g host.GPU, why string) converge.Want {
	name := addressOrIndex(g)
	wait := trouble.Wait{For: "GPU " + name + " does not answer: " + g.Lost}

	return untouched("partitions of GPU "+name, wait, why)
}
