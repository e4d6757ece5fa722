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
	if g := gpus(f.GPUs); g != "" {
		parts = append(parts, g)
	} else if f.Live {
		parts = append(parts, "no NVIDIA GPU")
	}
	for _, e := range f.Engines {
		s := e.Name
		if e.Version != "" {
			s += " " + e.Version
		}
		if e.Owner != "" {
			s += " (" + e.Owner + ")"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " · ")
}

// gpus counts the GPUs by model, in the order in which models first come on the bus.
func gpus(all []PCI) string {
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
