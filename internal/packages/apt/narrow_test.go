// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestAsksOnce: where new versions need nothing but each other and what is there, apt computes their
// installation, and later their upgrade, once, and for the sources of the new versions alone. For
// all of Debian's, it takes a third of a second.
func TestAsksOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	const module, library = "nvidia-dkms-580", "libnvidia-compute-580"
	for _, version := range []string{"580.65.06-0ubuntu1", "580.95.05-0ubuntu1"} {
		m.repo.add(
			deb{
				name:    module,
				version: version,
				fields:  "Depends: nvidia-kernel-source-580 (= " + version + ")\n",
			},
			deb{name: "nvidia-kernel-source-580", version: version},
			deb{name: library, version: version, fields: "Depends: libnvidia-gpucomp-580\n"},
			deb{name: "libnvidia-gpucomp-580", version: version},
		)
	}
	m.update()

	// An installation asks for the candidates of the dependencies, too.
	for _, step := range []struct {
		version   string
		questions map[string]int
	}{
		{"580.65.06", map[string]int{"--print-uris": 1, "show": 1, "policy": 2}},
		{"580.95.05", map[string]int{"--print-uris": 1, "show": 1, "policy": 1}},
	} {
		m.packagers()
		wants := leaves(nvidiaDriver(), step.version, module, library)
		plan := must.Get(m.engine(wants).Plan(t.Context(), m))(t)
		check.Equal(t, plan.Now(), 4, "changes:")

		questions, fromAll := m.questions()
		check.Equal(t, fromAll, 0, "questions about all sources:")
		check.That(t, maps.Equal(questions, step.questions), "a plan of %s asks %v, want %v", step.version, questions, step.questions)
		m.apply(wants)
	}
}

// questions counts what apt was asked, and how often for an answer about all sources.
func (m *machine) questions() (questions map[string]int, fromAll int) {
	questions = map[string]int{}
	for _, command := range m.packagers() {
		for _, question := range []string{"--print-uris", "pkgnames", "show", "policy"} {
			if slices.Contains(strings.Fields(command), question) {
				questions[question]++
			}
		}
		if strings.Contains(command, "--print-uris") && !strings.Contains(command, "sourceparts") {
			fromAll++
		}
	}
	return questions, fromAll
}

// TestFewSourcesAsAll holds the answers that apt gives about the sources of the new versions alone
// to those that it gives about all, for random packages in two sources: where gpuadm finds that they
// are the same, they are.
func TestFewSourcesAsAll(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(62, 3))
	m := newMachine(t)
	site, archive := m.repo, m.withArchive()
	for number := range universe {
		name := fmt.Sprintf("p%d", number)
		for _, version := range []string{"1", "2"} {
			site.add(deb{name: name, version: version, fields: randomFields(random, number)})
		}
		switch number % 4 {
		case 1: // the candidate, where no pin says otherwise
			archive.add(deb{name: name, version: "3", fields: randomFields(random, number)})
		case 2: // between the site's versions
			archive.add(deb{name: name, version: "1.5", fields: randomFields(random, number)})
		}
	}
	for number := range others {
		provides := fmt.Sprintf("Provides: virtual%d\n", number%2)
		archive.add(
			deb{name: fmt.Sprintf("q%d", number), version: "1"},
			deb{name: fmt.Sprintf("provider%d", number), version: "1", fields: provides},
		)
	}
	archive.publish()
	m.update()

	same, withMore, elsewhere := 0, 0, 0
	for trial := range 40 {
		m.write(facts.DpkgStatus, m.randomlyThere(random))
		m.write(aptExtStates, "")
		pins := randomPins(random)
		d := must.Get(readDpkg(m))(t)
		s := newSolver(m.apt, d)
		changes := randomInstallation(random)
		offers := must.Get(s.Offers(t.Context(), m, slices.Sorted(maps.Keys(packages.Named(changes)))))(t)

		few, ok := s.simulateFew(t.Context(), m, changes, offers, pins)
		if !ok {
			elsewhere++
			continue
		}
		all, err := s.simulate(t.Context(), m, pins, verb(changes), arguments(m, changes, offers))
		must.That(t, err == nil, "trial %d: with all sources apt refuses %v: %v", trial, changes, err)
		want, got := movesOf(all), movesOf(few)
		check.That(t, slices.Equal(got, want), "trial %d: %v with pins %v:\nfew sources: %v\nall sources: %v",
			trial, changes, pins, got, want)
		same++
		if len(got) > len(changes) {
			withMore++
		}
	}

	check.That(t, same >= 10 && withMore >= 5 && elsewhere >= 5,
		"%d of the answers counted, %d of them with dependencies, and %d did not count: too few to show anything",
		same, withMore, elsewhere)
}

