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

// TestUnnamedMultiverse: Ubuntu has the fabric manager in another component than the driver.
func TestUnnamedMultiverse(t *testing.T) {
	const sources = "-- etc/apt/sources.list --\ndeb http://ubuntu.example/ubuntu noble main restricted\n"
	d := with(driver("580"), "source", "distro")
	for gpus, want := range map[string]string{"20b5": "", "20b2 0680:1af1": "components restricted multiverse of the archive, and apt's sources do not name multiverse:"} {
		said := choose(t, machine("ubuntu", "24.04", "amd64", strings.Fields(gpus)...), d).unnamed(simulated(t, sources))
		if (said == "") != (want == "") || !strings.Contains(said, want) {
			t.Errorf("%s: %q", gpus, said)
		}
	}
}
