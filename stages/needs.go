// SPDX-License-Identifier: Apache-2.0

package stages

import "github.com/gpuadm/gpuadm/internal/converge"

const (
	theNetwork = "the network"
	theCluster = "the cluster"
	aGPU       = "a GPU"
)

// Needs says what a deferred change needs that an image does not have.
func Needs(ch converge.Change) string {
	switch ch.Kind {
	case "package", "package-lists", "package-key", "package-stream", "package-database", "runfile":
		return theNetwork
	case "module", "fabric", "mig", "cdi", "device-links", "paused":
		return aGPU
	case "node", "guard", "registered", "joined":
		return theCluster
	case "restart", "daemon", "unit", "unit-files":
		return "systemd"
	}

	switch ch.Stage {
	case "join", "joined", "ready":
		return theCluster
	case "mig", "modules", "gpus":
		return aGPU
	}

	return "the running machine"
}
