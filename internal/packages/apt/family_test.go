// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// leaves wants some packages of the family in one version.
func leaves(f *packages.Family, version string, names ...string) func(*packages.Set) []converge.Want {
	return func(s *packages.Set) (wants []converge.Want) {
		s.Family = f
		for _, name := range names {
			wants = append(wants, packages.Want(s, name, packages.State{
				Version: "driver=" + version,
				Held:    true,
			}, "NVIDIA driver"))
		}

		for i := range wants {
			wants[i].Section = "driver" // so that what the spec no longer asks for is taken back
		}
		return wants
	}
}

// A dependency on a virtual package in one version is the packager's to resolve. The Depends and
// Provides lines are those of 575.57.08 in NVIDIA's repository for Ubuntu 22.04 (test/listings).
func TestVirtualPackageInOneVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, v := range []string{"575.57.08-0ubuntu1", "575.64.03-0ubuntu1"} {
		m.repo.add(
			deb{
				name:    "nvidia-persistenced",
				version: v,
				fields:  "Depends: libnvidia-cfg1 (= " + v + ")\n",
			},
			deb{
				name:    "libnvidia-cfg1-575",
				version: v,
				fields:  "Provides: libnvidia-cfg1 (= " + v + ")\n",
			},
		)
	}

	m.repo.add(deb{name: "libnvidia-cfg1", version: "590.48.01-0ubuntu1"}) // a real package from 590 on
	m.update()
	m.apply(leaves(nvidiaDriver(), "575.57.08", "nvidia-persistenced"))
	got := m.state("libnvidia-cfg1-575")
	check.That(t, got == (packages.State{
		Version: "575.57.08-0ubuntu1",
		Held:    true,
		Auto:    true,
	}), "libnvidia-cfg1-575 is %q", got.String())
	m.idle(leaves(nvidiaDriver(), "575.57.08", "nvidia-persistenced"))
}

// A version that is open in the spec is closed for the dependencies too: Debian 12's open modules
// are of 535.261.03 while its security pocket has all else in 535.309.01 (test/listings).
func TestOldestCommonVersionIsDrawn(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, v := range []string{"535.261.03-1", "535.309.01-0+deb12u1"} {
		m.repo.add(deb{
			name:    "libcuda1",
			version: v,
			fields:  "Depends: libnvidia-ptxjitcompiler1 (= " + v + ")\n",
		}, deb{name: "libnvidia-ptxjitcompiler1", version: v})
	}

	m.repo.add(deb{name: "nvidia-open-kernel-dkms", version: "535.261.03-1"})
	m.update()
	m.write("/etc/apt/preferences.d/00-gpuadm-driver", string(preferences(packages.Repository{Pins: nvidiaDriver().Pins("535.*")}))) // as on disk by then
	res := m.apply(leaves(nvidiaDriver(), "535.*", "nvidia-open-kernel-dkms", "libcuda1"))
	i := slices.IndexFunc(res.Made, func(c converge.Change) bool {
		return c.Name == "nvidia-open-kernel-dkms"
	})
	check.That(t, i >= 0 && strings.Contains(res.Made[i].Why, "available in 535.309.01"), "made: %+v", res.Made)
	got := m.state("libnvidia-ptxjitcompiler1")
	check.That(t, got.Version == "535.261.03-1" && got.Held, "libnvidia-ptxjitcompiler1 is %q", got.String())
}

