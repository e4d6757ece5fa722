// SPDX-FileCopyrightText: The gpuadm authors
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

// perGPU says whether a GPU that cannot change waits alone: as the spec says, else at boot.
func perGPU(s spec.Spec, f facts.Facts) bool {
	return s.MIG.Failure == "per-gpu" || s.MIG.Failure != "all-or-nothing" && f.Booting
}

// alone is a GPU that is in use or does not answer: it waits, and the other GPUs get their partitions.
type alone struct {
	gpu
	to func(converge.State) (converge.State, error)
}

// Look lets a change wait that would take the GPU from the processes that use it.
func (a alone) Look(ctx context.Context, v host.View) (converge.State, error) {
	found, err := a.gpu.Look(ctx, v)
	if err != nil || found == "" {
		return found, err
	}
	to, err := a.to(found)
	if err != nil || to == found {
		return found, nil // To says it again
	}
	_, clients, err := a.Breaks(ctx, v, found, to)
	if users := clients["stop-clients"]; err == nil && len(users) > 0 {
		return "", trouble.Wait{
			For: fmt.Sprintf("GPU %s is in use: %s", a.address, strings.Join(trouble.Few(users, 3), ", ")),
			Try: []string{"end what uses it, or drain the node; the other GPUs have their partitions"},
		}
	}
	return found, err
}

// waits is the want for a GPU that does not answer.
func waits(g host.GPU, why string) converge.Want {
	return untouched("partitions of GPU "+called(g), trouble.Wait{For: "GPU " + called(g) + " does not answer: " + g.Lost}, why)
}

// mayStop says whether the spec lets a change end the processes that use a GPU.
func mayStop(s spec.Spec) bool { return slices.Contains(s.Disruption.Allow, "stop-clients") }
