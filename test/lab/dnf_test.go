// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// dnfDriver is a host with a real dnf and rpm, on which gpuadm installs drivers from a signed
// repository in all its versions. Modules cannot be built there, so the stages end with the
// packages.
type dnfDriver struct {
	*lab.Host
	t           *testing.T
	fingerprint string
}

// tools is what builds modules, as packages without a file: the host's own compiler is of Debian's.
//
//go:embed testdata/tools.spec
var tools string

func newDnfDriver(t *testing.T) *dnfDriver {
	t.Helper()
	d := bootDnf(t, lab.Options{})
	d.offersTools(strings.TrimSpace(d.Must("uname", "-r")))
	return d
}

func bootDnf(t *testing.T, o lab.Options) *dnfDriver {
	t.Helper()
	o.Dist, o.GPUs, o.Repos = lab.RHELish, 8, repos.RPM(t, repos.Recipe{})
	d := &dnfDriver{lab.Boot(t, o), t, repos.Fingerprint(t, o.Repos)}
	repos.Show(d.Host, repos.Good)
	d.Put("/etc/yum.repos.d/tools.repo", "[tools]\nname=tools\nbaseurl=file:///srv/tools\nenabled=1\ngpgcheck=0\n", 0o644)
	return d
}

// offersTools has a source offer what builds modules, with the headers of kernels.
func (d *dnfDriver) offersTools(kernels ...string) {
	d.t.Helper()
	for _, kernel := range kernels {
		d.Put("/root/tools.spec", strings.ReplaceAll(tools, "KERNEL", kernel), 0o644)
		d.Must("rpmbuild", "--quiet", "-bb", "--define", "_rpmdir /srv/tools", "/root/tools.spec")
	}

	d.Must("createrepo_c", "-q", "/srv/tools")
	d.Must("dnf", "-y", "-q", "makecache")
}

// spec asks for a version of the driver.
func (d *dnfDriver) spec(version string) { d.specBy(version, d.fingerprint) }

func (d *dnfDriver) specBy(version, fingerprint string) {
	d.t.Helper()
	d.Put("/etc/gpuadm/node.toml", fmt.Sprintf("format = 1\n\n[driver]\nversion = %q\n\n[driver.repo]\nurl = %q\nkey = %q\nfingerprint = %q\n",
		version, repos.Mirror+"/compute/cuda/repos/rhel9/x86_64", repos.Key, fingerprint), 0o644)
}

// apply applies the stages of packages, which shall exit with a code and say some words.
func (d *dnfDriver) apply(code int, says ...string) lab.Result {
	d.t.Helper()
	return d.gpuadm(code, says, "apply", "sources", "packages")
}

func (d *dnfDriver) gpuadm(code int, says []string, args ...string) lab.Result {
	d.t.Helper()
	r := d.Exec(append([]string{"gpuadm", "--no-color"}, args...)...)
	check.That(d.t, r.Exit == code, "gpuadm %s: want exit %d: %s", strings.Join(args, " "), code, r)
	for _, word := range says {
		check.That(d.t, strings.Contains(r.Stdout+r.Stderr, word), "gpuadm %s does not say %q: %s", strings.Join(args, " "), word, r)
	}
	return r
}

// members are the packages of a driver for computing. libnvidia-gpucomp is one from 580 on.
var dnfMembers = []string{
	"kmod-nvidia-open-dkms", "libnvidia-cfg", "libnvidia-gpucomp", "libnvidia-ml", "nvidia-driver-cuda", "nvidia-driver-cuda-libs",
	"nvidia-kmod-common", "nvidia-modprobe", "nvidia-persistenced",
}

// installed wants all members in a version, and locked there. Those that were a dependency before
// stay one: dnf keeps reasons.
func (d *dnfDriver) installed(version string) {
	d.t.Helper()
	state := d.RpmState()
	for _, name := range dnfMembers {
		if name == "libnvidia-gpucomp" && version < "580" {
			continue
		}
		want := repos.RPMVersion(version) + " held"
		check.That(d.t, strings.TrimSuffix(state[name], " auto") == want, "%s is %q, want %q", name, state[name], want)
	}
}

