// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// driver adds one version of a small driver: a metapackage with members in lockstep, and a library
// of others that it draws along.
func (r *repo) driver(version string) {
	same := " (= " + version + ")"
	r.add(
		deb{
			name:    "nvidia-driver",
			version: version,
			fields:  "Depends: nvidia-kernel" + same + ", libnvidia-compute" + same + ", dkms-like\n",
		},
		deb{
			name:    "nvidia-kernel",
			version: version,
			files:   map[string]string{"/opt/nvidia-kernel.conf": "as shipped with " + version + "\n", "/DEBIAN/conffiles": "/opt/nvidia-kernel.conf\n"},
		},
		deb{name: "libnvidia-compute", version: version},
	)
}

// offers has the repository offer versions of the small driver and the library, and reads the
// lists.
func (m *machine) offers(versions ...string) {
	m.t.Helper()
	for _, v := range versions {
		m.repo.driver(v)
	}
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.update()
}

var members = []string{"nvidia-driver", "nvidia-kernel", "libnvidia-compute"}

// drivers wants a version of all members, held.
func drivers(pattern string) func(*packages.Set) []converge.Want {
	return func(s *packages.Set) (wants []converge.Want) {
		for _, name := range members {
			wants = append(wants, packages.Want(s, name, packages.State{
				Version: "driver=" + pattern,
				Held:    true,
			}, "drives the GPUs"))
		}
		return wants
	}
}

func (m *machine) apply(wants func(*packages.Set) []converge.Want) converge.Result {
	m.t.Helper()
	res, err := m.engine(wants).Apply(m.t.Context(), m)
	must.That(m.t, err == nil, "apply: %s", wordsOf(err))
	return res
}

// idle applies what is there already: nothing is changed, and neither apt nor dpkg runs.
func (m *machine) idle(wants func(*packages.Set) []converge.Want) {
	m.t.Helper()
	m.packagers()
	res := m.apply(wants)
	check.That(m.t, res.Run == "", "the second apply changed %v", res.Made)
	ran := m.packagers()
	check.That(m.t, len(ran) == 0, "the second apply ran %v", ran)
}

// refuse applies what must fail, and returns all that the error says.
func (m *machine) refuse(wants func(*packages.Set) []converge.Want) string {
	m.t.Helper()
	_, err := m.engine(wants).Apply(m.t.Context(), m)
	must.That(m.t, err != nil, "it went through")
	return wordsOf(err)
}

// unresolved returns all that Resolve says: the engine's plan keeps one line and what to try.
func (m *machine) unresolved(wants func(*packages.Set) []converge.Want) string {
	m.t.Helper()
	var pending []converge.Change
	all := wants(newSet(ourSource))
	for _, w := range all {
		found := must.Get(w.Look(m.t.Context(), m))(m.t)
		to := must.Get(w.To(found))(m.t)
		pending = append(pending, converge.Change{
			Ref:    w.Ref(),
			Before: found,
			After:  to,
		})
	}

	_, err := all[0].Thing.(converge.Resolver).Resolve(m.t.Context(), m, pending)
	must.That(m.t, err != nil, "it was resolved")
	return wordsOf(err)
}

func (m *machine) undo() {
	m.t.Helper()
	_, err := m.engine(drivers("*")).Undo(m.t.Context(), m, "all", nil)
	must.That(m.t, err == nil, "undo: %s", wordsOf(err))
}

func (m *machine) state(name string) packages.State {
	m.t.Helper()
	s := must.Get(packages.New(name, reading()).Look(m.t.Context(), m))(m.t)
	return packages.Parse(s)
}

func (m *machine) converged(version string) {
	m.t.Helper()
	for _, name := range members {
		got := m.state(name)
		check.That(m.t, got == (packages.State{
			Version: version,
			Held:    true,
		}), "%s is %q, not at %s held", name, got.String(), version)
	}
}

