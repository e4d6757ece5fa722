// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// kept are the packages in our own folder.
func (m *machine) kept() (names []string) {
	m.t.Helper()
	files := must.Get(filepath.Glob(m.dir + packages.Store + "/*.deb"))(m.t)
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}

// What no undo needs any more is removed; what one needs is there, and goes back without a
// repository.
func TestPrune(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("570.1-1", "580.1-1", "590.1-1")
	var had []string
	for _, v := range []string{"570.1", "580.1", "590.1"} {
		m.apply(drivers(v))
		had = append(had, m.has())
	}

	m.write(packages.Store+"/other_1.0-1_"+m.repo.arch+".deb", "an old one")
	m.write(packages.Store+"/readme", "not ours to judge")

	undo := func(to string) {
		t.Helper()
		_, err := m.engine(drivers("590.1")).Undo(t.Context(), m, to, nil)
		must.That(t, err == nil, "undo %s: %s", to, wordsOf(err))
	}

	for _, v := range []string{"570.1-1", "580.1-1"} {
		for _, name := range members {
			m.repo.drop(name, v)
		}
	}

	m.update()
	undo("")
	m.still(had[1])
	for _, name := range m.kept() {
		check.That(t, strings.Contains(name, "_570.1-1_") || strings.Contains(name, "_580.1-1_"), "%s is kept, and no undo goes back to it", name)
	}
	_, err := os.Stat(m.dir + packages.Store + "/readme")
	check.That(t, err == nil, "%v", err)
	undo("")
	m.still(had[0])
	undo("")
	left := m.kept()
	check.That(t, len(left) == 0, "all is undone, and %v is kept", left)
}

// From every state that some applies and undos lead to, all of them can be undone, though the
// repository has forgotten each version by the time it is replaced. Each run is a real apt's: there
// are few of them but in a nightly run.
func TestPruneNeverTakesWhatUndoNeeds(t *testing.T) {
	t.Parallel()
	all := []string{"570.1", "580.1", "590.1", "600.1"}
	seeds, runs := uint64(1), 3
	if check.All() {
		seeds, runs = 2, 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			m := newMachine(t)
			m.offers("570.1-1", "580.1-1", "590.1-1", "600.1-1")
			first := m.has()
			stack := []string{first} // the states before each run that is not undone
			for range runs {
				if len(stack) > 1 && r.IntN(3) == 0 {
					_, err := m.engine(drivers("*")).Undo(t.Context(), m, "", nil)
					must.That(t, err == nil, "undo: %s", wordsOf(err))
					if stack = stack[:len(stack)-1]; m.has() != stack[len(stack)-1] {
						t.Fatalf("undo ended in\n%swant\n%s", m.has(), stack[len(stack)-1])
					}
					continue
				}

				m.apply(drivers(all[r.IntN(len(all))]))
				if now := m.has(); !slices.Equal(stack[len(stack)-1:], []string{now}) {
					stack = append(stack, now)
				}
			}

			for _, v := range all {
				for _, name := range members {
					m.repo.drop(name, v+"-1")
				}
			}

			m.update()
			for len(stack) > 1 {
				stack = stack[:len(stack)-1]
				_, err := m.engine(drivers("*")).Undo(t.Context(), m, "", nil)
				must.That(t, err == nil, "undo: %s", wordsOf(err))
				if now := m.has(); now != stack[len(stack)-1] {
					t.Fatalf("undo ended in\n%swant\n%s", now, stack[len(stack)-1])
				}
			}

			left := m.kept()
			check.That(t, len(left) == 0, "all is undone, and %v is kept", left)
		})
	}
}

// A package that no repository has any more is kept as long as it is the one that is installed:
// after an undo the same upgrade runs again, and must have its way back as the first had.
func TestPruneKeepsWhatIsInstalled(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("570.1-1", "580.1-1")
	m.must("apt-get", "-y", "install", "nvidia-driver=570.1-1", "nvidia-kernel=570.1-1", "libnvidia-compute=570.1-1")
	first := m.has()
	for attempt := range 2 {
		res := m.apply(drivers("580.1"))
		for _, c := range res.Made {
			check.That(t, c.Lost == "", "attempt %d: %s stays: %s", attempt, c, c.Lost)
		}
		m.must("apt-get", "clean")
		if attempt == 0 {
			for _, name := range members {
				m.repo.drop(name, "570.1-1")
			}
			m.update()
		}

		_, err := m.engine(drivers("580.1")).Undo(t.Context(), m, "", nil)
		must.That(t, err == nil, "undo: %s", wordsOf(err))
		m.still(first)
		for _, name := range m.kept() {
			check.That(t, strings.Contains(name, "_570.1-1_"), "attempt %d: %s is kept, and no undo goes back to it", attempt, name)
		}
	}
}

