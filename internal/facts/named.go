// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"strings"
)

// Named returns the PCI functions of a model that cannot be seen yet, as an image is for it: "H100 80GB" or "h100-80gb". A model with
// several ids has them all, since an image must fit each. nil where the table of known devices has no such model.
func Named(name string) (all []PCI) {
	for line := range strings.Lines(models) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(f) < 3 || typed(f[2]) != typed(name) {
			continue
		}
		p := PCI{Address: fmt.Sprintf("ffff:%02x:00.0", len(all)), Vendor: "10de", Device: f[0], Class: "030200", Model: f[2]}
		if f[1] != "*" {
			p.Subsystem = f[1]
		}
		if strings.HasPrefix(f[2], "NVSwitch") {
			p.Class = "068000" // bridge, other: the PCI Code and ID Assignment Specification, and pci.ids
		}
		all = append(all, p)
	}
	return all
}

// Models lists the names that Named takes, each once.
func Models() (all []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(models) {
		if f := strings.SplitN(strings.TrimSpace(line), " ", 3); len(f) == 3 && !seen[f[2]] {
			seen[f[2]], all = true, append(all, f[2])
		}
	}
	return all
}

// typed is a model's name as people type it: in any case, with - or _ for a space.
func typed(name string) string {
	return strings.ToLower(strings.NewReplacer("-", " ", "_", " ").Replace(name))
}
