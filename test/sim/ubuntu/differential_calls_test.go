// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// Versions of NVIDIA's repository, of two branches.
const (
	older  = "580.95.05-0ubuntu1"
	newer  = "580.105.08-0ubuntu1"
	newest = "580.159.04-1ubuntu1"
	other  = "570.148.08-1ubuntu1"
)

// with gives an empty machine what apt would install for these arguments, and returns that: names
// and versions.
func (p *pair) with(args ...string) map[string]string {
	p.t.Helper()
	p.has()
	var list []string
	versions := map[string]string{}
	for _, step := range p.call(append([]string{"install"}, args...)...) {
		words := strings.Fields(step)
		versions[words[1]] = words[2]
		list = append(list, words[1]+"="+words[2])
	}

	must.That(p.t, len(list) > 0, "apt installs nothing for %q", args)
	p.has(list...)
	return versions
}

// TestOnePackage: upgrades, downgrades, removals and holds of a package that needs no other.
func TestOnePackage(t *testing.T) {
	t.Parallel()
	const name = "nvidia-firmware-580"
	p := newNVIDIAPair(t)
	for _, c := range []struct {
		has  string
		args []string
	}{
		{name + "=" + newer, []string{"install", name}},
		{name + "=" + newest, []string{"install", name}},
		{name + "=" + newer, []string{"install", name + "=" + newest}},
		{name + "=" + newer, []string{"install", name + "=" + newer}},
		{name + "=" + newer, []string{"install", name + "=" + older}},
		{name + "=" + newer, []string{"install", "--allow-downgrades", name + "=" + older}},
		{name + "=" + newer, []string{"install", name + "=1"}},
		{name + "=" + newer, []string{"install", name + "-"}},
		{name + "=" + newer, []string{"install", "--no-remove", name + "-"}},
		{name + "=" + newer, []string{"remove", name}},
		{name + "=" + newer, []string{"remove", "nvidia-firmware"}},
		{name + "=" + newer, []string{"remove", "no-such-package"}},
		{name + "=" + newer, []string{"install", "no-such-package"}},
		{name + "=" + newer, []string{"install", "--no-such-flag", name + "=" + newest}},

		{name + "=" + newer + " hold ok installed", []string{"install", name + "=" + newest}},
		{name + "=" + newer + " hold ok installed", []string{"install", "--allow-change-held-packages", name + "=" + newest}},
		{name + "=" + newer + " hold ok installed", []string{"install", "--allow-change-held-packages", name + "=" + older}},
		{name + "=" + newer + " hold ok installed", []string{"install", name}},
		{name + "=" + newer + " hold ok installed", []string{"remove", name}},
		{name + "=" + newer + " hold ok installed", []string{"remove", "--allow-change-held-packages", name}},

		{name + "=" + newer + " deinstall ok config-files", []string{"install", name}},
		{name + "=" + newer + " deinstall ok config-files", []string{"install", name + "=" + newer}},
		{name + "=" + newer + " deinstall ok config-files", []string{"remove", name}},
	} {
		t.Run(c.has+" "+strings.Join(c.args, " "), func(t *testing.T) {
			p.t = t
			p.has(c.has)
			p.policy()
			p.call(c.args...)
		})
	}
}

// TestDriver: upgrades, downgrades, removals and holds of a driver, whose packages need each other.
func TestDriver(t *testing.T) {
	t.Parallel()
	p := newNVIDIAPair(t)
	driver := func(version string) []string {
		of, _, _ := strings.Cut(version, ".")
		return []string{"nvidia-driver-" + of + "-open=" + version, "nvidia-dkms-" + of + "-open=" + version}
	}

	pin := func(version string) {
		p.put("/etc/apt/preferences.d/version", "Package: *nvidia* cuda-drivers*\nPin: version "+version+"\nPin-Priority: 1001\n")
	}

	// One call that names each package of the other branch, and each that goes for it. If a call
	// names only some of them, and a pin has chosen the other branch, then apt's resolver gives up
	// ("generated breaks") where the simulated one goes on.
	pin(other)
	theirs := p.with(driver(other)...)
	pin(newer)
	ours := p.with(driver(newer)...)
	switched := []string{"install", "--allow-downgrades"}
	for name, version := range theirs {
		switched = append(switched, name+"="+version)
	}
	for name := range ours {
		if theirs[name] == "" {
			switched = append(switched, name+"-")
		}
	}

	for _, c := range []struct {
		pin  string
		args []string
	}{
		{newest, append([]string{"install"}, driver(newest)...)},
		{older, append([]string{"install", "--allow-downgrades"}, driver(older)...)},
		{older, append([]string{"install"}, driver(older)...)},
		{other, switched},
		{"*", append([]string{"install", "--allow-downgrades"}, driver(other)...)},
		{"*", append([]string{"install", "--allow-downgrades", "nvidia-driver-580-open-", "nvidia-dkms-580-open-"}, driver(other)...)},
		{newer, []string{"install", "nvidia-driver-580-open-", "nvidia-dkms-580-open-"}},
		{newer, []string{"remove", "nvidia-dkms-580-open"}},
		{newer, []string{"remove", "libnvidia-compute-580"}},
		{newer, []string{"install", "--no-remove", "libnvidia-compute-580-"}},
		{newer, []string{"install", "nvidia-driver-580=" + newer}},
		{newer, []string{"install", "cuda-toolkit-12-8"}},
	} {
		t.Run(c.pin+" "+strings.Join(c.args[:min(4, len(c.args))], " "), func(t *testing.T) {
			p.t = t
			pin(c.pin)
			p.call(c.args...)
		})
	}
}