// What is installed is kept as apt has downloaded it, without room of its own: an upgrade downloads
// none of it again, and undo needs no repository.
func TestInstalledIsKept(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("570.1-1", "580.2-1")
	m.apply(drivers("570.1"))
	first := m.has()
	links := m.must("sh", "-c", "stat -c %h "+packages.Store+"/*_570.1-1_*")
	check.That(t, links == "2\n2\n2\n", "the files have %q names", links)
	m.must("apt-get", "clean")
	m.packagers()
	m.apply(drivers("580.2"))
	ran := strings.Join(m.packagers(), "\n")
	check.That(t, !strings.Contains(ran, "download --"), "it ran %s", ran)
	for _, name := range members {
		m.repo.drop(name, "570.1-1")
	}
	m.update()
	_, err := m.engine(drivers("580.2")).Undo(t.Context(), m, "", nil)
	must.That(t, err == nil, "undo: %s", wordsOf(err))
	m.still(first)
}

// A repository that has lost what is about to be replaced stops neither an apply nor an undo: both
// say what is not kept.
func TestKeepsWhatItCan(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("570.1-1", "580.2-1", "590.3-1")
	m.apply(drivers("570.1"))
	first := m.has()
	newer := m.apply(drivers("580.2"))
	m.must("sh", "-c", "apt-get clean; rm -f "+packages.Store+"/*_580.2-1_*")
	m.repo.drop("nvidia-kernel", "580.2-1") // the lists still name it

	lost := "cannot keep nvidia-kernel 580.2-1: "
	e, said := m.listening(drivers("590.3"))
	_, err := e.Apply(t.Context(), m)
	must.That(t, err == nil, "apply: %s", wordsOf(err))
	m.converged("590.3-1")
	check.That(t, len(*said) == 1 && strings.HasPrefix((*said)[0], lost) && strings.HasSuffix((*said)[0], "will need a repository that has it"), "apply said %q", *said)
	m.repo.driver("580.2-1") // it has it again
	m.update()
	_, err = e.Undo(t.Context(), m, "", nil)
	must.That(t, err == nil, "undo: %s", wordsOf(err))
	m.converged("580.2-1")

	m.must("sh", "-c", "apt-get clean; rm -f "+packages.Store+"/*_580.2-1_*")
	m.repo.drop("nvidia-kernel", "580.2-1")
	e, said = m.listening(drivers("*"))
	_, err = e.Undo(t.Context(), m, newer.Run, nil)
	must.That(t, err == nil, "undo: %s", wordsOf(err))
	m.still(first)
	check.That(t, len(*said) == 1 && strings.HasPrefix((*said)[0], lost), "undo said %q", *said)
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

// A dependency of the driver that is not wholly installed is fixed though all that the spec names
// is converged: in the version that is installed, not in a newer one that the spec would allow. The
// states are those of dpkg(1), as real dpkg writes them into its database.
func TestBrokenPartOfTheDriverIsFixed(t *testing.T) {
	t.Parallel()
	for status, name := range map[string]string{
		"install reinstreq half-installed": "half-installed", // dpkg was killed as it unpacked: the files may be missing
		"install reinstreq unpacked":       "half-installed", // killed later: dpkg then refuses to configure it, and --reinstall alone helps
		"install ok unpacked":              "unpacked",
		"install ok half-configured":       "half-configured",
	} {
		for _, version := range []string{"580.95.05", "580.*"} {
			t.Run(status+" "+version, func(t *testing.T) {
				m := withBranches(t)
				wants := func(version string) func(*packages.Set) []converge.Want {
					return leaves(nvidiaDriver(), version, "nvidia-dkms-580-open", "libnvidia-compute-580")
				}
				m.apply(wants("580.95.05"))
				whole := m.has()
				m.breaks("nvidia-kernel-common-580", status)
				plan, err := m.engine(wants(version)).Plan(t.Context(), m)
				must.That(t, err == nil && len(plan.Changes) == 1 && plan.Changes[0].Name == "nvidia-kernel-common-580" && strings.Contains(plan.Changes[0].Why, name),
					"planned %+v, %v", plan.Changes, err)
				m.apply(wants(version))
				m.still(whole)
				check.Equal(t, m.must("cat", "/opt/nvidia.conf"), "580\n", "its file has")
				m.must("apt-get", "check")
				m.idle(wants(version))
			})
		}
	}
}

// TestUnpackedIsGpuadmsAgain: a package of the driver that an operator has unpacked is configured and
// held again by the next apply. Then it is as gpuadm left it: status says nothing of a change outside
// gpuadm.
func TestUnpackedIsGpuadmsAgain(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"libnvidia-compute-580", "nvidia-kernel-common-580"} { // asked for, and a dependency
		t.Run(name, func(t *testing.T) {
			m := withBranches(t)
			wants := leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580")
			m.apply(wants)
			whole := m.has()
			m.must("sh", "-c", "cd /root && apt-get download "+name+"=580.95.05-0ubuntu1 && dpkg --unpack "+name+"_*.deb")
			t.Logf("unpacked: %q", m.state(name).String())
			m.apply(wants)
			m.still(whole)

			status := must.Get(m.engine(wants).Status(t.Context(), m))(t)
			for _, mark := range status.Made {
				check.That(t, !mark.Changed && !mark.Reverted, "%s %s: changed outside gpuadm: %+v", mark.Kind, mark.Name, mark)
			}
			m.idle(wants)
		})
	}
}

