// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestUpgradeChangesNothingElse: apt's own settings would bring an upgrade more packages: a sibling of
// a dependency, built from the same source, which an operator holds; and what is suggested. Both the
// plan and apt leave them alone, and the upgrade does not fail for them.
func TestUpgradeChangesNothingElse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("/etc/apt/apt.conf.d/01suggests", "APT::Install-Suggests \"true\";\n")
	const library = "libnvidia-compute-580"
	for _, version := range []string{"580.65.06-0ubuntu1", "580.95.05-0ubuntu1"} {
		m.repo.add(deb{
			name:    library,
			version: version,
			fields:  "Depends: libfoo\nSuggests: suggested\n",
		})
	}
	m.repo.add(
		deb{name: "libfoo", version: "1.1", fields: "Source: foo\n"},
		deb{name: "foo-bin", version: "1.0", fields: "Source: foo\n"},
		deb{name: "foo-bin", version: "1.1", fields: "Source: foo\n"},
		deb{name: "suggested", version: "1"},
	)
	m.update()
	m.must("apt-get", "-y", "install", "libfoo=1.1", "foo-bin=1.0")
	m.must("apt-mark", "hold", "foo-bin")

	for _, version := range []string{"580.65.06", "580.95.05"} {
		m.apply(leaves(nvidiaDriver(), version, library))
		check.Equal(t, m.state("foo-bin"), packages.State{Version: "1.0", Held: true}, "with %s foo-bin is", version)
		check.That(t, !m.state("suggested").Installed(), "with %s a suggested package is installed", version)
	}
	m.idle(leaves(nvidiaDriver(), "580.95.05", library))
}

// TestNeededAsApt holds allNeeded to apt's own answers, for random packages and upgrades: what
// gpuadm finds needed, apt's autoremove would not take.
func TestNeededAsApt(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(62, 2))
	m := newMachine(t)
	controls := randomPackages(random)
	for _, name := range slices.Sorted(maps.Keys(controls)) {
		for version, fields := range controls[name] {
			m.repo.add(deb{name: name, version: version, fields: fields})
		}
	}
	m.update()

	needed, unneeded := 0, 0
	for trial := range 20 {
		state, err := m.randomlyInstalled(random, controls)
		if err != nil {
			continue // they do not go together
		}
		d := must.Get(readDpkg(m))(t)
		s := newSolver(m.apt, d)
		changes := upgradeOf(random, d)
		offers := must.Get(s.Offers(t.Context(), m, slices.Collect(maps.Keys(controls))))(t)
		moves, err := s.Simulate(t.Context(), m, changes, offers, nil)
		if err != nil {
			continue
		}

		changes = changesOf(moves, d)
		candidates := oneBrought(random, d)
		left, err := s.leftOver(t.Context(), m, changes, candidates, offers, nil)
		if err != nil {
			continue // all stay then
		}
		left = slices.DeleteFunc(left, func(name string) bool { return !candidates[name] })
		unneeded += len(left)
		if len(candidates) > 0 && s.allNeeded(t.Context(), m, changes, candidates) {
			needed++
			check.That(t, len(left) == 0, "trial %d: apt would remove %v, and gpuadm finds them needed:\n%s%v", trial, left, state, changes)
		}
	}

	check.That(t, needed >= 4 && unneeded >= 4, "%d upgrades were found to need all, and %d packages were unneeded: too few to show anything", needed, unneeded)
}

// randomPackages returns the dependencies of packages, by name and version.
func randomPackages(random *rand.Rand) map[string]map[string]string {
	const count = 10
	all := map[string]map[string]string{}
	for number := range count {
		name := fmt.Sprintf("p%d", number)
		all[name] = map[string]string{}
		for i, version := range []string{"1", "2"} {
			sparsity := 5 + 10*i // an upgrade makes some unneeded
			fields := ""
			var clauses []string
			for other := number + 1; other < count; other++ {
				switch random.IntN(sparsity) {
				case 0:
					clauses = append(clauses, fmt.Sprintf("p%d", other))
				case 1:
					clauses = append(clauses, fmt.Sprintf("p%d (>= %s)", other, version))
				case 2:
					clauses = append(clauses, fmt.Sprintf("virtual%d | p%d", random.IntN(2), other))
				}
			}

			if len(clauses) > 0 {
				fields += "Depends: " + strings.Join(clauses, ", ") + "\n"
			}
			if random.IntN(4) == 0 {
				fields += fmt.Sprintf("Provides: virtual%d\n", random.IntN(2))
			}
			all[name][version] = fields
		}
	}

	return all
}

