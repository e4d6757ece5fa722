// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/packages/apt"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// commands are those of a packager, or of the system that it is part of, that findings name. %[1]s
// is a package or a kernel, %[2]s a version.
type commands struct {
	repair  string // reinstalls a package
	mixed   string // shows why packages have different versions
	restore string // brings back a lost dependency, or says what is lost
	headers string // installs a kernel's headers
	exact   string // installs a version of a package
	initrd  string // rebuilds the initial RAM disk
}

// commands are apt's where no packager is known.
func (i inventory) commands() commands {
	switch i.packager {
	case "dnf":
		return commands{
			repair:  "sudo dnf reinstall %[1]s",
			mixed:   "dnf versionlock list; dnf check",
			restore: "dnf check --dependencies",
			headers: "sudo dnf install kernel-devel-%[1]s",
			exact:   "sudo dnf install %[1]s-%[2]s",
			initrd:  "sudo dracut --force",
		}
	case "zypper":
		// kernel-default-devel is of one version and flavour: "zypper install" takes NAME=VERSION,
		// zypper(8).
		return commands{
			repair:  "sudo zypper install --force %[1]s",
			mixed:   "zypper locks; zypper verify --dry-run",
			headers: "sudo zypper install kernel-default-devel",
			exact:   "sudo zypper install %[1]s=%[2]s",
			initrd:  "sudo dracut --force",
		}
	}

	return commands{
		mixed:   "apt-mark showhold && apt-get --simulate --fix-broken install",
		restore: "sudo apt-get --fix-broken install",
		headers: "sudo apt-get install linux-headers-%[1]s",
		exact:   "sudo apt-get install %[1]s=%[2]s\\*",
		initrd:  "sudo update-initramfs -u",
	}
}

// headersOf installs a kernel's headers.
func (i inventory) headersOf(kernel string) string {
	return strings.ReplaceAll(i.commands().headers, "%[1]s", kernel)
}

// command is what finishes an installation: dpkg --configure -a, as the check says, or rpm's way.
func (i inventory) command(names ...string) string {
	if how := i.commands().repair; how != "" {
		return fmt.Sprintf(how, strings.Join(names, " "))
	}
	return ""
}

// finishes is what finishes the installation of a package in this state. Of a package that was not
// all unpacked dpkg needs the archive: dpkg(1), "Package states".
func (i inventory) finishes(name, state string) string {
	if how := i.command(name); how != "" {
		return how
	}
	if state == "half-installed" {
		return "sudo apt-get install --reinstall " + name
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

// emptyLists finds lists of apt's that a power cut has left empty.
func emptyLists(m *Machine) []Finding {
	if m.Packages().packager != "apt" {
		return nil
	}
	lost := apt.Lost(m.View)
	if len(lost) == 0 {
		return nil
	}
	const text = "%s in %s, and apt does nothing until they are read again"
	are := trouble.Count(len(lost), "file") + " without content"
	return []Finding{{
		Object: path.Dir(lost[0]),
		What:   fmt.Sprintf(text, are, path.Dir(lost[0])),
	}}
}

func isDriverPackage(name string) bool { return strings.Contains(name, "nvidia") }

func isOtherPackage(name string) bool { return !isDriverPackage(name) }

// brokenPackages leaves out packages whose triggers wait: the next run of dpkg handles them,
// dpkg-trigger(1).
func brokenPackages(m *Machine, concerns func(name string) bool) (found []Finding) {
	all := m.Packages()
	for _, name := range slices.Sorted(maps.Keys(all.audit.Broken)) {
		state := all.audit.Broken[name]
		if strings.HasPrefix(state, "triggers-") || !concerns(name) {
			continue
		}
		found = append(found, Finding{
			Object:  name,
			What:    fmt.Sprintf("%s %s is %s", name, all.packages[name].Version, state),
			Command: all.finishes(name, state),
		})
	}

	for _, name := range all.incomplete {
		if concerns(name) {
			found = append(found, Finding{
				Object:  name,
				What:    name + " " + all.packages[name].Version + " lacks a package that it depends on",
				Command: all.commands().restore,
			})
		}
	}

	return found
}

// lockstep are the packages that the driver's installer would bring as one: by NVIDIA's and
// Ubuntu's names, on Debian, RHEL and their derivatives. Settings, container toolkits, prebuilt
// modules of Ubuntu's kernels and NVIDIA's X configuration have versions of their own.
// Sources: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/; the repositories'
// own lists (test/listings).
var lockstep = pattern.Of(`^(?:libcuda1|kmod-nvidia|libnvidia-(?:cfg1|compute|decode|encode|fbc1|gl|ml1?)|nvidia-(?:compute-utils|dkms|driver|utils))$`)

// flavour is what may follow: the branch, and which kind of the package it is.
var flavour = pattern.Of(`(?:-[0-9]{3})?(?:-(?:server|open|cuda|libs|dkms|latest))*$`)

// isLockstep tries the whole name first: nvidia-dkms is a package of its own, and no flavour of
// nvidia.
func isLockstep(name string) bool {
	return lockstep().MatchString(name) || lockstep().MatchString(flavour().ReplaceAllString(name, ""))
}

// driverVersion is the driver's own version in a package's: 580.95.05-0ubuntu0.24.04.1,
// 3:580.95.05-1.el9.
var driverVersion = pattern.Of(`^(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?:[-~+.]|$)`)

// mixedVersions finds parts of the driver that are installed in different versions.
func mixedVersions(m *Machine) []Finding {
	namesOf := map[string][]string{}
	held := map[string]bool{}
	for name, p := range m.Packages().packages {
		version := driverVersion().FindStringSubmatch(p.Version)
		if version == nil || !p.Installed() || !isLockstep(name) {
			continue
		}
		namesOf[version[1]] = append(namesOf[version[1]], name)
		held[name] = p.Held
	}

	if len(namesOf) < 2 {
		return nil
	}

	var installed []string
	for _, version := range slices.Sorted(maps.Keys(namesOf)) {
		names := slices.Sorted(slices.Values(namesOf[version]))
		text := version + " of " + names[0]
		if more := len(names) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		if slices.ContainsFunc(names, func(name string) bool { return held[name] }) {
			text += " (held)"
		}
		installed = append(installed, text)
	}

	return []Finding{{
		What:    "installed are " + strings.Join(installed, ", "),
		Command: m.Packages().commands().mixed,
	}}
}
