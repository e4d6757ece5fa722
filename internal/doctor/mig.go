// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// answering returns the GPUs that the driver lists, and that answer.
func (m *Machine) answering() (list []host.GPU) {
	d := m.Facts().Driver
	if d == nil {
		return nil
	}
	for _, g := range d.GPUs {
		if g.Lost == "" {
			list = append(list, g)
		}
	}

	return list
}

// notSingle says what of the GPUs does not fit NVIDIA's strategy single, by which all GPUs have
// partitions of one profile, or none has; "" if all does, or where the Node's label names
// another strategy.
// Sources: internal/rm/device_map.go in https://github.com/NVIDIA/k8s-device-plugin
// (assertAllMigDevicesAreValid);
// https://github.com/NVIDIA/gpu-operator/issues/460.
func (m *Machine) notSingle(registered registration) string {
	if registered.node.Labels["nvidia.com/mig.strategy"] != "single" {
		return ""
	}

	var profiles []string
	whole := 0
	for _, gpu := range m.answering() {
		if !gpu.Mode {
			whole++
			continue
		}
		for _, instance := range gpu.Instances {
			isIts := func(p host.Profile) bool { return p.ID == instance.Profile }
			if i := slices.IndexFunc(gpu.Profiles, isIts); i >= 0 {
				profiles = append(profiles, gpu.Profiles[i].Name)
			}
		}
	}

	slices.Sort(profiles)
	profiles = slices.Compact(profiles)
	switch {
	case len(profiles) > 1:
		return "the GPUs have partitions of " + strings.Join(profiles, " and ")
	case len(profiles) == 1 && whole > 0:
		inMode := len(m.answering()) - whole
		return trouble.Count(inMode, "GPU") + " in MIG mode, and the others are not"
	}

	return ""
}

// otherPartitions plans the stage of [mig] and touches nothing. Where another program partitions
// the GPUs, the stage wants nothing.
func otherPartitions(m *Machine) (list []Finding) {
	if !m.spec.MIG.Asked() || m.Facts().Driver == nil {
		return nil
	}
	f, err := facts.Gather(m.ctx, m.View, mig.Stage.Needs(m.spec))
	if err != nil {
		return nil // Facts has noted it
	}
	wants, err := mig.Stage.Wants(m.spec, f)
	var refused *trouble.Error
	switch {
	case errors.As(err, &refused) && !trouble.IsUnknown(err):
		return []Finding{refusedPartitions(refused)}
	case err != nil:
		m.cannotRead("the partitions that node.toml asks for", err)
	}

	for _, w := range wants {
		if w.Ref().Kind != "mig" {
			continue
		}
		name := w.Ref().Name
		found, err := w.Look(m.ctx, m.View)
		var inUse trouble.Wait // failure in [mig] is per-gpu
		if errors.As(err, &inUse) {
			list = append(list, Finding{
				Object: name,
				What:   inUse.For + "; node.toml asks for other partitions of it",
			})
			continue
		}
		if err != nil {
			continue // GPU-003 names a GPU that does not answer
		}
		want, err := w.To(found)
		if err != nil || want == found {
			continue
		}
		list = append(list, Finding{
			Object: name,
			What:   fmt.Sprintf("GPU %s has MIG %s, and node.toml asks for %s", name, found, want),
		})
	}

	return list
}

// refusedPartitions is the finding where gpuadm cannot make what node.toml asks for.
func refusedPartitions(refused *trouble.Error) Finding {
	return Finding{
		Object:  "[mig]",
		What:    refused.What,
		Fix:     strings.Join(refused.Try, "; "),
		Command: trouble.Command("plan mig"),
	}
}

func noPartition(m *Machine) (list []Finding) {
	if m.Basics().DynamicMIG != "" {
		return nil // pods have them made
	}
	for _, g := range m.answering() {
		if g.Mode && len(g.Instances) == 0 {
			list = append(list, Finding{
				Object:  g.Address,
				What:    fmt.Sprintf("GPU %s is in MIG mode and has no instance", g.Address),
				Command: fmt.Sprintf("sudo nvidia-smi mig -i %s -lgip", g.Address),
			})
		}
	}

	return list
}

func waitsForReset(m *Machine) (list []Finding) {
	for _, g := range m.answering() {
		if g.Mode == g.Pending {
			continue
		}
		now := "off"
		after := "on"
		if g.Mode {
			now = "on"
			after = "off"
		}
		what := fmt.Sprintf("GPU %s has MIG mode %s, and %s after a reset", g.Address, now, after)
		if holders, err := devices.Clients(m.ctx, m.View); err == nil && len(holders) > 0 {
			what += "; " + strings.Join(trouble.Few(holders, 3), ", ")
		}
		list = append(list, Finding{
			Object:  g.Address,
			What:    what,
			Command: resetCommand(g.Address),
		})
	}
	return list
}
