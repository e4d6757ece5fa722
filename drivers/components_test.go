// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"
	"testing"
)

// TestUnnamedComponents: both forms of apt's sources.
func TestUnnamedComponents(t *testing.T) {
	c := Choice{Repo: Repository{Component: "contrib non-free non-free-firmware"}}
	for _, row := range []struct{ sources, missing string }{
		{"-- etc/apt/sources.list --\ndeb http://debian.example/debian bookworm main\n", "do not name contrib, non-free, non-free-firmware:"},
		{"-- etc/apt/sources.list --\ndeb http://debian.example/debian bookworm main contrib non-free-firmware\n# deb x y non-free\n", "do not name non-free:"},
		{"-- etc/apt/sources.list --\ndeb http://debian.example/debian bookworm main contrib non-free non-free-firmware\n", ""},
		{"-- etc/apt/sources.list.d/debian.sources --\nTypes: deb\nURIs: http://debian.example/debian\nSuites: trixie\nComponents: main contrib non-free non-free-firmware\n", ""},
	} {
		said := c.unnamed(simulated(t, row.sources))
		if (said == "") != (row.missing == "") || !strings.Contains(said, row.missing) {
			t.Errorf("%s: %q", row.sources, said)
		}
	}
	c.Repo.URL = "https://mirror.example/debian"
	if said := c.unnamed(simulated(t, "-- etc/apt/sources.list --\ndeb x y main\n")); said != "" {
		t.Errorf("a repository of its own: %q", said)
	}
}
