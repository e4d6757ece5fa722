// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/crio"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// ForPods is the engine that pods run on.
func ForPods(f facts.Facts) (facts.Engine, error) { return chosen(spec.Runtime{Engine: "auto"}, f) }

// NeedsHandler says whether containers get the GPUs by a handler on this machine: GKE's device plugin needs none.
func NeedsHandler(f facts.Facts) bool {
	h, err := HandlerOwner(spec.Spec{}, f)
	return err == nil && h.Name != ""
}

// ReadConfigured reads an engine's configuration.
func ReadConfigured(e facts.Engine) engine.Configured {
	switch e.Name {
	case "containerd":
		return containerd.Configured(e)
	case "crio":
		return crio.Configured(e)
	case "docker":
		return docker.Configured(e)
	}
	return engine.Configured{}
}

// Reread wants the engine that pods run on to have started after its configuration was changed. It edits nothing.
func Reread(f facts.Facts) ([]converge.Want, error) {
	e, err := chosen(spec.Runtime{Engine: "auto"}, f)
	if err != nil {
		return nil, err
	}
	files, why := containerd.Reads(e), e.Name+" reads its configuration when it starts"
	switch e.Name {
	case "crio":
		files = []string{e.Config, e.Folder}
	case "docker":
		return []converge.Want{docker.Reread(e, why)}, nil
	}
	return []converge.Want{engine.Restart(f, e, files, Ready, why)}, nil
}