func TestInstallUpgradeDowngradeUndo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, v := range []string{"580.65.06-0ubuntu1", "580.95.05-0ubuntu1", "590.48.01-0ubuntu1"} {
		m.repo.driver(v)
	}
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.repo.publish()
	first := m.has()

	plan, err := m.engine(drivers("580.65.06")).Plan(t.Context(), m)
	must.That(t, err == nil && plan.Deferred == len(members) && plan.Now() == 1, "a plan before the lists were read: %+v, %v", plan.Changes, err)
	res := m.apply(drivers("580.65.06"))
	m.converged("580.65.06-0ubuntu1")
	dep := m.state("dkms-like")
	check.That(t, dep == (packages.State{
		Version: "1.0-1",
		Auto:    true,
	}), "the dependency is %q", dep.String())
	drawn := slices.IndexFunc(res.Made, func(c converge.Change) bool {
		return c.Name == "dkms-like"
	})
	check.That(t, drawn >= 0 && res.Made[drawn].Dependency && res.Made[drawn].After == "1.0-1 auto", "made: %+v", res.Made)
	m.idle(drivers("580.65.06"))

	m.apply(drivers("580.*"))
	m.converged("580.65.06-0ubuntu1") // it matches, so it stays
	m.apply(drivers("590.48.01"))
	m.converged("590.48.01-0ubuntu1")
	debs, _ := filepath.Glob(m.dir + packages.Store + "/*580.65.06*.deb")
	check.That(t, len(debs) == len(members), "kept for the way back: %v", debs)
	m.must("apt-get", "-y", "upgrade")
	m.converged("590.48.01-0ubuntu1")
	m.apply(drivers("580.95.05"))
	m.converged("580.95.05-0ubuntu1")
	m.must("apt-get", "-y", "dist-upgrade")
	m.converged("580.95.05-0ubuntu1") // held

	m.undo()
	m.still(first)
	left, _ := os.ReadDir(m.dir + "/opt")
	check.That(t, len(left) == 0, "left behind: %v", left)
}

// Undo installs former versions that the repository no longer has, from gpuadm's own folder, with
// their former holds and marks.
func TestUndoAfterTheRepositoryForgot(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("570.1-1", "580.2-1")
	m.must("apt-get", "-y", "install", "nvidia-driver=570.1-1", "nvidia-kernel=570.1-1", "libnvidia-compute=570.1-1")
	m.must("apt-mark", "auto", "nvidia-kernel", "libnvidia-compute")
	m.must("apt-mark", "hold", "dkms-like")
	conf := m.dir + "/opt/nvidia-kernel.conf"
	put(t, conf, "changed by its owner\n", 0o644)
	first := m.has()
	m.apply(drivers("580.2"))
	m.converged("580.2-1")
	for _, name := range members {
		m.repo.drop(name, "570.1-1")
	}
	m.update()
	m.undo()
	m.still(first)
	data, _ := os.ReadFile(conf)
	check.That(t, string(data) == "changed by its owner\n", "the conffile is now %q", data)
}

// What the repository had lost before gpuadm came cannot be restored: apply says so, and undo
// refuses until the operator leaves it, also where it removes gpuadm's source.
func TestVersionThatIsNoLongerAvailable(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("570.1-1")
	m.must("apt-get", "-y", "install", "nvidia-driver")
	m.must("apt-get", "clean")
	m.repo.driver("580.2-1")
	m.repo.drop("nvidia-kernel", "570.1-1")
	m.repo.publish()
	must.OK(t, os.Remove(m.dir+ourSource))
	e := m.from(m.repo, drivers("580.2"))
	made := must.Get(e.Apply(t.Context(), m))(t).Made
	must.That(t, len(made) == 2+len(members), "%+v", made)
	for _, c := range made[2:] {
		check.That(t, c.Lost == "no source has nvidia-kernel 570.1-1 any more", "%s keeps %q", c, c.Lost)
	}
	_, err := e.Undo(t.Context(), m, "all", nil)
	contains(t, wordsOf(err), "no source has nvidia-kernel 570.1-1 any more", "nothing was touched", "undo --to all --leave")
	_, err = e.Undo(t.Context(), m, "all", members)
	check.That(t, err == nil, "%v", err)
	m.converged("580.2-1")
}

// from is an engine whose packages come from a repository, by a file of gpuadm's.
func (m *machine) from(r *repo, wants func(*packages.Set) []converge.Want) *converge.Engine {
	key := "/etc/apt/keyrings/" + filepath.Base(r.home) + ".gpg"
	m.write(key, string(must.Get(os.ReadFile(r.key))(m.t)))
	text := "Types: deb\nURIs: " + r.url + "/\nSuites: /\nSigned-By: " + key + "\n"
	e := m.engine(wants)
	stage, thingOf := e.Stages[0].Wants, e.ThingOf
	e.Stages[0].Wants = func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
		all, err := stage(s, f)
		return append(all, packages.Source(ourSource, []byte(text), reading(), "where packages come from")), err
	}

	e.Stages[1].Verifies = e.Stages[0].Name
	e.Stages[1].Wants = func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		set := newSet(ourSource)
		set.Hold = map[string][]byte{ourSource: []byte(text)}
		return wants(set), nil
	}

	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Form == packages.FormSource {
			return packages.NewSource(ref.Name, reading()), nil
		}
		return thingOf(ref)
	}

	return e
}

