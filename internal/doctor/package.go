// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// What shows packages of different versions, and what holds them.
const (
	mixedDpkg = "apt-mark showhold && apt-get --simulate --fix-broken install"
	mixedRPM  = "dnf versionlock list; dnf check"
)

func packageChecks() []Check {
	const finishDpkg = "sudo dpkg --configure -a"
	const status = "dpkg's status file and updates; of rpm the transaction that a killed dnf left"
	return []Check{
		{
			Code: "PKG-004", Title: "the packager was interrupted",
			Reads:   status,
			Meaning: "a package manager was killed in a transaction: until that is finished it refuses all others",
			Fix:     "let it finish what it began", Command: finishDpkg,
			Interrupts: "daemons of the packages that were being installed may restart", Find: interrupted,
			Sources: []string{
				"dpkg(1), --configure", "https://github.com/Azure/AKS/issues/729",
				"https://github.com/NVIDIA/nvidia-docker/issues/1357",
			},
		},
		{
			Code: "PKG-001", Title: "a package of the driver is not wholly installed",
			Reads:   status,
			Meaning: "its script failed: modules were not built, or daemons not set up",
			Fix:     "find out why its script fails, and finish it", Command: finishDpkg,
			Interrupts: "daemons of the driver may restart",
			Find:       func(m *Machine) []Finding { return brokenPackages(m, true) },
			Sources:    []string{"dpkg(1), PACKAGE STATES", "https://github.com/NVIDIA/gpu-operator/issues/564"},
		},
		{
			Code: "PKG-002", Title: "a package is not wholly installed",
			Reads:   status,
			Meaning: "each later installation, the driver's too, runs its failing script again and reports that failure",
			Fix:     "find out why its script fails, and finish it, or remove the package", Command: finishDpkg,
			Interrupts: "daemons of that package may restart; a removal stops them",
			Find:       func(m *Machine) []Finding { return brokenPackages(m, false) },
			Sources:    []string{"dpkg(1), PACKAGE STATES", "https://github.com/Azure/AKS/issues/729"},
		},
		{
			Code: "PKG-003", Title: "packages of the driver are of different versions",
			Reads:      "the versions and holds of the packages that must be of one version, as dpkg or rpm says",
			Meaning:    "a part of the driver was upgraded and another was not: the next load of the module, or the next program, fails",
			Fix:        "bring all of them to one version; a hold on some of them is the usual reason",
			Command:    mixedDpkg,
			Interrupts: "programs on the GPUs, when the driver is loaded again", Find: mixedVersions,
			Sources: []string{
				"https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
				"https://github.com/pando85/homelab/pull/4110",
				"https://github.com/NVIDIA/nvidia-container-toolkit/issues/394",
			},
		},
	}
}

// command is what finishes an installation: dpkg --configure -a, as the check says, or rpm's way.
func (i inventory) command(names ...string) string {
	if i.packager == "dnf" {
		return "sudo dnf reinstall " + strings.Join(names, " ")
	}
	return ""
}

func interrupted(m *Machine) []Finding {
	all := m.Packages()
	if !all.audit.Interrupted {
		return nil
	}
	names := slices.Sorted(maps.Keys(all.audit.Broken))
	what := all.packager + " was interrupted"
	if len(names) > 0 {
		what += "; not wholly installed: " + strings.Join(names, ", ")
	}
	return []Finding{{What: what, Command: all.command(names...)}}
}

// brokenPackages leaves out those whose triggers wait: the next run of dpkg handles them, dpkg-trigger(1).
func brokenPackages(m *Machine, driver bool) (found []Finding) {
	all := m.Packages()
	for _, name := range slices.Sorted(maps.Keys(all.audit.Broken)) {
		state := all.audit.Broken[name]
		if strings.HasPrefix(state, "triggers-") || strings.Contains(name, "nvidia") != driver {
			continue
		}
		found = append(found, Finding{Object: name, What: fmt.Sprintf("%s %s is %s", name, all.packages[name].Version, state), Command: all.command(name)})
	}
	return found
}

// lockstep are the packages that the driver's installer would bring as one: by NVIDIA's and Ubuntu's names, on Debian, RHEL and their derivatives.
// Settings, container toolkits, prebuilt modules of Ubuntu's kernels and NVIDIA's X configuration have versions of their own.
// Sources: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/; the repositories' own lists (test/listings).
var lockstep = pattern.Of(`^(?:libcuda1|kmod-nvidia|libnvidia-(?:cfg1|compute|decode|encode|fbc1|gl|ml1?)|nvidia-(?:compute-utils|dkms|driver|utils))$`)

// flavour is what may follow: the branch, and which kind of the package it is.
var flavour = pattern.Of(`(?:-[0-9]{3})?(?:-(?:server|open|cuda|libs|dkms|latest))*$`)

// isLockstep tries the whole name first: nvidia-dkms is a package of its own, and no flavour of nvidia.
func isLockstep(name string) bool {
	return lockstep().MatchString(name) || lockstep().MatchString(flavour().ReplaceAllString(name, ""))
}

// driverVersion is the driver's own version in a package's: 580.95.05-0ubuntu0.24.04.1, 3:580.95.05-1.el9.
var driverVersion = pattern.Of(`^(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?:[-~+.]|$)`)

func mixedVersions(m *Machine) []Finding {
	of := map[string][]string{}
	held := map[string]bool{}
	for name, p := range m.Packages().packages {
		v := driverVersion().FindStringSubmatch(p.Version)
		if v == nil || !p.Installed() || !isLockstep(name) {
			continue
		}
		of[v[1]] = append(of[v[1]], name)
		held[name] = p.Held
	}
	if len(of) < 2 {
		return nil
	}
	var words []string
	for _, version := range slices.Sorted(maps.Keys(of)) {
		slices.Sort(of[version])
		name := of[version][0]
		word := version + " of " + name
		if n := len(of[version]) - 1; n > 0 {
			word += fmt.Sprintf(" and %d more", n)
		}
		if slices.ContainsFunc(of[version], func(n string) bool { return held[n] }) {
			word += " (held)"
		}
		words = append(words, word)
	}
	command := mixedDpkg
	if m.Packages().packager == "dnf" {
		command = mixedRPM
	}
	return []Finding{{What: "installed are " + strings.Join(words, ", "), Command: command}}
}