// TestUnpackedInAnotherVersion: an operator's dpkg was killed as it installed another version. gpuadm has
// installed its own again, and has moved to that version and back since. When an operator lifts a
// hold later, plan and status do not take up that old change again; undo removes it.
func TestUnpackedInAnotherVersion(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	wants := leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580")
	m.apply(wants)
	whole := m.has()
	m.must("sh", "-c", "cd /root && apt-get download libnvidia-compute-580=580.105.08-0ubuntu1 && dpkg --unpack libnvidia-compute-580_*.deb")
	m.apply(wants)
	m.still(whole)
	m.apply(leaves(nvidiaDriver(), "580.105.08", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	m.apply(wants)
	m.still(whole)

	m.must("apt-mark", "unhold", "nvidia-dkms-580-open")
	p := must.Get(m.engine(wants).Plan(t.Context(), m))(t)
	check.List(t, p.Notes, nil, "the plan's notes after a hold is lifted:")
	m.apply(wants)
	m.still(whole)
	p = must.Get(m.engine(wants).Plan(t.Context(), m))(t)
	check.List(t, p.Notes, nil, "the plan's notes at the end:")
	_, err := m.engine(wants).Undo(t.Context(), m, "all", nil)
	check.That(t, err == nil, "undo: %v", err)
	check.Equal(t, m.state("libnvidia-compute-580").String(), "", "it is undone to")
}

// TestHalfInstalledIsRemoved: dpkg was killed as it unpacked packages for the first time, and the
// undo has no source left that has their archives. apt refuses all work then, and dpkg removes the
// packages: dpkg(1), --force-remove-reinstreq. A package that nothing depends on is then no name that
// apt knows ("Unable to locate package", apt 2.6.1).
func TestHalfInstalledIsRemoved(t *testing.T) {
	t.Parallel()
	for _, broken := range [][]string{
		{"nvidia-kernel-common-580"},
		{"libnvidia-compute-580"},
		{"nvidia-dkms-580-open", "libnvidia-compute-580"},
	} {
		t.Run(strings.Join(broken, " "), func(t *testing.T) {
			t.Parallel()
			m := withBranches(t)
			before := m.has()
			m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
			for _, name := range broken {
				m.breaks(name, "install reinstreq half-installed")
			}
			m.must("sh", "-c", "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/* "+
				"/var/cache/apt/*.bin /var/cache/apt/archives/*.deb")

			m.undo()
			m.still(before)
			m.must("apt-get", "check")
		})
	}
}

// TestHalfUnpackedFilesAreRemoved: dpkg was killed between unpacking the files of a package and renaming
// them, and has not yet written which files the package has. Once the package is removed nothing of it
// is left, and a file of another package that waits for its configuration stays.
func TestHalfUnpackedFilesAreRemoved(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	m.repo.add(deb{name: "other", version: "1"})
	m.update()
	m.must("apt-get", "--yes", "install", "other")
	m.apply(leaves(nvidiaDriver(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	m.must("sh", "-ec", `cd /opt
mv nvidia.conf nvidia.conf.dpkg-new
mkdir nvidia-new; touch nvidia-new/version.dpkg-new
rm -r nvidia-kernel-common-580 /var/lib/dpkg/info/nvidia-kernel-common-580.*
touch other/version.dpkg-new`)
	m.breaks("nvidia-kernel-common-580", "install reinstreq half-installed")

	m.undo()
	left := m.must("find", "/opt", "-name", "*nvidia*", "-o", "-name", "*.dpkg-new")
	check.Equal(t, left, "/opt/other/version.dpkg-new\n", "left behind:")
}

// breaks has dpkg's database say that a package is in a state, and removes a file of a package
// whose unpacking was cut short.
func (m *machine) breaks(name, status string) {
	m.t.Helper()
	whole := m.must("cat", "/var/lib/dpkg/status")
	before, after, found := strings.Cut(whole, "Package: "+name+"\n")
	was, rest, again := strings.Cut(after, "\n")
	must.That(m.t, found && again && strings.HasPrefix(was, "Status: "), "%s is not installed", name)
	held := strings.HasPrefix(was, "Status: hold ")
	if held {
		status = strings.Replace(status, "install ", "hold ", 1)
	}
	m.write("/var/lib/dpkg/status", before+"Package: "+name+"\nStatus: "+status+"\n"+rest)
	if strings.HasSuffix(status, "half-installed") {
		m.must("rm", "-f", "/opt/nvidia.conf")
	}
}
