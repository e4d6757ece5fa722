// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// String describes the machine in one line, without unknown parts:
// ubuntu 24.04 · kernel 6.8.0-1021-aws · 8 × H100 80GB · containerd 1.7.24
func (f Facts) String() string {
	os := strings.TrimSpace(f.OS.ID + " " + f.OS.Version)
	gpus := countGPUs(f.GPUs)
	if gpus == "" && f.Live {
		gpus = "no NVIDIA GPU"
	}

	parts := []string{os, f.Kernel.summary(f.Live), gpus}
	for _, e := range f.Engines {
		parts = append(parts, e.summary())
	}
	known := slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	return strings.Join(known, " · ")
}

// summary names the running kernel, or a kernel of an image; "" if none is known.
func (k Kernel) summary(live bool) string {
	switch {
	case k.Running != "":
		return "kernel " + k.Running
	case len(k.Installed) > 0 && !live:
		return "kernel " + k.Installed[0]
	}
	return ""
}

// summary names an engine with its version and its owner, as far as they are known.
func (e Engine) summary() string {
	text := e.Name
	if e.Version != "" {
		text += " " + e.Version
	}
	if e.Owner != "" {
		text += " (" + e.Owner + ")"
	}
	return text
}

// countGPUs counts the GPUs of each model, in the order in which the models first appear on the
// bus.
func countGPUs(all []PCI) string {
	var order []string
	count := map[string]int{}
	for _, gpu := range all {
		if !gpu.Display() {
			continue
		}
		name := cmp.Or(gpu.Model, "NVIDIA GPU "+gpu.Device)
		if count[name] == 0 {
			order = append(order, name)
		}
		count[name]++
	}

	for i, name := range order {
		order[i] = fmt.Sprintf("%d × %s", count[name], name)
	}
	return strings.Join(order, " + ")
}