// randomlyInstalled writes dpkg's database with what apt would install for some packages, and
// returns it with apt's automatic marks.
func (m *machine) randomlyInstalled(random *rand.Rand, controls map[string]map[string]string) (string, error) {
	m.t.Helper()
	dpkgItself := "Package: dpkg\nEssential: yes\nStatus: install ok installed\nArchitecture: " + m.repo.arch + "\nVersion: 1.21.22\nDescription: in place of this machine's\n\n"
	m.write(facts.DpkgStatus, dpkgItself)
	m.write(aptExtStates, "")
	var asked []converge.Change
	for range 1 + random.IntN(2) {
		asked = append(asked, packageChange(fmt.Sprintf("p%d", random.IntN(5)), packages.State{}, packages.State{Version: "1"}))
	}

	empty := newSolver(m.apt, must.Get(readDpkg(m))(m.t))
	moves, err := empty.Simulate(m.t.Context(), m, asked, nil, nil)
	if err != nil {
		return "", err
	}

	status, marks := dpkgItself, ""
	for _, move := range moves {
		want := "install"
		if random.IntN(2) == 0 {
			want = "hold"
		}
		status += fmt.Sprintf("Package: %s\nStatus: %s ok installed\nArchitecture: %s\nVersion: %s\nDescription: made for a test\n%s\n",
			move.Name, want, m.repo.arch, move.Version, controls[move.Name][move.Version])
		if !packages.Named(asked)[move.Name] {
			marks += "Package: " + move.Name + "\nArchitecture: " + m.repo.arch + "\nAuto-Installed: 1\n\n"
		}
	}

	m.write(facts.DpkgStatus, status)
	m.write(aptExtStates, marks)
	return status + marks, nil
}

// upgradeOf asks for version 2 of what was asked for, and for another version of some that apt had
// installed for it, most of them in version 2.
func upgradeOf(random *rand.Rand, d dpkg) (changes []converge.Change) {
	for _, name := range slices.Sorted(maps.Keys(d.packages)) {
		to := d.packages[name]
		switch {
		case name == "dpkg":
			continue
		case !to.Auto:
			to.Version = "2"
		case random.IntN(2) == 0:
			to.Version = otherVersion(to.Version)
		}
		changes = append(changes, packageChange(name, d.packages[name], to))
	}

	return changes
}

func otherVersion(version string) string {
	if version == "1" {
		return "2"
	}
	return "1"
}

// oneBrought chooses one of the packages that were installed for others, if there is any.
func oneBrought(random *rand.Rand, d dpkg) map[string]bool {
	var brought []string
	for _, name := range slices.Sorted(maps.Keys(d.packages)) {
		if d.packages[name].Auto {
			brought = append(brought, name)
		}
	}

	if len(brought) == 0 {
		return nil
	}
	return map[string]bool{brought[random.IntN(len(brought))]: true}
}

// changesOf are the changes of a simulation.
func changesOf(moves []packages.Move, d dpkg) (changes []converge.Change) {
	for _, move := range moves {
		before := d.packages[move.Name]
		after := packages.State{}
		if move.Version != "" {
			after = packages.State{Version: move.Version, Auto: before.Auto || !before.Installed()}
		}
		changes = append(changes, packageChange(move.Name, before, after))
	}

	return changes
}

func packageChange(name string, before, after packages.State) converge.Change {
	return converge.Change{
		Ref:    converge.Ref{Kind: "package", Name: name},
		Before: before.String(),
		After:  after.String(),
	}
}