// onlyOf wants what a node needs in one version, whatever the names in its branch are, and nothing
// of another version.
func (d *dnfDriver) onlyOf(version string) {
	d.t.Helper()
	for name, is := range lab.Only(d.RpmState(), "*nvidia*") {
		want := repos.RPMVersion(version)
		check.That(d.t, is == want+" held" || is == want+" held auto" || is == want+" auto", "package %s is %q, want %s", name, is, want)
	}

	for _, file := range []string{
		"/usr/lib64/libnvidia-ml.so." + version, "/usr/lib64/libcuda.so." + version, "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-smi",
		"/usr/src/nvidia-" + version + "/dkms.conf",
	} {
		check.That(d.t, d.Exec("test", "-e", file).Exit == 0, "driver %s: %s is not there", version, file)
	}
}

// same wants packages, versions, locks, reasons and files as they were.
func (d *dnfDriver) same(state map[string]string, tree lab.Tree) {
	d.t.Helper()
	repos.Show(d.Host, repos.Good)
	d.Must("dnf", "-y", "-q", "makecache")
	// The lab's packages own no folders, so rpm leaves those it has made for them.
	d.Must("find", "/usr/src", "/usr/lib/firmware", "-mindepth", "1", "-type", "d", "-empty", "-delete")
	d.Must("rmdir", "--ignore-fail-on-non-empty", "/usr/lib/firmware")
	now := d.RpmState()
	for name := range lab.Only(now, "*") {
		check.That(d.t, state[name] == now[name], "%s is %q, and was %q", name, now[name], state[name])
	}
	for name, was := range state {
		check.That(d.t, now[name] != "", "%s is gone, and was %q", name, was)
	}
	check.None(d.t, tree.Diff(d.TreeOutsideCaches()), "not the tree from before:")
}

// TestLabDnf: a version is installed, kept, upgraded and downgraded, over module streams too, each
// in one transaction of dnf; a second apply does nothing; what a repository has no more is refused
// before anything is touched; undo ends where it began.
func TestLabDnf(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	state, tree := d.RpmState(), d.TreeOutsideCaches()
	d.spec("580.65.06")
	d.gpuadm(0, []string{"package-stream nvidia-driver   absent → 580-open", "? package dkms   deferred until"}, "plan", "sources", "packages")
	d.apply(0)
	d.installed("580.65.06")
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "the second apply:")
	d.Must("rpm", "-e", "--nodeps", "nvidia-modprobe") // an optional part, by the catalog
	d.apply(0, "package nvidia-modprobe")
	d.installed("580.65.06")
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "the apply after a missing part:")
	d.Must("rpm", "-e", "--nodeps", "libnvidia-gpucomp") // which nvidia-driver-cuda-libs requires
	d.apply(0, "package libnvidia-gpucomp")
	d.installed("580.65.06")
	d.Must("dnf", "check", "--dependencies")
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "the apply after a lost requirement:")
	d.idle()
	for i, v := range []string{"580.95.05", "580.178.04", "580.95.05", "595.71.05", "590.48.01", "610.43.02", "580.95.05", "570.172.08"} {
		if (i+1)%check.Every(2) != 0 {
			continue
		}
		d.spec(v)
		oneTransaction(t, d.Host, "apply", "sources", "packages")
		d.onlyOf(v)
		dnfExits(t, d.Host, 0, "Nothing to do", "upgrade")
		d.onlyOf(v)
		if v != "610.43.02" { // whose members have other names
			d.installed(v)
		}
	}

	repos.Show(d.Host, repos.Vanished)
	d.Must("dnf", "-y", "makecache", "--refresh")
	before := d.RpmState()
	d.spec("580.95.05")
	d.apply(1, "no repository has that version of", "undone", "file /etc/yum.repos.d/gpuadm-driver.repo") // which version is asked for makes lists old, as with apt
	for _, d := range differ(d.RpmState(), before) {
		t.Errorf("after a refusal, %s", d)
	}
	d.Must("rm", "-rf", "/etc/gpuadm")
	d.gpuadm(0, nil, "undo", "--to", "all")
	d.Must("rm", "-rf", "/var/lib/gpuadm")
	d.same(state, tree)
}

