// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLostDependency: an operator's dpkg has removed, by force, what the driver's packages need.
// apt refuses all work then. The next apply brings it back, and undo of all ends where it began.
func TestLostDependency(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string][]string{
		"a dependency":                   {"dpkg", "--force-all", "-P", "dkms-like"},
		"a dependency of one":            {"dpkg", "--force-all", "-P", "tools"},
		"only its configuration is left": {"dpkg", "--force-all", "-r", "tools"},
		"another version": {
			"sh", "-c", "cd /root && apt-get download tools=1.0-1 && dpkg --force-all -i tools_1.0-1_*.deb",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.offers("580.65.06-1")
			m.repo.add(
				deb{
					name:    "dkms-like",
					version: "1.0-2",
					fields:  "Depends: tools (>= 2)\n",
				},
				deb{name: "tools", version: "1.0-1"},
				deb{
					name:    "tools",
					version: "2.0-1",
					files: map[string]string{
						"/opt/tools.conf":   "2\n",
						"/DEBIAN/conffiles": "/opt/tools.conf\n",
					},
				},
			)
			m.update()
			before := m.has()
			m.apply(drivers("580.65.06"))
			whole := m.has()
			m.must(lose...)

			plan := must.Get(m.engine(drivers("580.65.06")).Plan(t.Context(), m))(t)
			check.That(t, plan.Now() > 0, "the plan does not see it: %+v", plan.Changes)
			m.apply(drivers("580.65.06"))
			m.must("apt-get", "check")
			m.still(whole)
			m.idle(drivers("580.65.06"))

			m.undo()
			if name == "another version" { // an operator's own installation stays
				m.must("apt-get", "-y", "purge", "tools")
			}
			m.still(before)
		})
	}
}

// TestLostDependencyAndUpgrade: what the driver's packages need was lost, and the spec asks for
// another version: one apply does both.
func TestLostDependencyAndUpgrade(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("580.65.06-1", "580.95.05-1")
	m.repo.add(
		deb{name: "dkms-like", version: "1.0-2", fields: "Depends: tools\n"},
		deb{name: "tools", version: "1"},
	)
	m.update()
	m.apply(drivers("580.65.06"))
	m.must("dpkg", "--force-all", "-P", "tools")

	m.apply(drivers("580.95.05"))
	m.converged("580.95.05-1")
	m.must("apt-get", "check")
	m.idle(drivers("580.95.05"))
}

// TestLostDependencyIsNowhere: no source has what is lost. The error names it, and nothing is
// touched.
func TestLostDependencyIsNowhere(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("580.65.06-1")
	m.apply(drivers("580.65.06"))
	m.must("dpkg", "--force-all", "-P", "dkms-like")
	m.repo.drop("dkms-like", "1.0-1")
	m.update()
	lost := m.has()

	said := m.refuse(drivers("580.65.06"))
	contains(t, said,
		"apt refuses all work, since nvidia-driver lacks a dependency",
		"nvidia-driver 580.65.06-1 depends on dkms-like, which is not installed",
		"add a source or mirror that does")
	m.still(lost)
}

// TestUndoOfARestoredDependency: undo of the run alone that has brought a lost dependency back
// would take it from what needs it. It is refused, with the reason and with what can be undone.
func TestUndoOfARestoredDependency(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("580.65.06-1")
	m.apply(drivers("580.65.06"))
	whole := m.has()
	m.must("dpkg", "--force-all", "-P", "dkms-like")
	m.apply(drivers("580.65.06"))

	_, err := m.engine(drivers("580.65.06")).Undo(t.Context(), m, "", nil)
	const why = "nvidia-driver was incomplete, and is not installed so again"
	contains(t, wordsOf(err), why, "nothing was touched")
	m.still(whole)
	m.must("apt-get", "check")
}