// Ubuntu's packages of 590 lead to those of 595:
// packages.ubuntu.com/noble-updates/libnvidia-extra-590-server.
func TestOtherBranchIsRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(
		deb{
			name:    "libnvidia-compute-590-server",
			version: "590.48.01-0ubuntu0.24.04.5",
			fields:  "Depends: libnvidia-compute-595-server\n",
		},
		deb{name: "libnvidia-compute-595-server", version: "595.71.05-0ubuntu0.24.04.1"},
		deb{
			name:    "linux-modules-nvidia-590-open-generic",
			version: "6.8.0-146.146+2",
			fields:  "Depends: linux-modules-nvidia-595-open-generic\n",
		},
		deb{name: "linux-modules-nvidia-595-open-generic", version: "6.8.0-146.146+2"},
	)
	m.update()
	first := m.has()
	said := m.refuse(leaves(nvidiaDriver(), "590.48.01", "libnvidia-compute-590-server"))
	contains(t, said, "cannot install driver 590.48.01: its packages depend on packages of 595.71.05", "libnvidia-compute-595-server 595.71.05-0ubuntu0.24.04.1", `version = "595.71.05"`)
	said = m.refuse(func(s *packages.Set) []converge.Want {
		m.repo.add(deb{name: "nvidia-utils-590-server", version: "590.48.01-0ubuntu0.24.04.5"})
		m.update()
		return append(leaves(nvidiaDriver(), "590.48.01", "nvidia-utils-590-server")(s), packages.Want(s, "linux-modules-nvidia-590-open-generic", packages.State{Version: "linux-modules-nvidia-590-open-generic=*"}, ""))
	})
	contains(t, said, "linux-modules-nvidia-595-open-generic 6.8.0-146.146+2")
	m.still(first)
}

// branches adds a driver whose package names lose their branch from 590 on.
func (r *repo) branches() {
	for _, v := range []string{"580.95.05-0ubuntu1", "580.105.08-0ubuntu1"} {
		r.add(
			deb{
				name:    "nvidia-dkms-580-open",
				version: v,
				fields:  "Depends: nvidia-kernel-common-580 (= " + v + "), dkms-like\n",
			},
			deb{
				name:    "libnvidia-compute-580",
				version: v,
				fields:  "Depends: libnvidia-gpucomp-580 (= " + v + ")\n",
			},
			deb{
				name:    "nvidia-kernel-common-580",
				version: v,
				files:   map[string]string{"/opt/nvidia.conf": "580\n"},
			},
			deb{
				name:    "libnvidia-gpucomp-580",
				version: v,
			}, deb{
				name:    "nvidia-modprobe",
				version: v,
			}, deb{name: "libnvidia-encode-580", version: v},
		)
	}

	v := "595.71.05-1ubuntu1"
	r.add(
		deb{
			name:    "nvidia-dkms-open",
			version: v,
			fields:  "Depends: nvidia-kernel-common (= " + v + "), dkms-like\n",
		},
		deb{name: "libnvidia-compute", version: v}, deb{name: "nvidia-modprobe", version: v},
		deb{name: "nvidia-kernel-common", version: v, files: map[string]string{"/opt/nvidia.conf": "595\n"}}, // and no Conflicts, as seen
		deb{name: "dkms-like", version: "1.0-1"},
	)
}

