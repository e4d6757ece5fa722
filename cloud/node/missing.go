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

// MissingGPUs says which GPUs are gone of those that the node was last ready with here, unless that was undone; "" where there are as many
// as then. It asks the journal alone, so it knows while there is no network, and before kubelet runs.
func MissingGPUs(v host.View, s spec.Spec, f facts.Facts) string {
	on, had := lastReady(v)
	now := gpusOnBus(f)
	if len(now) >= len(had) || !f.Live || !TellsCluster(s) {
		return ""
	}
	gone := slices.DeleteFunc(slices.Clone(had), func(at string) bool { return slices.Contains(now, at) })
	return fmt.Sprintf("on %s the node was ready with %d, and none is at %s any more", on, len(had), trouble.OneLine(strings.Join(gone, ", ")))
}

// lastReady says when the node was last made ready here, and with the GPUs at which addresses; none where it never was, or that was undone.
func lastReady(v host.View) (on string, gpus []string) {
	for _, run := range converge.ReadJournal(v).Runs() {
		if run.Undone || len(run.Undoes) > 0 {
			continue
		}
		for _, c := range run.Makes {
			if c.Kind == "node" && c.Name == "record "+gpuRecord {
				on, gpus = run.Time.Format("2006-01-02"), strings.Split(stateValue(c.After), ",")
			}
		}
	}
	return on, gpus
}