// TestOthersLostDependency: a package that the driver does not need lacks a dependency. The driver
// is converged; what is to change is refused with apt's reason.
func TestOthersLostDependency(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("580.65.06-1", "580.95.05-1")
	m.repo.add(
		deb{name: "other", version: "1", fields: "Depends: others-library\n"},
		deb{name: "others-library", version: "1"},
	)
	m.update()
	m.must("apt-get", "-y", "install", "other")
	m.apply(drivers("580.65.06"))
	m.must("dpkg", "--force-all", "-P", "others-library")

	m.idle(drivers("580.65.06"))
	said := m.refuse(drivers("580.95.05"))
	contains(t, said,
		"since other lacks a dependency",
		"other 1 depends on others-library",
		"sudo apt-get --fix-broken install")
}

// TestIncompleteAsApt holds what is read out of dpkg's database to the answers of apt-get check.
func TestIncompleteAsApt(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.publish()
	random := rand.New(rand.NewPCG(62, 1))
	lacking := 0
	for range 24 {
		text := randomDatabase(random, m.repo.arch)
		m.write("/var/lib/dpkg/status", text)
		d := must.Get(readDpkg(m))(t)
		var got []string
		for name, state := range d.packages {
			if state.Broken == packages.Incomplete {
				got = append(got, name)
			}
		}

		slices.Sort(got)

		said, err := m.Do(t.Context(), "apt-get", "-o", "Debug::NoLocking=true", "check")
		var want []string
		for line := range strings.Lines(string(said)) {
			name, _, ok := strings.Cut(line, " : ")
			if ok && strings.HasPrefix(line, " ") && strings.TrimSpace(name) != "" {
				want = append(want, strings.TrimSpace(name))
			}
		}

		slices.Sort(want)
		must.That(t, (err != nil) == (len(want) > 0), "apt-get check: %v\n%s", err, said)
		const differ = "incomplete are %q, apt says %q:\n%s\n%s"
		must.That(t, slices.Equal(got, want), differ, got, want, said, text)
		lacking += len(want)
	}

	must.That(t, lacking > 12, "only %d packages lacked a dependency", lacking)
}

// randomDatabase is a dpkg database whose packages are all held and depend on each other at random.
func randomDatabase(random *rand.Rand, arch string) string {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	versions := []string{"1", "1.0-1", "1.0~rc1-1", "2:0.5-1", "2.0-1+b1"}
	name := func() string { return fmt.Sprintf("p%d", random.IntN(14)) }
	relation := func() string {
		text := name() + pick("", "", "", ":any")
		if strings.HasSuffix(text, ":any") {
			return text
		}
		if random.IntN(2) == 0 {
			text += fmt.Sprintf(" (%s %s)", pick("<<", "<=", "=", ">=", ">>", ">="), pick(versions...))
		}
		return text
	}

	clause := func() string {
		if random.IntN(3) == 0 {
			return relation() + " | " + relation()
		}
		return relation()
	}

	var text strings.Builder
	text.WriteString("Package: dpkg\nEssential: yes\nStatus: install ok installed\nArchitecture: " + arch + "\n")
	text.WriteString("Version: 1.21.22\nDescription: in place of this machine's\n\n")
	for i := range 12 {
		if random.IntN(5) == 0 {
			continue
		}
		status := pick("hold ok installed", "hold ok installed", "hold ok installed", "deinstall ok config-files")
		fmt.Fprintf(&text, "Package: p%d\nStatus: %s\nArchitecture: %s\n", i, status, arch)
		fmt.Fprintf(&text, "Multi-Arch: allowed\nVersion: %s\n", pick(versions...))
		if random.IntN(4) == 0 {
			fmt.Fprintf(&text, "Provides: p%d%s\n", 12+random.IntN(2), pick("", " (= 1.0-1)"))
		}
		if random.IntN(6) == 0 {
			fmt.Fprintf(&text, "Pre-Depends: %s\n", clause())
		}
		if random.IntN(3) > 0 {
			fmt.Fprintf(&text, "Depends: %s, %s\n", clause(), clause())
		}
		text.WriteString("Description: made for a test\n\n")
	}

	return text.String()
}