// TestUnneededGoes: a dependency that gpuadm brought and held goes with the change that makes it
// unneeded, as it goes on a fresh machine: apt's autoremove would keep it for ever, since it is
// held. What an operator's package needs stays, and so does a leftover that gpuadm did not bring.
func TestUnneededGoes(t *testing.T) {
	t.Parallel()
	const v, source, modprobe, gpucomp = "580.95.05-0ubuntu1", "nvidia-kernel-source-580", "nvidia-modprobe", "libnvidia-gpucomp-580"
	m := newMachine(t)
	m.repo.add(
		deb{
			name:    "nvidia-dkms-580",
			version: v,
			fields:  "Depends: " + source + " (= " + v + "), " + gpucomp + "\n",
		},
		deb{name: source, version: v, fields: "Depends: " + modprobe + "\n"},
		deb{name: modprobe, version: v}, deb{name: gpucomp, version: v},
		deb{
			name:    "gpuadm-modules-proprietary-6.8.0-88-generic",
			version: v,
			fields:  "Conflicts: nvidia-dkms-580\n",
		},
		deb{name: "libnvidia-compute-580", version: v},
		deb{
			name:    "operators",
			version: "1",
			fields:  "Depends: " + gpucomp + "\n",
		},
		deb{name: "leftover", version: "1"},
	)
	m.update()
	m.must("apt-get", "-y", "install", "leftover")
	m.must("apt-mark", "auto", "leftover")
	first := m.has()
	builds := leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580", "libnvidia-compute-580")
	m.apply(builds)
	m.must("apt-get", "-y", "install", "operators")
	built := m.has()
	for _, name := range []string{source, modprobe, gpucomp} {
		check.Equal(t, m.state(name), packages.State{
			Version: v,
			Held:    true,
			Auto:    true,
		}, "%s is", name)
	}

	shared := leaves(nvidiaDriver(), "580.95.05", "gpuadm-modules-proprietary-6.8.0-88-generic", "libnvidia-compute-580")
	m.touchSource() // until the lists are read again, what is there stays
	plan := must.Get(m.engine(shared).Plan(t.Context(), m))(t)
	for _, line := range plan.Changes {
		isBrought := slices.Contains([]string{source, modprobe, gpucomp}, line.Name)
		check.That(t, !isBrought, "while the lists are unread, the plan has %+v", line)
	}

	m.apply(shared)
	for _, name := range []string{source, modprobe, "nvidia-dkms-580"} {
		check.That(t, !m.state(name).Installed(), "%s stays: %v", name, m.state(name))
	}
	for _, name := range []string{gpucomp, "operators", "leftover"} {
		check.That(t, m.state(name).Installed(), "%s is gone", name)
	}
	m.idle(shared)

	undone := func(to, want string) {
		t.Helper()
		_, err := m.engine(shared).Undo(t.Context(), m, to, nil)
		must.That(t, err == nil, "undo %s: %s", to, wordsOf(err))
		m.still(want)
	}

	undone("", built)
	m.must("apt-get", "-y", "purge", "operators")
	undone("all", first)
}

// installs are the commands that changed packages.
func (m *machine) installs() []string {
	return slices.DeleteFunc(m.packagers(), func(c string) bool {
		return !strings.Contains(c, "apt-get") || strings.Contains(c, "--print-uris") || strings.Contains(c, "download") || strings.Contains(c, " update")
	})
}

