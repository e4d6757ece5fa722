// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/apt"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Lacks are the repositories and components that the driver's packages depend on and that this
// machine does not enable.
func (c Choice) Lacks(f facts.Facts) []packages.Lack {
	needs := slices.Clone(c.Repo.Needs)
	switch {
	case c.Repo.URL == "":
		needs = append(needs, strings.Fields(c.Repo.Component)...)
	case c.Precompiled:
		needs = nil // nothing is built, so DKMS is not needed
	}

	system := packages.System{
		ID:      f.OS.ID,
		Version: f.OS.Version,
		Arch:    f.Arch,
		Files:   f.Files,
	}
	lacks, components := dnf.Lacking(system, needs)
	return append(lacks, apt.Lacking(system, components)...)
}

// lacking notes, until the driver is installed, the repositories that its packages depend on and
// this machine does not enable. It does not refuse: the machine may enable the repository under
// another name, and a mirror may have all packages.
func (c Choice) lacking(s spec.Driver, f facts.Facts) []string {
	if len(f.Modules.Libraries) > 0 || c.Repo.Mirror || s.Repo.EnableNeeded {
		return nil
	}

	var notes []string
	for _, lack := range c.Lacks(f) {
		if lack.Enabled {
			continue
		}
		note := fmt.Sprintf("the driver's packages depend on %s, and this machine does not enable it: %s", lack.Name, lack.Try)
		if lack.Unavailable() == nil {
			note += "; or write enable_needed = true in [driver.repo], and gpuadm enables it until undo"
		}
		notes = append(notes, note)
	}

	return notes
}

// inMultiverse says whether Ubuntu has a package in multiverse and not in restricted: all packages
// of some branches, and of the other branches those for NVSwitches and IMEX.
// Source: https://packages.ubuntu.com of nvidia-fabricmanager-570 (jammy, noble),
// libnvidia-nscq-580 (resolute), nvidia-headless-550 and libnvidia-compute-595-server (noble);
// restricted: libnvidia-compute-580-server (noble).
func (r repositoryRow) inMultiverse(branch int, m Member) bool {
	switch m.Role {
	case "fabricmanager", "nscq", "imex":
		return true
	}
	return m.Lockstep && slices.Contains(r.Multiverse, branch)
}

// components names the components of the distribution's archive that have the chosen packages.
func (p *plan) components() string {
	if p.repo.Source != SourceUbuntu {
		return p.repo.Component
	}

	multiverse := false
	restricted := false
	for _, m := range p.choice.Members {
		switch {
		case p.repo.inMultiverse(p.branch, m):
			multiverse = true
		case m.Lockstep || m.Role == "module":
			restricted = true
		}
	}

	switch {
	case multiverse && restricted:
		return p.repo.Component + " multiverse"
	case multiverse:
		return "multiverse"
	}

	return p.repo.Component
}
