// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A GPU in MIG mode takes no part in the NVLink fabric, so the node does not wait for it; another GPU is waited for.
func TestFabricOfGPUsInMIGMode(t *testing.T) {
	for _, state := range []string{"not-started", "in-progress"} {
		g := host.GPU{Address: "0000:17:00.0", MIG: true, Mode: true, Fabric: host.Fabric{State: state}}
		if open, err := fabricOpen(host.Driver{GPUs: []host.GPU{g}}); open != "" || err != nil {
			t.Errorf("%s in MIG mode: %q, %v", state, open, err)
		}
		g.Mode = false
		if open, err := fabricOpen(host.Driver{GPUs: []host.GPU{g}}); open == "" && err == nil {
			t.Errorf("%s without MIG mode is ready", state)
		}
	}
}