// An upgrade to a branch with other names is one transaction: nothing of the old branch is left,
// and undo brings it back.
func TestUpgradeAcrossNamesIsOneTransaction(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	first := m.has()
	file := func(wants []converge.Want, text string) []converge.Want { // what comes between: a setting, as drivers write them
		return append([]converge.Want{things.Exact("/opt/setting", []byte(text), 0o644, "a setting")}, wants...)
	}
	old, to := nvidiaDriver(), nvidiaDriver()
	old.Extras, to.Extras = []string{"nvidia-modprobe", "libnvidia-encode-580", "libnvidia-nscq-580"}, []string{"nvidia-modprobe", "libnvidia-encode"}
	before := func(s *packages.Set) []converge.Want {
		return file(leaves(old, "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580")(s), "580")
	}
	m.apply(before)
	for _, name := range []string{"nvidia-modprobe", "libnvidia-encode-580", "libnvidia-gpucomp-580"} {
		got := m.state(name)
		check.That(t, got == (packages.State{
			Version: "580.95.05-0ubuntu1",
			Held:    true,
			Auto:    true,
		}), "%s is %q", name, got.String())
	}

	m.installs()
	m.apply(func(s *packages.Set) []converge.Want {
		return file(leaves(to, "595.71.05", "nvidia-dkms-open", "libnvidia-compute")(s), "595")
	})
	ran := m.installs()
	check.That(t, len(ran) == 1, "the upgrade ran %q", ran)
	left := regexp.MustCompile(`(?m)^.*-580 .*$`).FindAllString(m.must("dpkg-query", "-W", "-f", "${Package} ${Status}\n"), -1)
	check.That(t, len(left) == 0, "of the old branch there is still %q", left)
	m.apply(before)
	ran = m.installs()
	check.That(t, len(ran) == 1, "the downgrade ran %q", ran)
	m.undo()
	m.still(first)
	if left, _ := os.ReadDir(m.dir + "/opt"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A change of source removes the other source's packages before it unpacks its own: from 590 on
// some of their files collide and no Conflicts says so (test/listings: conflict-of-files of
// nvidia-firmware 595.71.05).
func TestChangeOfSource(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	ubuntu := newRepo(t)
	ubuntu.origin = "Ubuntu"
	firmware := map[string]string{"/opt/gsp.bin": "firmware\n"}
	ubuntu.add(
		deb{
			name:    "libnvidia-compute-595-server",
			version: "595.71.05-0ubuntu0.24.04.1",
			fields:  "Depends: nvidia-firmware-595-595.71.05\n",
		},
		deb{
			name:    "nvidia-firmware-595-595.71.05",
			version: "595.71.05-0ubuntu0.24.04.1",
			files:   firmware,
		},
		deb{name: "nvidia-utils-595", version: "595.71.05-0ubuntu0.24.04.1"},
		deb{name: "nvidia-modprobe", version: "595.71.05-9ubuntu0.24.04.1"}, // a newer revision than NVIDIA's
	)
	m.repo.add(
		deb{
			name:    "libnvidia-compute",
			version: "595.71.05-1ubuntu1",
			fields:  "Depends: nvidia-firmware (= 595.71.05-1ubuntu1), nvidia-modprobe\n",
		},
		deb{
			name:    "nvidia-firmware",
			version: "595.71.05-1ubuntu1",
			files:   firmware,
		},
		deb{name: "nvidia-modprobe", version: "595.71.05-1ubuntu1"},
	)
	key := must.Get(os.ReadFile(ubuntu.key))(t)
	m.write("/etc/apt/keyrings/ubuntu.gpg", string(key))
	m.write("/etc/apt/sources.list.d/ubuntu.sources", "Types: deb\nURIs: "+ubuntu.url+"/\nSuites: /\nSigned-By: /etc/apt/keyrings/ubuntu.gpg\n")
	ubuntu.publish()
	m.update()
	theirs, ours := nvidiaDriver(), nvidiaDriver()
	ours.Exclude, ours.Excluded = "release o=Ubuntu", []string{"libnvidia-*", "nvidia-utils*", "nvidia-firmware*", "nvidia-modprobe*"}
	first := m.has()
	m.apply(leaves(theirs, "595.71.05", "libnvidia-compute-595-server", "nvidia-utils-595"))
	m.installs()
	m.apply(leaves(ours, "595.71.05", "libnvidia-compute"))
	ran := m.installs()
	check.That(t, len(ran) == 1, "the change of source ran %q", ran)
	for name, want := range map[string]string{"nvidia-firmware": "595.71.05-1ubuntu1", "nvidia-modprobe": "595.71.05-1ubuntu1", "nvidia-utils-595": "", "nvidia-firmware-595-595.71.05": ""} {
		got := m.state(name)
		check.That(t, got.Version == want, "%s is %q, not %q", name, got.String(), want)
	}

	m.apply(leaves(theirs, "595.71.05", "libnvidia-compute-595-server", "nvidia-utils-595"))
	for _, name := range []string{"libnvidia-compute", "nvidia-firmware"} {
		got := m.state(name)
		check.That(t, !got.Installed(), "back at the first source %s is %q", name, got.String())
	}

	m.undo()
	m.still(first)
}

// nvidiaDriver is the family that drivers hands to package packages, as far as these tests need it.
func nvidiaDriver() *packages.Family {
	return &packages.Family{
		Group: "driver", Names: []string{"*nvidia*", "libcuda*", "cuda-drivers*"}, Branch: pattern.Of(`^linux-modules-nvidia-([0-9]+)-`),
		OwnVersion: []string{"nvidia-settings"},
	}
}

// A part of the family that another process has moved to another version is brought back, and one
// that it released is held again with the next change.
func TestDriftOfADrawnPartIsRepaired(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	want := leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580")
	m.apply(want)
	m.must("apt-get", "-y", "--allow-change-held-packages", "install", "nvidia-modprobe=595.71.05-1ubuntu1")
	m.apply(want)
	got := m.state("nvidia-modprobe")
	check.That(t, got.Version == "580.95.05-0ubuntu1" && got.Held, "nvidia-modprobe is %q", got.String())
}

// A package that the spec names in any version comes in the driver's where it is part of it; one
// that is not comes in its own.
func TestNamedPartComesInTheDriversVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.repo.add(deb{name: "nvidia-fs", version: "2.27.3-1"})
	m.update()
	want := func(s *packages.Set) []converge.Want {
		wants := leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580")(s)
		for _, name := range []string{"libnvidia-encode-580", "nvidia-fs"} {
			wants = append(wants, packages.Want(s, name, packages.State{Version: name + "=*"}, "the spec names it"))
		}
		return wants
	}

	m.apply(want)
	got := m.state("libnvidia-encode-580")
	check.That(t, got.Version == "580.95.05-0ubuntu1" && got.Held, "libnvidia-encode-580 is %q", got.String())
	got = m.state("nvidia-fs")
	check.That(t, got.Version == "2.27.3-1" && !got.Held, "nvidia-fs is %q", got.String())
	res := m.apply(want)
	check.That(t, res.Run == "", "the second apply changed %v", res.Made)
}

// A part that the spec asked for by name, and that is a dependency in the next version, stays in
// that version: from 570.148.08 on nvidia-compute-utils-570 depends on nvidia-persistenced
// (test/listings), which 580 is asked for by name.
func TestPartThatBecomesADependencyStays(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(
		deb{
			name:    "nvidia-persistenced",
			version: "570.148.08-1ubuntu1",
		}, deb{name: "nvidia-persistenced", version: "580.95.05-0ubuntu1"},
		deb{
			name:    "nvidia-compute-utils-570",
			version: "570.148.08-1ubuntu1",
			fields:  "Depends: nvidia-persistenced\n",
		},
		deb{name: "libnvidia-compute-580", version: "580.95.05-0ubuntu1"},
	)
	m.update()
	first := m.has()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-persistenced", "libnvidia-compute-580"))
	m.installs()
	down := leaves(nvidiaDriver(), "570.148.08", "nvidia-compute-utils-570")
	m.apply(down)
	ran := m.installs()
	check.That(t, len(ran) == 1, "the downgrade ran %q", ran)
	got := m.state("nvidia-persistenced")
	check.That(t, got == (packages.State{
		Version: "570.148.08-1ubuntu1",
		Held:    true,
		Auto:    true,
	}), "nvidia-persistenced is %q", got.String())
	m.idle(down)
	m.undo()
	m.still(first)
}

// withBranches returns a machine that has the lists of branches.
func withBranches(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.repo.branches()
	m.update()
	return m
}

// refusal applies and returns what the error says; "" where it went through.
func (m *machine) refusal(wants func(*packages.Set) []converge.Want) string {
	m.t.Helper()
	if _, err := m.engine(wants).Apply(m.t.Context(), m); err != nil {
		return wordsOf(err)
	}
	return ""
}

// A driver that was there before gpuadm came is upgraded across names like one that gpuadm
// installed.
func TestAdoptedDriverIsUpgradedAcrossNames(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"same version": "580.95.05-0ubuntu1", "another version": "580.105.08-0ubuntu1"} {
		t.Run(name, func(t *testing.T) {
			m := withBranches(t)
			m.must("apt-get", "-y", "install", "nvidia-dkms-580-open="+before, "libnvidia-compute-580="+before, "nvidia-kernel-common-580="+before, "libnvidia-gpucomp-580="+before)
			m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
			m.apply(leaves(nvidiaDriver(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute"))
		})
	}
}

// A part of another source in the same upstream version that is a leaf too: one leaf is removed by
// hand, the choice falls on the source of that leaf.
func TestPackageThatDependsOnAPartIsNotLost(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.repo.add(deb{
		name:    "monitoring-agent",
		version: "1.0-1",
		fields:  "Depends: libnvidia-compute-580\n",
	})
	m.update()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	m.must("apt-get", "-y", "install", "monitoring-agent")
	said := m.refusal(leaves(nvidiaDriver(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute"))
	got := m.state("monitoring-agent")
	check.That(t, got.Installed(), "a user's package was removed: %q (%s)", got.String(), said)
}

// unknownPart installs a library of the family from a file, in a version that no repository has.
func (m *machine) unknownPart() {
	m.t.Helper()
	m.repo.add(deb{name: "libnvidia-fbc1-580", version: "580.42.01-0local1"})
	m.update()
	m.must("apt-get", "-y", "install", "libnvidia-fbc1-580")
	m.repo.drop("libnvidia-fbc1-580", "580.42.01-0local1")
	m.update()
	m.must("apt-get", "clean")
}

// A library of the family that its owner holds is not removed: the plan refuses, as for a hold on
// what apt draws along.
func TestHeldPartIsNotRemoved(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.unknownPart()
	m.must("apt-mark", "hold", "libnvidia-fbc1-580")
	said := m.refusal(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	got := m.state("libnvidia-fbc1-580")
	check.That(t, said != "" || got.Installed(), "a package that its owner holds was removed: %q", got.String())
}

// A driver that its administrator upgraded by apt after gpuadm installed it is upgraded across
// names as well.
func TestDriverMovedByOthersIsUpgradedAcrossNames(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	const to = "=580.105.08-0ubuntu1"
	m.must("apt-get", "-y", "--allow-change-held-packages", "install", "nvidia-dkms-580-open"+to, "libnvidia-compute-580"+to, "nvidia-kernel-common-580"+to, "libnvidia-gpucomp-580"+to)
	m.apply(leaves(nvidiaDriver(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute"))
}

// A part of the family that the spec names by packages = [] follows the driver to another version.
func TestNamedPartFollowsTheDriver(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	want := func(version string) func(*packages.Set) []converge.Want {
		return func(s *packages.Set) []converge.Want {
			wants := leaves(nvidiaDriver(), version, "nvidia-dkms-580-open", "libnvidia-compute-580")(s)
			w := packages.Want(s, "libnvidia-encode-580", packages.State{Version: "libnvidia-encode-580=*"}, "the spec names it")
			w.Section = "driver"
			return append(wants, w)
		}
	}

	m.apply(want("580.95.05"))
	m.apply(want("580.105.08"))
}

// A part that another process moved is brought back to the version that the driver has: an open
// version is no reason to upgrade the whole driver of a node that was converged.
func TestDriftUnderAnOpenVersionDoesNotUpgradeTheDriver(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	want := leaves(nvidiaDriver(), "580.*", "nvidia-dkms-580-open", "libnvidia-compute-580")
	m.idle(want)
	m.must("apt-get", "-y", "install", "libnvidia-encode-580=580.105.08-0ubuntu1") // an administrator adds a library
	m.apply(want)
	got := m.state("nvidia-dkms-580-open")
	check.That(t, got.Version == "580.95.05-0ubuntu1", "the kernel module's package is %q", got.String())
}

// A packager's new revision of the same driver: the archive has dropped the old one (Ubuntu's
// updates have the newest only), and the spec now asks for one part more.
func TestNewRevisionAndOnePartMore(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	add := func(v string) {
		m.repo.add(
			deb{
				name:    "nvidia-utils-580-server",
				version: v,
				fields:  "Depends: libnvidia-compute-580-server (= " + v + ")\n",
			},
			deb{name: "libnvidia-compute-580-server", version: v},
			deb{name: "libnvidia-cfg1-580-server", version: v},
			deb{
				name:    "nvidia-compute-utils-580-server",
				version: v,
				fields:  "Depends: libnvidia-compute-580-server (= " + v + "), libnvidia-cfg1-580-server (= " + v + ")\n",
			},
		)
	}

	const old = "580.159.03-0ubuntu0.24.04.1"
	add(old)
	m.update()
	m.apply(leaves(nvidiaDriver(), "580.159.03", "nvidia-utils-580-server"))
	add("580.159.03-0ubuntu0.24.04.2")
	for _, name := range []string{"nvidia-utils-580-server", "libnvidia-compute-580-server", "libnvidia-cfg1-580-server", "nvidia-compute-utils-580-server"} {
		m.repo.drop(name, old)
	}
	m.update()
	m.apply(leaves(nvidiaDriver(), "580.159.03", "nvidia-utils-580-server", "nvidia-compute-utils-580-server"))
}

// A part that was removed and is available no more keeps undo from nothing but itself.
func TestUndoAfterAPartThatIsGone(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.unknownPart()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	_, err := m.engine(drivers("*")).Undo(t.Context(), m, "all", nil)
	contains(t, wordsOf(err), "no source has libnvidia-fbc1-580 580.42.01-0local1", "undo --to all --leave libnvidia-fbc1-580\u2063")
	if _, err := m.engine(drivers("*")).Undo(t.Context(), m, "all", []string{"libnvidia-fbc1-580"}); err != nil || m.state("nvidia-dkms-580-open").Installed() {
		t.Errorf("undo of the rest: %v, and the driver is %q", err, m.state("nvidia-dkms-580-open").String())
	}
}

// withExtra wants the driver of branch 580 in a version, with libnvidia-encode-580 where a source has it.
func withExtra(version string, extras ...string) func(*packages.Set) []converge.Want {
	f := nvidiaDriver()
	f.Extras = extras
	return leaves(f, version, "nvidia-dkms-580-open", "libnvidia-compute-580")
}

// An optional part that gpuadm installed and an operator purged is missed, and installed again in
// the driver's version, though the spec allows a newer one; undo removes it once more.
func TestPurgedExtraIsMissed(t *testing.T) {
	t.Parallel()
	const encode = "libnvidia-encode-580"
	m := withBranches(t)
	first := m.has()
	m.apply(withExtra("580.95.05", encode, "libnvidia-nscq-580"))
	want := withExtra("580.*", encode, "libnvidia-nscq-580")
	m.idle(want)
	m.must("apt-get", "-y", "--allow-change-held-packages", "purge", encode)
	p := must.Get(m.engine(want).Plan(t.Context(), m))(t)
	check.That(t, len(p.Changes) == 1 && p.Changes[0].Name == encode, "the plan has %v", p.Changes)
	res := m.apply(want)
	check.That(t, len(res.Made) == 1, "the apply made %v", res.Made)
	got := m.state(encode)
	check.That(t, got == (packages.State{
		Version: "580.95.05-0ubuntu1",
		Held:    true,
		Auto:    true,
	}), "%s is %q", encode, got.String())
	m.idle(want)
	m.undo()
	m.still(first)
}

// An operator who purges a part removes it with gpuadm's: undo does not want it back.
func TestUndoAfterAPurgedExtra(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	first := m.has()
	m.apply(withExtra("580.95.05", "libnvidia-encode-580"))
	m.must("apt-get", "-y", "--allow-change-held-packages", "purge", "libnvidia-encode-580")
	m.undo()
	m.still(first)
}

// A purged part is not missed where the spec no longer asks for it, where its source no longer has
// it in the driver's version, or where an operator has forbidden it by a hold.
func TestPurgedExtraIsNotWanted(t *testing.T) {
	t.Parallel()
	const encode = "libnvidia-encode-580"
	m := withBranches(t)
	m.apply(withExtra("580.95.05", encode))
	m.must("apt-get", "-y", "--allow-change-held-packages", "purge", encode)
	m.idle(withExtra("580.95.05"))

	m.must("apt-mark", "hold", encode)
	m.idle(withExtra("580.95.05", encode))
	m.must("apt-mark", "unhold", encode)

	m.repo.drop(encode, "580.95.05-0ubuntu1")
	m.update()
	res := m.apply(withExtra("580.*", encode))
	check.That(t, res.Run == "", "the apply made %v", res.Made)
	check.That(t, !m.state(encode).Installed(), "%s is %q", encode, m.state(encode).String())
}
