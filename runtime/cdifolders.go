// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/crio"
	"github.com/gpuadm/gpuadm/runtime/docker"
)

// SpecFolders are the folders in which the engine of pods looks for CDI specs; nil for the usual
// ones, or where no engine is known.
func SpecFolders(f facts.Facts) []string {
	e, err := ForPods(f)
	if err != nil {
		return nil
	}
	return CDIFolders(e)
}

// CDIFolders are the folders in which an engine looks for CDI specs, as its configuration states
// them; nil where it states none, or cannot be read: then they are /etc/cdi and /var/run/cdi.
// Sources: cdi_spec_dirs in docs/cri/config.md of https://github.com/containerd/containerd, from
// 1.7 on, and in docs/crio.conf.5.md of https://github.com/cri-o/cri-o; cdi-spec-dirs in
// https://docs.docker.com/reference/cli/dockerd/.
func CDIFolders(e facts.Engine) []string {
	switch e.Name {
	case "containerd":
		return containerd.CDIFolders(e)
	case "crio":
		return crio.CDIFolders(e)
	case "docker":
		return docker.CDIFolders(e)
	}
	return nil
}
