// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Offers has the resources of one GPU for pods.
type Offers struct {
	GPU   string   // "GPU 0"
	Model string   // "NVIDIA H100 80GB HBM3"; "" where it is not known
	MIG   bool     // whether it is in MIG mode
	Kinds []string // names of its partitions: "3g.40gb", "1c.3g.40gb"
}

// Single says why the device plugin, with strategy = "single", offers none of these GPUs; nil if it
// offers them, or with another strategy.
// Sources: https://github.com/NVIDIA/k8s-device-plugin at 1b826acc, internal/rm/device_map.go
// (buildDeviceMapFromConfigResources, assertAllMigDevicesAreValid);
// https://github.com/NVIDIA/gpu-operator/issues/286.
func (s Spec) Single(all []Offers) *trouble.Error {
	if s.Strategy() != "single" {
		return nil
	}

	var kind, gpu string // of the first partition
	for _, o := range all {
		if fault := o.differs(all[0]); fault != nil {
			return fault
		}
		for _, other := range o.Kinds {
			if kind == "" {
				kind = other
				gpu = o.GPU
			}
			if !sameKind(kind, other) {
				return differentKinds(gpu, kind, o.GPU, other)
			}
		}
	}

	return nil
}

// differs says why the device plugin offers no GPUs for a GPU and the first one.
func (o Offers) differs(first Offers) *trouble.Error {
	switch {
	case o.MIG != first.MIG:
		with, without := o.GPU, first.GPU
		if first.MIG {
			with, without = without, with
		}
		return notSingle(
			"all devices on the node must be configured with the same migEnabled value",
			"%s has MIG, %s has not", with, without)
	case o.MIG && o.Model != first.Model:
		// The plugin compares attributes of partitions, such as multiprocessors.
		return notSingle(severalTypes, "%s is %s, %s is %s", first.GPU, first.Model, o.GPU, o.Model)
	case o.MIG && len(o.Kinds) == 0:
		return notSingle(
			"device has no MIG devices configured",
			"%s has MIG and no partition", o.GPU)
	}
	return nil
}

func differentKinds(gpu, kind, otherGPU, otherKind string) *trouble.Error {
	if otherGPU == gpu {
		return notSingle(severalTypes, "%s has %s and %s", gpu, kind, otherKind)
	}
	return notSingle(severalTypes, "%s has %s, %s has %s", gpu, kind, otherGPU, otherKind)
}

// severalTypes is what the device plugin says.
const severalTypes = "more than one MIG device type present on node"

// notSingle returns the fault for the reason that the device plugin logs.
func notSingle(pluginSays, format string, args ...any) *trouble.Error {
	const takesOne = `cannot offer the GPUs: strategy = "single" takes one kind of partition on all GPUs, and `
	return &trouble.Error{
		What:    takesOne + fmt.Sprintf(format, args...),
		Because: []string{"the device plugin offers no GPU at all then: " + pluginSays},
		Try: []string{
			`write strategy = "mixed" in [sharing]`,
			"give every GPU the same kind of partition",
		},
	}
}

// sameKind compares two names; one may lack the memory: 1g, 1g.10gb.
func sameKind(a, b string) bool {
	onlyOneHasMemory := strings.Contains(a, "gb") != strings.Contains(b, "gb")
	return a == b || onlyOneHasMemory && withoutMemory(a) == withoutMemory(b)
}

func withoutMemory(name string) string {
	return regexp.MustCompile(`\.\d+gb`).ReplaceAllString(name, "")
}
