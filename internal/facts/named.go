// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import "strings"

// Named returns a GPU of a known model as the PCI bus would show it: by its device id, 1eb8, or by its name, T4 or "A100 PCIe 80GB".
func Named(name string) (PCI, bool) {
	plain := strings.NewReplacer("-", " ", "0x", "").Replace(strings.ToLower(name))
	plain = strings.TrimPrefix(plain, "nvidia ")
	for row := range strings.Lines(models) {
		words := strings.SplitN(strings.TrimSpace(row), " ", 3)
		if len(words) < 3 || strings.HasPrefix(words[2], "NVSwitch") {
			continue
		}
		if plain == words[0] || plain == strings.ToLower(strings.ReplaceAll(words[2], "-", " ")) {
			return PCI{Vendor: "10de", Device: words[0], Class: "030200", Model: words[2]}, true
		}
	}
	return PCI{}, false
}
