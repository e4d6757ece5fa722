// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

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
