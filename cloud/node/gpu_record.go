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

// gpuRecord is the annotation of the Node with the PCI addresses of the GPUs that it was last ready
// with. The journal keeps its former values: the bus does not show that a GPU fell off it, and a
// machine with seven of eight GPUs looks like a machine with seven.
const gpuRecord = "nvidia.com/gpuadm.gpus"

// recordedGPUs wants the record to name the GPUs that are on the bus. It comes after the checks,
// which have found these GPUs to work.
func (r readyStage) recordedGPUs() converge.Want {
	addresses := strings.Join(gpusOnBus(r.facts), ",")
	const why = "so that a GPU that falls off the bus is missed"
	return r.want("record "+gpuRecord, valueState(addresses), why)
}

// gpusOnBus returns the addresses of the GPUs on the PCI bus, including those passed through to
// guests.
func gpusOnBus(f facts.Facts) []string {
	var addresses []string
	for _, p := range f.GPUs {
		if p.Display() {
			addresses = append(addresses, p.Address)
		}
	}

	slices.Sort(addresses)
	return addresses
}

// MissingGPUs names the missing GPUs of those that the node was last ready with, unless that was
// undone; "" if there are as many as then. It reads only the journal, so it works without a network
// and before kubelet runs.
func MissingGPUs(v host.View, s spec.Spec, f facts.Facts) string {
	day, former := lastReady(v)
	present := gpusOnBus(f)
	if len(present) >= len(former) || !f.Live || !ReportsToCluster(s) {
		return ""
	}
	missing := slices.DeleteFunc(slices.Clone(former), func(address string) bool {
		return slices.Contains(present, address)
	})
	const text = "on %s the node was ready with %d, and none is at %s any more"
	return fmt.Sprintf(text, day, len(former), trouble.OneLine(strings.Join(missing, ", ")))
}

// lastReady returns the day on which gpuadm last made the node ready, and the addresses of its GPUs
// then; none if it never did, or if that was undone.
func lastReady(v host.View) (day string, gpus []string) {
	for _, run := range converge.ReadJournal(v).Runs() {
		if run.Undone || len(run.Undoes) > 0 {
			continue
		}
		for _, c := range run.Makes {
			if c.Kind == "node" && c.Name == "record "+gpuRecord {
				day = run.Time.Format("2006-01-02")
				gpus = strings.Split(stateValue(c.After), ",")
			}
		}
	}
	return day, gpus
}