// TestSourceMoves: packages move to a repository that lacks the version that was there. Roll-back,
// undo and undo of all end where each began, though the first repository answers no more.
func TestSourceMoves(t *testing.T) {
	t.Parallel()
	m, next := newMachine(t), newRepo(t)
	m.offers("570.1-1")
	for _, v := range []string{"580.2-1", "590.3-1"} {
		next.driver(v)
	}
	next.add(deb{
		name:    "nvidia-kernel",
		version: "590.3-1",
		files:   map[string]string{"/DEBIAN/postinst": "#!/bin/sh\nexit 1\n"},
	})
	next.publish()
	first := m.has()
	apply := func(r *repo, version string) error {
		_, err := m.from(r, drivers(version)).Apply(t.Context(), m)
		return err
	}

	undo := func(to string) {
		t.Helper()
		_, err := m.from(m.repo, drivers("*")).Undo(t.Context(), m, to, nil)
		check.That(t, err == nil, "undo: %s", wordsOf(err))
	}

	must.OK(t, apply(m.repo, "570.1"))
	was := m.has()
	m.must("apt-get", "clean")
	contains(t, wordsOf(apply(next, "590.3")), "dpkg has left it half-configured", "file "+ourSource)
	m.still(was)
	must.OK(t, apply(next, "580.2"))
	m.converged("580.2-1")
	m.repo.gone()
	undo("")
	m.still(was)
	must.OK(t, apply(next, "580.2"))
	next.gone()
	undo("all")
	m.still(first)
}

func TestVanishedVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.65.06-0ubuntu1")
	m.repo.driver("580.95.05-0ubuntu1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.repo.drop("libnvidia-compute", "580.65.06-0ubuntu1")
	m.update()
	first := m.has()
	m.packagers()
	said := m.refuse(drivers("580.65.06")) + m.unresolved(drivers("580.65.06"))
	contains(t, said, "cannot install driver 580.65.06: no source has that version of libnvidia-compute",
		"libnvidia-compute: 580.95.05-0ubuntu1 from "+m.repo.url, "nvidia-driver, nvidia-kernel: 580.95.05-0ubuntu1, 580.65.06-0ubuntu1 from "+m.repo.url, "a version that all have: 580.95.05")
	for _, c := range m.packagers() {
		check.That(t, strings.HasPrefix(c, "apt-cache "), "it ran %s", c)
	}
	m.still(first)
	m.apply(drivers("580.*")) // the newest that all have
	m.converged("580.95.05-0ubuntu1")
}

func TestFailingScript(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.65.06-1")
	m.repo.driver("580.95.05-1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"},
		deb{
			name:    "nvidia-kernel",
			version: "580.95.05-1",
			files:   map[string]string{"/DEBIAN/postinst": "#!/bin/sh\necho 'building the module'\necho 'error: kernel headers are missing' >&2\nexit 10\n"},
		})
	m.update()
	first := m.has()
	said := m.refuse(drivers("580.95.05"))
	contains(t, said, "cannot install package nvidia-kernel: dpkg has left it half-configured", "building the module", "kernel headers are missing", "exit status 10")
	m.still(first)
	m.apply(drivers("580.65.06"))
	first = m.has()
	contains(t, m.refuse(drivers("580.95.05")), "dpkg has left it half-configured")
	m.still(first)
	m.must("apt-get", "check")
}

// slow is a package whose script waits to be killed, unless it may pass.
const slow = "#!/bin/sh\n[ \"$1\" = configure ] || exit 0\n[ -e /run/pass ] && exit 0\nwhile read -r key value; do [ \"$key\" = PPid: ] && kill -9 \"$value\"; done </proc/self/status\nsleep 1\nexit 1\n"

