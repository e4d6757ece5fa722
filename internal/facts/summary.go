// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"strings"
)

// String says what machine this is in one line, leaving out what is unknown:
// ubuntu 24.04 · kernel 6.8.0-1021-aws · 8 × H100 80GB · containerd 1.7.24
func (f Facts) String() string {
	var parts []string
	if os := strings.TrimSpace(f.OS.ID + " " + f.OS.Version); os != "" {
		parts = append(parts, os)
	}

	switch {
	case f.Kernel.Running != "":
		parts = append(parts, "kernel "+f.Kernel.Running)
	case len(f.Kernel.Installed) > 0 && !f.Live:
		parts = append(parts, "kernel "+f.Kernel.Installed[0])
	}

	if gpus := countGPUs(f.GPUs); gpus != "" {
		parts = append(parts, gpus)
	} else if f.Live {
		parts = append(parts, "no NVIDIA GPU")
	}

	for _, e := range f.Engines {
		engine := e.Name
		if e.Version != "" {
			engine += " " + e.Version
		}
		if e.Owner != "" {
			engine += " (" + e.Owner + ")"
		}
		parts = append(parts, engine)
	}

	return strings.Join(parts, " · ")
}

// countGPUs counts the GPUs of each model, in the order in which the models first appear on the
// bus.
func countGPUs(all []PCI) string {
	var order []string
	count := map[string]int{}
	for _, p := range all {
		if !p.Display() {
			continue
		}
		name := p.Model
		if name == "" {
			name = "NVIDIA GPU " + p.Device
		}
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