// TestLabDnfFails: a script that fails, of which dnf makes nothing, is seen, and all is turned
// back; and so is a dnf that was killed. What is left of one that was killed together with gpuadm
// is healed once.
func TestLabDnfFails(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	d.spec("580.65.06")
	d.apply(0)
	d.spec(repos.BadDriver)
	d.apply(1, "cannot install package kmod-nvidia-open-dkms-3:580.105.08-1.el9.noarch: its script %post failed, exit status 10", "Bad return status")
	d.installed("580.65.06")

	d.spec("580.95.05")
	there, _ := repos.Waits(d.Host, "after", "libnvidia-ml")
	task := d.Go("gpuadm", "apply", "sources", "packages")
	there()
	check.That(t, d.KillInside("dnf") != 0, "no dnf to kill")
	repos.Heal(d.Host)
	r := task.Wait()
	check.That(t, r.Exit == 1, "apply after its dnf was killed: %s", r)
	if d.installed("580.65.06"); t.Failed() {
		t.Fatalf("after a failed apply: %s", r)
	}

	there, _ = repos.Waits(d.Host, "after", "nvidia-driver-cuda")
	task = d.Go("gpuadm", "apply", "sources", "packages")
	there()
	d.KillInside("gpuadm")
	d.KillInside("dnf")
	repos.Heal(d.Host)
	task.Wait()
	r = d.Exec("dnf", "history", "list", "last")
	check.That(t, strings.Contains(r.Stdout, "#"), "dnf's history after a kill: %s", r)
	d.apply(0, "package-database rpm   interrupted")
	d.installed("580.95.05")
	out := d.Must("rpm", "-qa", "--qf", "%{NAME}.%{ARCH}\n")
	check.That(t, len(strings.Fields(out)) == len(d.RpmState()), "packages are installed twice:\n%s", out)
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "after healing:")
}

// TestLabDnfRefuses: repositories that are not to be trusted, a wrong key, streams and locks of an
// administrator.
func TestLabDnfRefuses(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	d.specBy("580.65.06", strings.Repeat("0", 40))
	d.apply(1, "its fingerprint is "+d.fingerprint)
	d.spec("580.65.06")
	for variant, says := range map[repos.Variant]string{
		repos.Tampered:   "Bad GPG signature",
		repos.WrongKey:   "Bad GPG signature",
		repos.Unsigned:   "GPG signature is not available",
		repos.Mismatched: "checksum doesn't match",
	} {
		repos.Show(d.Host, repos.Good)
		repos.Show(d.Host, variant)
		d.apply(1, "cannot read repository", says)
		check.None(t, d.Must("rpm", "-qa", "*nvidia*"), "%s: installed are", variant)
	}

	repos.Show(d.Host, repos.Good)
	d.Put("/etc/dnf/modules.d/nvidia-driver.module", "[nvidia-driver]\nname=nvidia-driver\nstream=570-open\nprofiles=\nstate=enabled\n", 0o644)
	d.apply(1, "cannot enable stream 580-open of dnf's module nvidia-driver: 570-open was enabled outside gpuadm", "dnf module reset nvidia-driver")
	d.Must("rm", "/etc/dnf/modules.d/nvidia-driver.module")
	d.apply(0)
	d.installed("580.65.06")

	// Another dnf is at work.
	there, goOn := repos.Waits(d.Host, "after", "nvlsm")
	task := d.Go("dnf", "-y", "install", "nvlsm")
	there()
	d.spec("580.95.05")
	waits := d.Go("sh", "-c", "gpuadm apply sources packages >/run/said 2>&1")
	d.Must("timeout", "180", "sh", "-c", "until grep -q waiting /run/said; do sleep 0.1; done")
	goOn()
	r := task.Wait()
	check.That(t, r.Exit == 0, "the other dnf: %s", r)
	r = waits.Wait()
	check.That(t, r.Exit == 0 && strings.Contains(d.Get("/run/said"), "busy → clean"), "apply that had to wait for another dnf: %s", d.Get("/run/said"))
	d.installed("580.95.05")
}