// A run in which dpkg is killed is rolled back. Where gpuadm was killed too, the next run lets dpkg
// finish first.
func TestKilledDpkg(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.1-1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"},
		deb{
			name:    "nvidia-kernel",
			version: "580.1-1",
			files:   map[string]string{"/DEBIAN/postinst": strings.Replace(slow, "</proc/self/status", "</proc/$$/status", 1)},
		})
	m.update()
	first := m.has()
	said := m.refuse(drivers("580.1"))
	contains(t, said, "dpkg was killed or interrupted", "nvidia-kernel")
	m.still(first)

	m.Do(t.Context(), "apt-get", "-y", "install", "nvidia-driver") // another run, killed during its transaction
	a, err := m.apt.Audit(t.Context(), m, func() (map[string]packages.State, error) {
		return m.apt.Installed(t.Context(), m)
	})
	must.That(t, err == nil && a.Interrupted && len(a.Broken) > 0, "the database after it: %+v, %v", a, err)
	m.write("/run/pass", "")
	res := m.apply(drivers("580.1"))
	m.converged("580.1-1")
	if res.Made[0].Kind != "package-database" || !strings.HasPrefix(string(res.Made[0].Before), "interrupted") {
		t.Errorf("first made: %+v", res.Made[0])
	}
}

// A package that another installation has left broken is named, and nothing is touched.
func TestBrokenBeforeGpuadm(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.1-1")
	m.repo.add(deb{
		name:    "dkms-like",
		version: "1.0-1",
	}, deb{
		name:    "other",
		version: "1",
		files:   map[string]string{"/DEBIAN/postinst": "#!/bin/sh\nexit 7\n"},
	})
	m.update()
	m.Do(t.Context(), "apt-get", "-y", "install", "other")
	first := m.has()
	contains(t, m.refuse(drivers("580.1")), "other is not wholly installed, and gpuadm did not install it", "dpkg --configure -a")
	m.still(first)
}

// Two flavours that conflict: the other one is drawn along, and comes back with undo.
func TestConflictingFlavour(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.1-1")
	const marks = "#!/bin/sh\ncp /var/lib/apt/extended_states /run/marks\n"
	m.repo.add(deb{
		name:    "dkms-like",
		version: "1.0-1",
		files:   map[string]string{"/DEBIAN/postinst": marks},
	}, deb{
		name:    "nvidia-kernel",
		version: "580.1-1",
		fields:  "Conflicts: nvidia-kernel-open\n",
	},
		deb{
			name:    "nvidia-kernel-open",
			version: "580.1-1",
			files:   map[string]string{"/opt/open.conf": "shipped\n", "/DEBIAN/conffiles": "/opt/open.conf\n"},
		})
	m.update()
	m.must("apt-get", "-y", "install", "nvidia-kernel-open")
	first := m.has()
	m.apply(drivers("580.1"))
	m.converged("580.1-1")
	contains(t, m.must("cat", "/run/marks"), "Package: dkms-like\n") // apt has marked the dependency before dpkg runs: a kill leaves no other
	got := m.state("nvidia-kernel-open")
	check.That(t, !got.Installed() && got.Broken == packages.ConfigFiles, "the other flavour is %q", got.String())
	m.undo()
	m.still(first)
}

// What is held outside gpuadm is not changed unless the operator allows it; undo restores the hold.
func TestHeldOutsideGpuadm(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.1-1")
	m.repo.add(deb{name: "dkms-like", version: "0.5-1"})
	m.update()
	m.must("apt-get", "-y", "install", "dkms-like")
	m.must("apt-mark", "hold", "dkms-like")
	m.repo.add(deb{
		name:    "dkms-like",
		version: "1.0-1",
	}, deb{
		name:    "nvidia-driver",
		version: "580.1-1",
		fields:  "Depends: dkms-like (>= 1)\n",
	})
	m.update()
	first := m.has()
	for _, wants := range []func(*packages.Set) []converge.Want{drivers("580.1"), func(s *packages.Set) []converge.Want {
		return []converge.Want{packages.Want(s, "dkms-like", packages.State{Version: "1.0-1"}, "")}
	}} {
		contains(t, m.refuse(wants), "package dkms-like: that needs change-held", "dkms-like is held at 0.5-1", "--allow change-held")
		m.still(first)
		e := m.engine(wants)
		e.Allow = []string{"change-held"}
		_, err := e.Apply(t.Context(), m)
		must.That(t, err == nil, "%v", wordsOf(err))
		is := m.state("dkms-like")
		check.That(t, is.Version == "1.0-1" && is.Held, "dkms-like is %q", is.String())
		m.undo()
		m.still(first)
	}
}

