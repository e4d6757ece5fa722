// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
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

// The plan says which GPUs the node does not wait for, and says nothing where all that count have registered.
func TestFabricNote(t *testing.T) {
	const said = "the node does not wait until GPUs in MIG mode have registered with the NVLink fabric, since they cannot use NVLink: "
	open := host.GPU{Address: "0000:17:00.0", MIG: true, Mode: true, Fabric: host.Fabric{State: "in-progress"}}
	failed := host.GPU{Address: "0000:2a:00.0", MIG: true, Mode: true, Fabric: host.Fabric{State: "completed", Status: "UNKNOWN"}}
	done := host.GPU{Address: "0000:3b:00.0", MIG: true, Mode: true, Fabric: host.Fabric{State: "completed"}}
	none := host.GPU{Address: "0000:4c:00.0", MIG: true, Mode: true}
	whole := host.GPU{Address: "0000:5d:00.0", MIG: true, Fabric: host.Fabric{State: "in-progress"}}
	for _, c := range []struct {
		gpus []host.GPU
		want []string
	}{
		{[]host.GPU{open, failed, done, none, whole}, []string{said + "0000:17:00.0, 0000:2a:00.0"}},
		{[]host.GPU{open}, []string{said + "0000:17:00.0"}},
		{[]host.GPU{done, none, whole}, nil},
	} {
		a := apiFixture(t, apiSpec)
		if got := NewReady(new(Session), nil).Notes(a, a.engine().Spec, facts.Facts{Driver: &host.Driver{GPUs: c.gpus}}); !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got := NewReady(new(Session), nil).Notes(nil, spec.Spec{}, facts.Facts{Driver: &host.Driver{GPUs: []host.GPU{open}}}); got != nil {
		t.Errorf("no node is asked for: %q", got)
	}
}