// TestAutoremove: what apt takes away that was installed for others, and what it keeps.
func TestAutoremove(t *testing.T) {
	t.Parallel()
	p := newNVIDIAPair(t)
	p.put("/etc/apt/preferences.d/version", "Package: *nvidia* cuda-drivers*\nPin: version "+newer+"\nPin-Priority: 1001\n")
	has := p.with("nvidia-driver-580-open="+newer, "nvidia-dkms-580-open="+newer)
	names := slices.Sorted(maps.Keys(has))
	for _, c := range []struct {
		name string
		// manual are those that an operator asked for; held those that apt is told to leave; gone
		// those that are not installed.
		manual, held, gone []string
		removes            bool
	}{
		{name: "all are needed", manual: names},
		{name: "a driver needs its parts", manual: []string{"nvidia-driver-580-open", "nvidia-dkms-580-open"}},
		{name: "an operator has asked for none", removes: true},
		{name: "a library alone", manual: []string{"libnvidia-compute-580"}, removes: true},
		{name: "the driver has gone", manual: []string{"nvidia-dkms-580-open"}, gone: []string{"nvidia-driver-580-open"}, removes: true},
		{name: "all are held", held: names},
		{name: "one is held", held: []string{"libnvidia-compute-580"}, removes: true},
		{name: "one that needs others is held", held: []string{"nvidia-dkms-580-open"}, removes: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.t = t
			var list []string
			var marks strings.Builder
			for _, name := range names {
				state := "install ok installed"
				if slices.Contains(c.held, name) {
					state = "hold ok installed"
				}
				if slices.Contains(c.gone, name) {
					continue
				}
				list = append(list, name+"="+has[name]+" "+state)
				if !slices.Contains(c.manual, name) {
					marks.WriteString("Package: " + name + "\nArchitecture: amd64\nAuto-Installed: 1\n\n")
				}
			}

			p.has(list...)
			p.put(automatic, marks.String())
			removed := p.call("autoremove")
			check.Equal(t, len(removed) > 0, c.removes, "apt removes something")
		})
	}
}

// TestUnneeded: what apt says that nothing needs after an installation, held or not.
func TestUnneeded(t *testing.T) {
	t.Parallel()
	p := newNVIDIAPair(t)
	p.put("/etc/apt/preferences.d/version", "Package: *nvidia* cuda-drivers*\nPin: version "+newer+"\nPin-Priority: 1001\n")
	const library, module = "libnvidia-compute-580", "nvidia-dkms-580-open"
	has := p.with(library+"="+newer, module+"="+newer)
	names := slices.Sorted(maps.Keys(has))
	for _, args := range [][]string{
		{library + "=" + newer, module + "-"},
		{library + "=" + newer},
		{library + "-", module + "-"},
		{library + "=" + newer, "nvidia-kernel-common-580=" + newer, module + "-"},
	} {
		for _, state := range []string{"install ok installed", "hold ok installed"} {
			t.Run(state+" "+strings.Join(args, " "), func(t *testing.T) {
				p.t = t
				var list []string
				var marks strings.Builder
				for _, name := range names {
					list = append(list, name+"="+has[name]+" "+state)
					marks.WriteString("Package: " + name + "\nArchitecture: amd64\nAuto-Installed: 1\n\n")
				}

				p.has(list...)
				p.put(automatic, marks.String())
				asks := append([]string{
					"apt-get", "--print-uris", "-V", "-y", "--no-install-recommends", "--allow-change-held-packages",
					"-o", "APT::Ignore-Hold=true", "-o", "APT::Get::HideAutoRemove=false", "install",
				}, args...)
				realOut, realExit := p.real(asks...)
				simOut, simExit := p.simulated(asks...)
				must.That(t, realExit == 0 && simExit == 0, "apt exits with %d, simulated with %d\n%s%s", realExit, simExit, realOut, simOut)
				check.List(t, unneededIn(simOut), unneededIn(realOut), "simulated: ")
			})
		}
	}
}