// TestLabDnfForeign: a driver that is loaded and belongs to no package is another program's, and
// nothing is planned over it: neither where its libraries lie between those of packages, nor where
// they lie in a folder of their own, which a container or a microVM was given.
func TestLabDnfForeign(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	d.spec("580.65.06")
	d.Must("sh", "-ec", "mount -o remount,rw /sys; mkdir -p /sys/module/nvidia; echo 580.95.05 >/sys/module/nvidia/version")
	const refusal = "cannot use the driver: 580.95.05 is loaded, 580.65.06 is wanted, and the driver is left to another owner (driver 580.95.05 is loaded, and no package has its files)"
	for _, folder := range []string{"/opt/nvidia/lib64", "/usr/local/nvidia/lib64", "/usr/lib64"} {
		d.Must("mkdir", "-p", folder)
		d.Put(folder+"/libnvidia-ml.so.580.95.05", "x", 0o755)
		d.Must("ln", "-sf", "libnvidia-ml.so.580.95.05", folder+"/libnvidia-ml.so.1")
		d.gpuadm(1, []string{refusal, "remove what its owner installed, and reboot"}, "plan")
		check.Has(t, d.gpuadm(0, nil, "owners").Stdout, "another owner", "%s:", folder)
		d.Must("rm", "-r", folder+"/libnvidia-ml.so.1", folder+"/libnvidia-ml.so.580.95.05")
	}

	d.Must("sh", "-ec", "echo 580.65.06 >/sys/module/nvidia/version; umount -l /sys/module/nvidia 2>/dev/null || true; rm -r /sys/module/nvidia")
	d.apply(0)
	d.installed("580.65.06")
	d.Must("sh", "-ec", "mkdir -p /sys/module/nvidia; echo 580.65.06 >/sys/module/nvidia/version")
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "a package's driver that is loaded:")
}

// TestLabDnfFlavour: what was installed outside gpuadm with proprietary modules is replaced by a
// newer version with open ones in one transaction, and undo, which installs, downgrades and removes
// in one, brings back names, versions, locks and reasons. What was fetched for that is installed
// although its stream is not enabled, and no repository has it any more.
func TestLabDnfFlavour(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	d := newDnfDriver(t)
	d.Put("/etc/yum.repos.d/nvidia.repo", repos.DnfRepos(repos.Mirror, repos.Key), 0o644)
	was := repos.RPMVersion(repos.Gone)
	dnfExits(t, d.Host, 0, "Complete!", "--setopt=*.module_hotfixes=1", "install", "nvidia-driver-cuda-"+was, "kmod-nvidia-latest-dkms-"+was)
	d.Must("dnf", "-y", "mark", "remove", "nvidia-driver-cuda")
	d.Must("rm", "/etc/yum.repos.d/nvidia.repo")
	d.Put("/etc/dnf/plugins/versionlock.list", "# mine\nnvlsm-0:2025.06.11-1.*\n", 0o644)
	state, tree := d.RpmState(), d.TreeOutsideCaches()
	d.spec("590.48.01")
	d.apply(0, "package kmod-nvidia-latest-dkms   "+was+" → absent")
	d.installed("590.48.01")
	repos.Show(d.Host, repos.Vanished)
	d.Must("dnf", "-y", "makecache", "--refresh")
	d.Must("rm", "-rf", "/etc/gpuadm")
	d.gpuadm(0, nil, "undo", "--to", "all")
	d.Must("rm", "-rf", "/var/lib/gpuadm")
	d.same(state, tree)
}

// TestLabDnfPrecompiled: an operator took NVIDIA's precompiled modules by hand, and the spec asks
// for open ones. dnf would let both stay. The refusal says how to keep what is there; after the
// module reset that it advises, there is one kind of modules, and undo brings back the other.
func TestLabDnfPrecompiled(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	const version, precompiled = "580.178.04", "kmod-nvidia-580.178.04-5.14.0-687.54.1"
	d := newDnfDriver(t)
	d.Put("/etc/yum.repos.d/nvidia.repo", repos.DnfRepos(repos.Mirror, repos.Key), 0o644)
	dnfExits(t, d.Host, 0, "Complete!", "module", "enable", "nvidia-driver:580")
	dnfExits(t, d.Host, 0, "Complete!", "install", "nvidia-driver-cuda", precompiled)
	d.Must("rm", "/etc/yum.repos.d/nvidia.repo")

	d.spec(version)
	refused := d.apply(1, "cannot enable stream 580-open of dnf's module nvidia-driver: 580 was enabled outside gpuadm")
	check.Has(t, refused.Stdout+refused.Stderr, `or write an exact version of branch 580, modules = "proprietary", build = "precompiled" in [driver], by which stream 580 stays`, "the advice:")
	dnfExits(t, d.Host, 0, "Complete!", "module", "reset", "nvidia-driver")
	state := d.RpmState()
	check.That(t, state[precompiled] != "", "before: %v", lab.Only(state, "kmod-*"))

	d.apply(0, "package "+precompiled)
	kmods := lab.Only(d.RpmState(), "kmod-*")
	check.That(t, len(kmods) == 1 && kmods["kmod-nvidia-open-dkms"] != "", "kernel modules of two kinds: %v", kmods)
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "the second apply:")
	d.gpuadm(0, nil, "undo", "--to", "all")
	check.That(t, maps.Equal(d.RpmState(), state), "undo left %v, was %v", lab.Only(d.RpmState(), "*nvidia*"), lab.Only(state, "*nvidia*"))
}