// A transaction is refused before the touch if apt would do more than it says: here an
// administrator has since installed what depends on a package that undo would take away.
func TestUndoRefusesWhatOthersNeed(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.1-1")
	m.repo.add(deb{
		name:    "dkms-like",
		version: "1.0-1",
	}, deb{
		name:    "theirs",
		version: "1",
		fields:  "Depends: libnvidia-compute\n",
	})
	m.update()
	m.apply(drivers("580.1"))
	m.must("apt-get", "-y", "install", "theirs")
	first := m.has()
	_, err := m.engine(drivers("580.1")).Undo(context.Background(), m, "all", nil)
	contains(t, wordsOf(err), "apt would remove theirs 1, which depends on what would change")
	m.still(first)
}

// What apt announces before it starts dpkg is compared with the changes: where it would do more, or
// a hook cannot run, nothing is touched, and the error names the difference.
func TestAptIsHeldToTheChanges(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{
		name:    "a",
		version: "1",
		fields:  "Depends: b\n",
	}, deb{
		name:    "b",
		version: "1",
	}, deb{
		name:    "theirs",
		version: "1",
		fields:  "Depends: old\n",
	}, deb{name: "old", version: "1"})
	m.update()
	m.must("apt-get", "-y", "install", "theirs")
	first := m.has()
	change := func(name, before, after string) converge.Change {
		return converge.Change{
			Ref:    converge.Ref{Kind: "package", Name: name},
			Before: converge.State(before),
			After:  converge.State(after),
		}
	}

	whole := []converge.Change{change("a", "", "1"), change("b", "", "1 auto")}
	for _, c := range []struct {
		because string
		changes []converge.Change
	}{
		{"apt would install b 1 beside it", whole[:1]},
		{"apt would remove theirs 1, which depends on what would change", []converge.Change{change("old", "1 auto", "")}},
	} {
		err := m.apt.Transact(t.Context(), m, c.changes)
		must.That(t, err != nil, "not refused: %s", c.because)
		contains(t, wordsOf(err), "cannot change packages: apt would not do what was planned", c.because, "nothing was touched")
		m.still(first)
	}

	m.hook = "/etc/hostname"
	check.That(t, m.apt.Transact(t.Context(), m, whole) != nil, "apt went on without the hook")
	m.still(first)
	m.hook = ""
	check.OK(t, m.apt.Transact(t.Context(), m, whole))
}

// TestDoneOfAll: while apt works it says how much it has done, in each of its two phases, of all
// packages, and what it does just now.
func TestDoneOfAll(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("580.1-1")
	var done, lines []string
	m.follow = func(d, line string) {
		done, lines = append(done, d), append(lines, d+": "+line)
	}
	var changes []converge.Change
	for _, name := range append(members, "dkms-like") {
		changes = append(changes, converge.Change{
			Ref: converge.Ref{Kind: "package", Name: name},
			After: map[bool]converge.State{
				true:  "1.0-1",
				false: "580.1-1",
			}[name == "dkms-like"],
		})
	}

	must.OK(t, m.apt.Transact(t.Context(), m, changes))
	done = slices.Compact(slices.DeleteFunc(done, func(d string) bool { return d == "" }))
	shares := map[string][]int{}
	for _, d := range done {
		phase, share, _ := strings.Cut(d, " ")
		shares[phase] = append(shares[phase], must.Get(strconv.Atoi(strings.TrimSuffix(share, "%")))(t))
	}

	check.That(t, len(shares) == 2 && strings.HasPrefix(done[0], "download ") && slices.IsSorted(shares["dpkg"]), "apt has done %q", done)
	check.That(t, len(shares["dpkg"]) > 10 && shares["dpkg"][0] == 0 && slices.Max(shares["dpkg"]) > 90, "dpkg has done %v", shares["dpkg"])
	all := strings.Join(lines, "\n")
	for _, want := range []string{"%: Retrieving file ", " of 4", "%: Setting up libnvidia-compute (580.1-1) ..."} {
		contains(t, all, want)
	}
	check.That(t, !strings.Contains(all, "status:"), "apt's own form is shown: %s", all)
}

// Members in several versions, each of which is one asked for, do not fit together.
func TestSplitGroup(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{
		name:    "a",
		version: "580.1-1",
	}, deb{
		name:    "a",
		version: "580.2-1",
	}, deb{name: "b", version: "580.1-1"}, deb{name: "b", version: "580.2-1"})
	m.update()
	m.must("apt-get", "-y", "install", "a=580.1-1", "b=580.2-1")
	m.apply(func(s *packages.Set) []converge.Want {
		return []converge.Want{packages.Want(s, "a", packages.State{Version: "x=580.*"}, ""), packages.Want(s, "b", packages.State{Version: "x=580.*"}, "")}
	})
	a, b := m.state("a"), m.state("b")
	check.That(t, a.Version == b.Version, "they are %s and %s", a.Version, b.Version)
}

