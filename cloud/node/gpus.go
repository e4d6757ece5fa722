// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// GPUs is the last stage before kubelet: it checks that the GPUs work. Without it kubelet would
// start although the GPUs do not answer: the stages before can only wait for a driver that does not
// answer, and a node whose kubelet is held back has no startup taint.
func GPUs() converge.Stage {
	return converge.Stage{
		Name:  "gpus",
		About: "verifies that the GPUs work, before kubelet starts",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			if !TellsCluster(s) || !hasGPU(f) || !f.Live || s.Join.Gate == "open" || !gated(s, f) && !method.EKSOwn(s, f) {
				return nil, nil
			}
			var list []converge.Want
			for _, c := range gpuChecks(s, f) {
				look := func(ctx context.Context, v host.View) (string, error) {
					problem, err := c.look(ctx, v)
					if problem != "" {
						problem = "cannot let kubelet start: " + problem
					}
					return problem, err
				}
				w := things.Check("before kubelet: "+c.what, look, "kubelet is held back until the GPUs work", c.try...)
				w.Section = nodeSection(s)
				list = append(list, w)
			}
			return list, nil
		},
		Needs: func(s spec.Spec) facts.Needs { return readyNeeds(s, facts.Needs{Driver: true, Files: method.Files(s)}) },
		Whole: true,
		Holds: true, // the next stages may start kubelet
	}
}

// gpuCheck is a check of the GPUs that does not depend on the cluster.
type gpuCheck struct {
	what string
	look func(context.Context, host.View) (problem string, err error)
	try  []string
}

// gpuChecks returns all checks; only one if no driver answers.
func gpuChecks(s spec.Spec, f facts.Facts) []gpuCheck {
	if f.Driver == nil {
		return []gpuCheck{{"the driver", func(ctx context.Context, v host.View) (string, error) { return noDriver(ctx, v, f) }, []string{trouble.Command("doctor") + ", which finds the cause and names the fix"}}}
	}
	pure := func(problem string) func(context.Context, host.View) (string, error) {
		return func(context.Context, host.View) (string, error) { return problem, nil }
	}
	return []gpuCheck{
		{"the driver", pure(wrongDriver(s, *f.Driver)), []string{trouble.Command("plan modules") + ", which says how to get there"}},
		{"all GPUs", pure(missingGPUs(s, f)), []string{"lspci -d 10de: lists them; dmesg tells why one fell off the bus"}},
		{
			"NVLink fabric", func(context.Context, host.View) (string, error) { return fabricOpen(*f.Driver) },
			[]string{"systemctl status nvidia-fabricmanager; its version must be the driver's"},
		},
		{"licences", func(context.Context, host.View) (string, error) { return "", unlicensed(s, f) }, nil},
		cudaCheck(f),
	}
}

// waitsForGPUs returns a function that returns the wait of the first check that has to wait. A
// failed check has already stopped the apply; a wait stops only the steps that need the GPUs.
func waitsForGPUs(s spec.Spec, f facts.Facts) func(context.Context, host.View) error {
	var once sync.Once
	var waits error
	return func(ctx context.Context, v host.View) error {
		once.Do(func() {
			for _, c := range gpuChecks(s, f) {
				if _, waits = c.look(ctx, v); waits != nil {
					return
				}
			}
		})
		return waits
	}
}

// gpuRecord is the annotation of the Node with the PCI addresses of the GPUs that it was last ready
// with. The journal keeps its former values: the bus does not show that a GPU fell off it, and a
// machine with seven of eight GPUs looks like a machine with seven.
const gpuRecord = "nvidia.com/gpuadm.gpus"

// recordedGPUs wants the record to name the GPUs that are on the bus. It comes after the checks,
// which have found these GPUs to work.
func (r readyStage) recordedGPUs() converge.Want {
	return r.want("record "+gpuRecord, valueState(strings.Join(gpusOnBus(r.facts), ",")), "so that a GPU that falls off the bus is missed")
}

// gpusOnBus returns the addresses of the GPUs on the PCI bus, including those passed through to
// guests.
func gpusOnBus(f facts.Facts) (addresses []string) {
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
	on, had := lastReady(v)
	now := gpusOnBus(f)
	if len(now) >= len(had) || !f.Live || !TellsCluster(s) {
		return ""
	}
	gone := slices.DeleteFunc(slices.Clone(had), func(at string) bool { return slices.Contains(now, at) })
	return fmt.Sprintf("on %s the node was ready with %d, and none is at %s any more", on, len(had), trouble.OneLine(strings.Join(gone, ", ")))
}

// lastReady returns when gpuadm last made the node ready, and the addresses of its GPUs then; none
// if it never did, or if that was undone.
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