const (
	universe = 20 // packages that depend on each other
	others   = 4  // packages of the archive alone, and packages that are there
)

// withArchive gives the machine a second source.
func (m *machine) withArchive() *repo {
	m.t.Helper()
	r := newRepo(m.t)
	r.origin = "archive"
	key := must.Get(os.ReadFile(r.key))(m.t)
	m.write("/etc/apt/keyrings/archive.gpg", string(key))
	m.write("/etc/apt/sources.list.d/archive.sources",
		"Types: deb\nURIs: "+r.url+"/\nSuites: /\nSigned-By: /etc/apt/keyrings/archive.gpg\n")
	return r
}

// randomFields are the dependencies of a package on those with higher numbers, on packages of the
// archive, and on packages that may be there.
func randomFields(random *rand.Rand, number int) string {
	var clauses []string
	for range random.IntN(3) {
		next := number + 1 + random.IntN(universe)
		if next >= universe {
			continue
		}

		p, q, there := fmt.Sprintf("p%d", next), random.IntN(others), random.IntN(others)
		switch random.IntN(10) {
		case 0:
			clauses = append(clauses, p+" (>= 2)")
		case 1:
			clauses = append(clauses, fmt.Sprintf("q%d | %s", q, p))
		case 2:
			clauses = append(clauses, fmt.Sprintf("%s | q%d", p, q))
		case 3:
			clauses = append(clauses, fmt.Sprintf("virtual%d | %s", q%2, p))
		case 4:
			clauses = append(clauses, fmt.Sprintf("there%d | q%d | %s", there, q, p))
		case 5:
			clauses = append(clauses, fmt.Sprintf("%s (<< 2) | virtual%d", p, q%2))
		default:
			clauses = append(clauses, p)
		}
	}

	fields := ""
	if len(clauses) > 0 {
		fields = "Depends: " + strings.Join(clauses, ", ") + "\n"
	}
	if random.IntN(5) == 0 {
		fields += fmt.Sprintf("Provides: virtual%d\n", random.IntN(2))
	}
	return fields
}

// randomlyThere is dpkg's database with some packages.
func (m *machine) randomlyThere(random *rand.Rand) string {
	entry := func(name, fields string) string {
		return "Package: " + name + "\nStatus: install ok installed\nArchitecture: " + m.repo.arch +
			"\nVersion: 1\nDescription: made for a test\n" + fields + "\n"
	}
	status := entry("dpkg", "Essential: yes\n")
	for number := range others {
		provides := ""
		if random.IntN(4) == 0 {
			provides = fmt.Sprintf("Provides: virtual%d\n", random.IntN(2))
		}
		if random.IntN(2) == 0 {
			status += entry(fmt.Sprintf("there%d", number), provides)
		}
	}
	return status
}

// randomPins prefer one of the sources, or a version of some packages, or nothing.
func randomPins(random *rand.Rand) []packages.Pin {
	switch random.IntN(3) {
	case 0:
		return []packages.Pin{{Names: []string{"p1*"}, Pin: "version 1*", Priority: 900}, {Names: []string{"p*"}, Pin: "version 1", Priority: 900}}
	case 1:
		return []packages.Pin{{Names: []string{"*"}, Pin: "release o=archive", Priority: 400}}
	}
	return nil
}

// randomInstallation asks for up to three packages of the site, most of them in one version.
func randomInstallation(random *rand.Rand) (changes []converge.Change) {
	version := []string{"1", "2"}[random.IntN(2)]
	for range 1 + random.IntN(3) {
		name := fmt.Sprintf("p%d", random.IntN(universe))
		if !packages.Named(changes)[name] {
			changes = append(changes, packageChange(name, packages.State{}, packages.State{Version: version}))
		}
	}
	return changes
}

// movesOf is what apt says that it would do, in the order of names.
func movesOf(out string) (list []string) {
	for _, move := range parseSimulation(out) {
		list = append(list, move.Name+"="+move.Version)
	}
	slices.Sort(list)
	return list
}
