// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A repository that has lost what is about to be replaced stops neither an apply nor an undo: both say what is not kept.
func TestKeepsWhatItCan(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("570.1-1")
	m.repo.driver("580.2-1")
	m.repo.driver("590.3-1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.update()
	m.apply(drivers("570.1"))
	first := m.has()
	newer := m.apply(drivers("580.2"))
	m.must("apt-get", "clean")
	m.repo.drop("nvidia-kernel", "580.2-1") // the lists still name it

	lost := "cannot keep nvidia-kernel 580.2-1: "
	e, said := m.listening(drivers("590.3"))
	if _, err := e.Apply(t.Context(), m); err != nil {
		t.Fatalf("apply: %s", wordsOf(err))
	}
	m.converged("590.3-1")
	if len(*said) != 1 || !strings.HasPrefix((*said)[0], lost) || !strings.HasSuffix((*said)[0], "will need a repository that has it") {
		t.Errorf("apply said %q", *said)
	}
	m.repo.driver("580.2-1") // it has it again
	m.update()
	if _, err := e.Undo(t.Context(), m, "", nil); err != nil {
		t.Fatalf("undo: %s", wordsOf(err))
	}
	m.converged("580.2-1")

	m.must("apt-get", "clean")
	m.repo.drop("nvidia-kernel", "580.2-1")
	e, said = m.listening(drivers("*"))
	if _, err := e.Undo(t.Context(), m, newer.Run, nil); err != nil {
		t.Fatalf("undo: %s", wordsOf(err))
	}
	if last := m.has(); last != first {
		t.Errorf("after undo:\n%swas:\n%s", last, first)
	}
	if len(*said) != 1 || !strings.HasPrefix((*said)[0], lost) {
		t.Errorf("undo said %q", *said)
	}
}

// listening is an engine, and what it says is not kept.
func (m *machine) listening(wants func(*packages.Set) []converge.Want) (*converge.Engine, *[]string) {
	e, said := m.engine(wants), new([]string)
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Unkept {
			*said = append(*said, ev.Text)
		}
	}
	return e, said
}

// A dependency of the driver that is not wholly installed is fixed though all that the spec names is converged: in the version that is
// installed, not in a newer one that the spec would allow. The states are those of dpkg(1), as real dpkg writes them into its database.
func TestBrokenPartOfTheDriverIsFixed(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]string{
		"half-installed":  "install reinstreq half-installed", // dpkg was killed as it unpacked: the files may be missing
		"unpacked":        "install ok unpacked",
		"half-configured": "install ok half-configured",
	} {
		for _, version := range []string{"580.95.05", "580.*"} {
			t.Run(name+" "+version, func(t *testing.T) {
				m := newMachine(t)
				m.repo.branches()
				m.update()
				wants := func(version string) func(*packages.Set) []converge.Want {
					return leaves(nvidiaDriver(), version, "nvidia-dkms-580-open", "libnvidia-compute-580")
				}
				m.apply(wants("580.95.05"))
				whole := m.has()
				m.breaks("nvidia-kernel-common-580", status)
				plan, err := m.engine(wants(version)).Plan(t.Context(), m)
				if err != nil || len(plan.Changes) != 1 || plan.Changes[0].Name != "nvidia-kernel-common-580" || !strings.Contains(plan.Changes[0].Why, name) {
					t.Fatalf("planned %+v, %v", plan.Changes, err)
				}
				m.apply(wants(version))
				if is := m.has(); is != whole {
					t.Errorf("after apply:\n%swas:\n%s", is, whole)
				}
				if got := m.must("cat", "/opt/nvidia.conf"); got != "580\n" {
					t.Errorf("its file has %q", got)
				}
				m.must("apt-get", "check")
				if res := m.apply(wants(version)); res.Run != "" {
					t.Errorf("the second apply changed %v", res.Made)
				}
			})
		}
	}
}

// breaks has dpkg's database say that a package is in a state, and removes a file of a package whose unpacking was cut short.
func (m *machine) breaks(name, status string) {
	m.t.Helper()
	whole := m.must("cat", "/var/lib/dpkg/status")
	before, after, found := strings.Cut(whole, "Package: "+name+"\n")
	was, rest, again := strings.Cut(after, "\n")
	if !found || !again || !strings.HasPrefix(was, "Status: ") {
		m.t.Fatalf("%s is not installed", name)
	}
	held := strings.HasPrefix(was, "Status: hold ")
	if held {
		status = strings.Replace(status, "install ", "hold ", 1)
	}
	m.write("/var/lib/dpkg/status", before+"Package: "+name+"\nStatus: "+status+"\n"+rest)
	if strings.HasSuffix(status, "half-installed") {
		m.must("rm", "/opt/nvidia.conf")
	}
}
