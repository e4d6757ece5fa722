// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A part of the family that another process has moved to another version is brought back, and one that it released is held
// again with the next change.
func TestDriftOfADrawnPartIsRepaired(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.update()
	want := leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580")
	m.apply(want)
	m.must("apt-get", "-y", "--allow-change-held-packages", "install", "nvidia-modprobe=595.71.05-1ubuntu1")
	m.apply(want)
	if got := m.state("nvidia-modprobe"); got.Version != "580.95.05-0ubuntu1" || !got.Held {
		t.Errorf("nvidia-modprobe is %q", got.String())
	}
}

// A package that the spec names in any version comes in the driver's where it is part of it; one that is not comes in its own.
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
	if got := m.state("libnvidia-encode-580"); got.Version != "580.95.05-0ubuntu1" || !got.Held {
		t.Errorf("libnvidia-encode-580 is %q", got.String())
	}
	if got := m.state("nvidia-fs"); got.Version != "2.27.3-1" || got.Held {
		t.Errorf("nvidia-fs is %q", got.String())
	}
	if res := m.apply(want); res.Run != "" {
		t.Errorf("the second apply changed %v", res.Made)
	}
}

// A part that the spec asked for by name, and that is a dependency in the next version, stays in that version: from 570.148.08
// on nvidia-compute-utils-570 depends on nvidia-persistenced (test/listings), which 580 is asked for by name.
func TestPartThatBecomesADependencyStays(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(
		deb{name: "nvidia-persistenced", version: "570.148.08-1ubuntu1"}, deb{name: "nvidia-persistenced", version: "580.95.05-0ubuntu1"},
		deb{name: "nvidia-compute-utils-570", version: "570.148.08-1ubuntu1", fields: "Depends: nvidia-persistenced\n"},
		deb{name: "libnvidia-compute-580", version: "580.95.05-0ubuntu1"},
	)
	m.update()
	first := m.has()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-persistenced", "libnvidia-compute-580"))
	m.installs()
	down := leaves(nvidiaDriver(), "570.148.08", "nvidia-compute-utils-570")
	m.apply(down)
	if ran := m.installs(); len(ran) != 1 {
		t.Errorf("the downgrade ran %q", ran)
	}
	if got := m.state("nvidia-persistenced"); got != (packages.State{Version: "570.148.08-1ubuntu1", Held: true, Auto: true}) {
		t.Errorf("nvidia-persistenced is %q", got.String())
	}
	m.packagers()
	if res := m.apply(down); res.Run != "" || len(m.packagers()) > 0 {
		t.Errorf("the second apply changed %v", res.Made)
	}
	m.undo()
	if last := m.has(); last != first {
		t.Errorf("after undo:\n%s", last)
	}
}

// refusal applies and returns what the error says; "" where it went through.
func (m *machine) refusal(wants func(*packages.Set) []converge.Want) string {
	m.t.Helper()
	if _, err := m.engine(wants).Apply(m.t.Context(), m); err != nil {
		return wordsOf(err)
	}
	return ""
}

// A driver that was there before gpuadm came is upgraded across names like one that gpuadm installed.
func TestAdoptedDriverIsUpgradedAcrossNames(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"same version": "580.95.05-0ubuntu1", "another version": "580.105.08-0ubuntu1"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.repo.branches()
			m.update()
			m.must("apt-get", "-y", "install", "nvidia-dkms-580-open="+before, "libnvidia-compute-580="+before, "nvidia-kernel-common-580="+before, "libnvidia-gpucomp-580="+before)
			m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
			if said := m.refusal(leaves(nvidiaDriver(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute")); said != "" {
				t.Errorf("the upgrade is refused:\n%s", said)
			}
		})
	}
}