// A package in any version is the one that apt itself would take, of all that apt_preferences(5)
// has.
func TestOpenVersionFollowsPriorities(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	low := newRepo(t)
	low.origin, low.release = "low", "Suite: stable-backports\nNotAutomatic: yes\nButAutomaticUpgrades: yes\n"
	m.repo.add(deb{name: "dkms", version: "3.0-1"}, deb{name: "gcc", version: "12-1"})
	low.add(deb{
		name:    "dkms",
		version: "3.1-1~bpo12+1",
	}, deb{name: "gcc", version: "13-1"}, deb{name: "only", version: "1"})
	key := must.Get(os.ReadFile(low.key))(t)
	m.write("/etc/apt/keyrings/low.gpg", string(key))
	m.write("/etc/apt/sources.list.d/low.sources", "Types: deb\nURIs: "+low.url+"/\nSuites: /\nSigned-By: /etc/apt/keyrings/low.gpg\n")
	low.publish()
	m.update()
	wants := func(names ...string) func(*packages.Set) []converge.Want {
		return func(s *packages.Set) (wants []converge.Want) {
			for _, name := range names {
				wants = append(wants, packages.Want(s, name, packages.State{Version: name + "=*"}, ""))
			}
			return wants
		}
	}

	m.write("/etc/apt/preferences.d/folder/not-read", "")
	m.write("/etc/apt/preferences.d/ignored.bak", "Package: dkms\nPin: release o=low\nPin-Priority: 999\n")
	for _, c := range []struct{ pin, ours, dkms string }{
		{"", "", "3.0-1"}, // backports have 100
		{"Package: *\nPin: release o=low\nPin-Priority: 500\n", "", "3.1-1~bpo12+1"},
		{"Package: *\nPin: release o=low\nPin-Priority: 1001\n", "", "3.1-1~bpo12+1"}, // four digits, of the source too
		{"Package: *\nPin: release a=stable-backports\nPin-Priority: 499\n", "", "3.0-1"},
		{"Package: dkms\nPin: version 3.1*\nPin-Priority: 990\n", "", "3.1-1~bpo12+1"},
		{"Package: dkms\nPin: release o=test\nPin-Priority: -1\n", "", "3.1-1~bpo12+1"},
		{"Package: dkms\nPin: release o=test\nPin-Priority: 50\n", "", "3.1-1~bpo12+1"},
		{"", "Package: none d[a-k]m*\nPin: version 3.1*\nPin-Priority: 1001\n", "3.1-1~bpo12+1"},
		{"Package: dkms\nPin: version 3.0*\nPin-Priority: 1002\n", "Package: *ms\nPin: version 3.1*\nPin-Priority: 1001\n", "3.0-1"},
		{"Package: dkms\nPin: version 3.0*\nPin-Priority: 50\n", "Package: *\nPin: release o=low\nPin-Priority: 990\n", "3.1-1~bpo12+1"},
		{"Package: *\nPin: release o=low\nPin-Priority: 990\n", "Package: [c-e]*\nPin: release o=low\nPin-Priority: -1\n", "3.0-1"},
	} {
		m.write("/etc/apt/preferences.d/theirs", c.pin)
		m.write(pinFolder+ourPins+"x", c.ours)
		apts := m.must("apt-get", "-s", "install", "dkms", "gcc")
		plan, err := m.engine(wants("dkms", "gcc", "only")).Plan(t.Context(), m)
		must.That(t, err == nil && len(plan.Changes) == 3, "%s: %+v, %v", c.pin, plan.Changes, err)
		for _, p := range plan.Changes {
			is := packages.Parse(p.After).Version
			check.That(t, (p.Name != "dkms" || is == c.dkms) && (p.Name == "only" || strings.Contains(apts, "Inst "+p.Name+" ("+is+" ")),
				"%s: %s is planned in %s, apt itself would:\n%s", c.pin, p.Name, is, apts)
		}
	}

	m.write("/etc/apt/preferences.d/theirs", "Package: only\nPin: release o=low\nPin-Priority: -1\n")
	contains(t, m.unresolved(wants("only")), "cannot install only: no source has that version of only", "only: 1 (kept out by its priority, -1) from "+low.url)
}

var _ host.Host = (*machine)(nil)