// at asks for a version from another place than the mirror's; signed is what its key signs.
func (d *dnfDriver) at(version, url, signed string) {
	d.t.Helper()
	d.Put("/etc/gpuadm/node.toml", fmt.Sprintf("format = 1\n\n[driver]\nversion = %q\n\n[driver.repo]\nurl = %q\nkey = %q\nfingerprint = %q\nsignature = %q\n",
		version, url, repos.Key, d.fingerprint, signed), 0o644)
}

// TestLabDnfNewer: a version that has come since dnf last read its lists, and one that only another
// mirror has to which the spec has just moved: both come in one apply.
func TestLabDnfNewer(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	const below = "/compute/cuda/repos/rhel9/x86_64"
	d := newDnfDriver(t)
	repos.Show(d.Host, repos.Vanished)
	d.spec("580.65.06")
	d.apply(0)
	d.installed("580.65.06")
	repos.Show(d.Host, repos.Lagging)
	d.spec(repos.Gone)
	d.apply(0)
	d.installed(repos.Gone)

	d.at("580.65.06", "file://"+lab.RepoDir+"/"+string(repos.Vanished)+below, "auto")
	d.apply(0)
	d.installed("580.65.06")
	d.spec(repos.Gone)
	d.apply(0)
	d.installed(repos.Gone)
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "another apply:")
}

// TestLabDnfPriorities: a package in any version is the one that dnf itself would take, by
// priorities, excludes and streams.
func TestLabDnfPriorities(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	d.Put("/root/newer.spec", strings.Replace(strings.ReplaceAll(tools, "KERNEL", "9"), "Version: 1\n", "Version: 9\n", 1), 0o644)
	d.Must("rpmbuild", "--quiet", "-bb", "--define", "_rpmdir /srv/newer", "/root/newer.spec")
	d.Must("createrepo_c", "-q", "/srv/newer")
	d.spec("580.65.06")
	d.gpuadm(0, nil, "apply", "sources")
	for _, c := range []struct{ newer, tools, dkms string }{
		{"", "", "9-1.el9"},
		{"priority=100\n", "", "1-1.el9"},
		{"priority=20\n", "priority=10\n", "1-1.el9"},
		{"priority=20\n", "priority=10\nexcludepkgs=dkms\n", "9-1.el9"},
	} {
		for name, more := range map[string]string{"newer": c.newer, "tools": c.tools} {
			d.Put("/etc/yum.repos.d/"+name+".repo", "["+name+"]\nname="+name+"\nbaseurl=file:///srv/"+name+"\nenabled=1\ngpgcheck=0\n"+more, 0o644)
		}
		d.Must("dnf", "-q", "makecache")
		r := d.Exec("dnf", "--assumeno", "install", "dkms")
		f := strings.Fields(regexp.MustCompile(`(?m)^ dkms .*$`).FindString(r.Stdout))
		must.That(t, len(f) >= 3 && f[2] == c.dkms, "with %q and %q dnf itself would take: %s", c.newer, c.tools, r)
		d.gpuadm(0, []string{"package dkms   absent → " + c.dkms}, "plan", "sources", "packages")
	}
}