// TestShow: what apt-cache says of one version of a package, and that it has no such version.
func TestShow(t *testing.T) {
	t.Parallel()
	p := newNVIDIAPair(t)
	relation := regexp.MustCompile(`(?m)^(Package|Version|Architecture|Pre-Depends|Depends|Provides): .*$`)
	for _, args := range [][]string{
		{"libnvidia-compute-580=" + newer},
		{"nvidia-dkms-580-open=" + newer, "libnvidia-compute-580=" + older},
	} {
		argv := slices.Concat([]string{"apt-cache", "show", "--"}, args)
		realOut, realExit := p.real(argv...)
		simOut, simExit := p.simulated(argv...)
		must.That(t, realExit == 0 && simExit == 0, "apt exits with %d, simulated with %d\n%s%s", realExit, simExit, realOut, simOut)
		want, got := relation.FindAllString(realOut, -1), relation.FindAllString(simOut, -1)
		must.That(t, len(want) >= 3*len(args), "apt shows too little:\n%s", realOut)
		slices.Sort(want)
		slices.Sort(got)
		check.List(t, got, want, "%v: simulated: ", args)
	}

	for _, unknown := range []string{"libnvidia-compute-580=1.0", "nothing-of-this-name=1.0"} {
		realOut, realExit := p.real("apt-cache", "show", "--", unknown)
		simOut, simExit := p.simulated("apt-cache", "show", "--", unknown)
		const differ = "%s: apt exits with %d, simulated with %d\n%s%s"
		check.That(t, realExit == simExit, differ, unknown, realExit, simExit, realOut, simOut)
		const shown = "Package: "
		check.That(t, !strings.Contains(realOut+simOut, shown), differ, unknown, realExit, simExit, realOut, simOut)
	}
}

// unneededIn are the packages that apt lists as no longer required.
func unneededIn(out string) (names []string) {
	is := false
	for line := range strings.Lines(out) {
		name, isName := strings.CutPrefix(line, "   ")
		if !isName {
			is = strings.Contains(line, "no longer required:")
		} else if is {
			names = append(names, strings.Fields(name)[0])
		}
	}

	slices.Sort(names)
	return names
}

// TestMarks: what apt-mark writes is what both read of each other.
func TestMarks(t *testing.T) {
	t.Parallel()
	const name = "nvidia-firmware-580"
	for _, mark := range []string{"hold", "unhold", "auto", "manual"} {
		t.Run(mark, func(t *testing.T) {
			p := newNVIDIAPair(t)
			for _, before := range []string{"install", "hold"} {
				p.has(name + "=" + newer + " " + before + " ok installed")
				_, realExit := p.real("apt-mark", mark, "--", name)
				_, simExit := p.simulated("apt-mark", mark, "--", name)
				must.That(t, realExit == 0 && simExit == 0, "apt exits with %d, simulated with %d", realExit, simExit)

				held, _ := p.real("apt-mark", "showhold")
				auto, _ := p.real("apt-mark", "showauto")
				is := (&machine{Files: p.sim.Files}).dpkg()
				check.Equal(t, is.held(name), strings.TrimSpace(held) == name, "%s, then %s: it is held", before, mark)
				check.Equal(t, is.auto[name], strings.TrimSpace(auto) == name, "%s, then %s: it is automatic", before, mark)
			}
		})
	}
}

// TestStates: which of dpkg's states apt counts as installed: dpkg(1), Package states.
func TestStates(t *testing.T) {
	t.Parallel()
	const name = "nvidia-firmware-580"
	p := newNVIDIAPair(t)
	for _, state := range []string{
		"install ok installed", "hold ok installed", "deinstall ok installed",
		"deinstall ok config-files", "purge ok not-installed",
		"install ok half-configured", "install ok unpacked", "install ok triggers-awaited", "install ok triggers-pending",
	} {
		t.Run(state, func(t *testing.T) {
			p.t = t
			p.has(name + "=" + newer + " " + state)
			p.policy()
		})
	}
}

// TestEachPackage asks for a sample of all versions of all packages, on an empty machine.
func TestEachPackage(t *testing.T) {
	t.Parallel()
	p := newNVIDIAPair(t)
	for _, from := range []string{"nvidia", "archive"} {
		offered := editions()[from].packages
		for _, name := range slices.Sorted(maps.Keys(offered)) {
			for i, one := range offered[name] {
				if i%5 == 0 && len(one.Depends) > 1 {
					p.call("install", name+"="+one.Version)
				}
			}
		}
	}
}
