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
// offers them, or with another strategy. Sources: https://github.com/NVIDIA/k8s-device-plugin at
// 1b826acc, internal/rm/device_map.go (buildDeviceMapFromConfigResources,
// assertAllMigDevicesAreValid); https://github.com/NVIDIA/gpu-operator/issues/286.
func (s Sharing) Single(all []Offers) *trouble.Error {
	if s.Strategy != "single" {
		return nil
	}
	says := func(why, format string, args ...any) *trouble.Error {
		return &trouble.Error{
			What:    `cannot offer the GPUs: strategy = "single" takes one kind of partition on all GPUs, and ` + fmt.Sprintf(format, args...),
			Because: []string{"the device plugin offers no GPU at all then: " + why},
			Try:     []string{`write strategy = "mixed" in [sharing]`, "give every GPU the same kind of partition"},
		}
	}
	var kind, of string
	for _, o := range all {
		if o.MIG != all[0].MIG {
			with, without := o.GPU, all[0].GPU
			if all[0].MIG {
				with, without = without, with
			}
			return says("all devices on the node must be configured with the same migEnabled value", "%s has MIG, %s has not", with, without)
		}
		if o.MIG && o.Model != all[0].Model { // the plugin compares what partitions have, as their number of multiprocessors
			return says("more than one MIG device type present on node", "%s is %s, %s is %s", all[0].GPU, all[0].Model, o.GPU, o.Model)
		}
		if o.MIG && len(o.Kinds) == 0 {
			return says("device has no MIG devices configured", "%s has MIG and no partition", o.GPU)
		}
		for _, k := range o.Kinds {
			if kind == "" {
				kind, of = k, o.GPU
			}
			if sameKind(kind, k) {
				continue
			}
			and := ", " + o.GPU + " has "
			if o.GPU == of {
				and = " and "
			}
			return says("more than one MIG device type present on node", "%s has %s%s%s", of, kind, and, k)
		}
	}
	return nil
}

// sameKind compares two names; one may lack the memory: 1g, 1g.10gb.
func sameKind(a, b string) bool {
	short := func(s string) string { return regexp.MustCompile(`\.\d+gb`).ReplaceAllString(s, "") }
	return a == b || strings.Contains(a, "gb") != strings.Contains(b, "gb") && short(a) == short(b)
}