// TestLabDnfSigned: of a mirror that rebuilds its metadata the packages' signatures are trusted, if
// the spec says so: one without is refused.
func TestLabDnfSigned(t *testing.T) {
	t.Parallel()
	const mirror = "/srv/rebuilt"
	d := newDnfDriver(t)
	d.Must("cp", "-a", lab.RepoDir+"/"+string(repos.Good)+"/compute/cuda/repos/rhel9/x86_64", mirror)
	d.Must("sh", "-c", "rm -f "+mirror+"/repodata/repomd.xml.asc")
	d.at("580.65.06", "file://"+mirror, "auto")
	d.apply(1, "cannot read repository file://"+mirror, "GPG signature is not available")

	unsigned := strings.Fields(d.Must("sh", "-c", "ls "+mirror+"/libnvidia-ml-580.65.06-*.rpm"))
	d.Must("cp", unsigned[0], "/srv/signed.rpm")
	d.Must("rpmsign", "--delsign", unsigned[0])
	rebuild := func() {
		d.Must("createrepo_c", "-q", mirror) // it takes the module streams over from the metadata that is there
	}
	rebuild()
	d.at("580.65.06", "file://"+mirror, "packages")
	d.apply(1, "cannot install packages: the signature, key or date of a repository or package is not accepted", "libnvidia-ml")
	check.None(t, d.Must("rpm", "-qa", "*nvidia*"), "installed are")
	d.Must("cp", "/srv/signed.rpm", unsigned[0])
	rebuild()
	d.Must("rm", "-rf", "/var/cache/dnf")
	d.apply(0)
	d.installed("580.65.06")
	r := d.apply(0)
	check.That(t, strings.Contains(r.Stdout, "Nothing to do."), "the second apply: %s", r)
}

// TestLabDnfNoHeaders: a kernel without headers in any repository is refused before anything is
// installed, as with apt.
func TestLabDnfNoHeaders(t *testing.T) {
	t.Parallel()
	const lonely, other = "5.14.0-1.el9.x86_64", "5.14.0-2.el9.x86_64"
	d := newDnfDriver(t)
	d.Put("/lib/modules/"+lonely+"/modules.dep", "", 0o644)
	d.Put("/lib/modules/"+other+"/build/Makefile", "", 0o644)
	state, tree := d.RpmState(), d.TreeOutsideCaches()
	d.spec("580.65.06")
	d.apply(1, "cannot build modules for kernel "+lonely, "kernel-devel-"+lonely, "these kernels have headers: "+other, "undone", "try")
	d.Must("rm", "-rf", "/etc/gpuadm", "/var/lib/gpuadm")
	d.Must("mkdir", "-p", "/usr/lib/firmware") // which packages that were there would leave
	d.same(state, tree)
}

// idle wants an apply that has nothing to do to ask rpm once for its packages, keys among them, and
// to run nothing else but what says its own version: here no packaging system knows the lab's
// containerd.
func (d *dnfDriver) idle() {
	d.t.Helper()
	const log = "/run/strace"
	r := d.Exec("strace", "-f", "--seccomp-bpf", "-q", "-e", "trace=execve", "-e", "signal=none", "-o", log, "gpuadm", "apply", "sources", "packages")
	must.That(d.t, r.Exit == 0 && r.Stdout == "Nothing to do.\n", "strace of apply: %s", r)
	ran := ran(d.Get(log))
	if want := map[string]int{"/usr/local/sbin/gpuadm": 1, "/usr/bin/rpm": 1}; !maps.Equal(ran, want) {
		d.t.Errorf("an apply that has nothing to do ran %v, want %v:\n%s", ran, want, d.Get(log))
	}
}

// TestLabDnfHindered: a file system without room, and a script that fails on the way to another
// version, leave what was there; an apply that has nothing to do runs hardly anything.
func TestLabDnfHindered(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	d := newDnfDriver(t)
	d.spec("580.65.06")
	d.apply(0)
	d.idle()
	before := d.RpmState()

	const firmware = "/usr/lib/firmware/nvidia"
	d.Must("sh", "-c", "cp -a "+firmware+" /run/held; mount -t tmpfs -o size=12k tmpfs "+firmware+"; cp -a /run/held/. "+firmware)
	d.spec("580.95.05")
	t.Log(d.apply(1, "the disk is full", firmware, "try").Stderr)
	d.Must("umount", firmware)
	d.installed("580.65.06")
	for _, d := range differ(d.RpmState(), before) {
		t.Error(d)
	}
	d.apply(0)
	d.installed("580.95.05")
	d.idle()
}