// A part of another source in the same upstream version that is a leaf too: one leaf is removed by hand, the choice falls on
// the source of that leaf.
func TestPackageThatDependsOnAPartIsNotLost(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.repo.add(deb{name: "monitoring-agent", version: "1.0-1", fields: "Depends: libnvidia-compute-580\n"})
	m.update()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	m.must("apt-get", "-y", "install", "monitoring-agent")
	said := m.refusal(leaves(nvidiaDriver(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute"))
	if got := m.state("monitoring-agent"); !got.Installed() {
		t.Errorf("a user's package was removed: %q (%s)", got.String(), said)
	}
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

// A library of the family that its owner holds is not removed: the plan refuses, as for a hold on what apt draws along.
func TestHeldPartIsNotRemoved(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.unknownPart()
	m.must("apt-mark", "hold", "libnvidia-fbc1-580")
	said := m.refusal(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	if got := m.state("libnvidia-fbc1-580"); said == "" && !got.Installed() {
		t.Errorf("a package that its owner holds was removed: %q", got.String())
	}
}

// A driver that its administrator upgraded by apt after gpuadm installed it is upgraded across names as well.
func TestDriverMovedByOthersIsUpgradedAcrossNames(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.update()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	const to = "=580.105.08-0ubuntu1"
	m.must("apt-get", "-y", "--allow-change-held-packages", "install", "nvidia-dkms-580-open"+to, "libnvidia-compute-580"+to, "nvidia-kernel-common-580"+to, "libnvidia-gpucomp-580"+to)
	if said := m.refusal(leaves(nvidiaDriver(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute")); said != "" {
		t.Errorf("the upgrade is refused:\n%s", said)
	}
}

// A part of the family that the spec names by packages = [] follows the driver to another version.
func TestNamedPartFollowsTheDriver(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.update()
	want := func(version string) func(*packages.Set) []converge.Want {
		return func(s *packages.Set) []converge.Want {
			wants := leaves(nvidiaDriver(), version, "nvidia-dkms-580-open", "libnvidia-compute-580")(s)
			w := packages.Want(s, "libnvidia-encode-580", packages.State{Version: "libnvidia-encode-580=*"}, "the spec names it")
			w.Section = "driver"
			return append(wants, w)
		}
	}
	m.apply(want("580.95.05"))
	if said := m.refusal(want("580.105.08")); said != "" {
		t.Errorf("the upgrade is refused:\n%s", said)
	}
}

// A part that another process moved is brought back to the version that the driver has: an open version is no reason to
// upgrade the whole driver of a node that was converged.
func TestDriftUnderAnOpenVersionDoesNotUpgradeTheDriver(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.update()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	want := leaves(nvidiaDriver(), "580.*", "nvidia-dkms-580-open", "libnvidia-compute-580")
	if res := m.apply(want); res.Run != "" {
		t.Fatalf("changed %v", res.Made)
	}
	m.must("apt-get", "-y", "install", "libnvidia-encode-580=580.105.08-0ubuntu1") // an administrator adds a library
	m.apply(want)
	if got := m.state("nvidia-dkms-580-open"); got.Version != "580.95.05-0ubuntu1" {
		t.Errorf("the kernel module's package is %q", got.String())
	}
}

// A packager's new revision of the same driver: the archive has dropped the old one (Ubuntu's updates have the newest only), and
// the spec now asks for one part more.
func TestNewRevisionAndOnePartMore(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	add := func(v string) {
		m.repo.add(
			deb{name: "nvidia-utils-580-server", version: v, fields: "Depends: libnvidia-compute-580-server (= " + v + ")\n"},
			deb{name: "libnvidia-compute-580-server", version: v},
			deb{name: "libnvidia-cfg1-580-server", version: v},
			deb{name: "nvidia-compute-utils-580-server", version: v, fields: "Depends: libnvidia-compute-580-server (= " + v + "), libnvidia-cfg1-580-server (= " + v + ")\n"},
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
	if said := m.refusal(leaves(nvidiaDriver(), "580.159.03", "nvidia-utils-580-server", "nvidia-compute-utils-580-server")); said != "" {
		t.Errorf("refused:\n%s", said)
	}
}

// Undo ends although a part that was removed is no longer available.
func TestUndoAfterAPartThatIsGone(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.unknownPart()
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	m.undo()
}
