// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// gpuRecord is the annotation of the Node that has the PCI addresses of the GPUs that it was last ready with. The journal keeps
// what it said: a GPU that falls off the bus leaves nothing on it, and seven that work look like a machine of seven.
const gpuRecord = "nvidia.com/gpuadm.gpus"

// recordedGPUs wants the record to name the GPUs that are on the bus. It comes after the checks, so these were found to work.
func (r readyStage) recordedGPUs() converge.Want {
	return r.want("record "+gpuRecord, valueState(strings.Join(gpusOnBus(r.facts), ",")), "so that a GPU that falls off the bus is missed")
}

// gpusOnBus are the addresses of the GPUs on the PCI bus, those of guests included.
func gpusOnBus(f facts.Facts) (addresses []string) {
	for _, p := range f.GPUs {
		if p.Display() {
			addresses = append(addresses, p.Address)
		}
	}
	slices.Sort(addresses)
	return addresses
}

// MissingGPUs says which GPUs are gone of those that the node was last ready with here; "" where there are as many as then, or
// as many as the instance type has: then it was given another type. It asks the journal alone, so it knows while there is no
// network, and an undo forgets it.
func MissingGPUs(v host.View, s spec.Spec, f facts.Facts) string {
	now := gpusOnBus(f)
	if len(now) == 0 || !f.Live || !TellsCluster(s) {
		return ""
	}
	all := remembered(v, "record "+gpuRecord)
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	had := strings.Split(stateValue(converge.State(last.after)), ",")
	if len(now) >= len(had) {
		return ""
	}
	if t, ok := instance.TypeOf(f.Cloud.Name, f.Cloud.Type); ok && t.Verified && t.GPUs == len(now) {
		return ""
	}
	gone := slices.DeleteFunc(slices.Clone(had), func(at string) bool { return slices.Contains(now, at) })
	return fmt.Sprintf("on %s the node was ready with %d, and none is at %s any more", last.on, len(had), trouble.OneLine(strings.Join(gone, ", ")))
}
