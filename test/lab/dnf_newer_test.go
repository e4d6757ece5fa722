// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// at asks for a version from another place than the mirror's; signed is what its key signs.
func (d *dnfDriver) at(version, url, signed string) {
	d.t.Helper()
	d.Put("/etc/gpuadm/node.toml", fmt.Sprintf("format = 1\n\n[driver]\nversion = %q\n\n[driver.repo]\nurl = %q\nkey = %q\nfingerprint = %q\nsignature = %q\n",
		version, url, repos.Key, d.fingerprint, signed), 0o644)
}

// TestLabDnfNewer: a version that has come since dnf last read its lists, and one that only another mirror has to which the
// spec has just moved: both come in one apply.
func TestLabDnfNewer(t *testing.T) {
	t.Parallel()
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
	if out := d.apply(0).Stdout; !strings.Contains(out, "Nothing to do.") {
		t.Errorf("another apply: %s", out)
	}
}

// TestLabDnfSigned: of a mirror that rebuilds its metadata the packages' signatures are trusted, if the spec says
// so: one without is refused.
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
	if out := d.Must("rpm", "-qa", "*nvidia*"); out != "" {
		t.Errorf("installed are %s", out)
	}
	d.Must("cp", "/srv/signed.rpm", unsigned[0])
	rebuild()
	d.Must("rm", "-rf", "/var/cache/dnf")
	d.apply(0)
	d.installed("580.65.06")
	if r := d.apply(0); !strings.Contains(r.Stdout, "Nothing to do.") {
		t.Errorf("the second apply: %s", r)
	}
}

// TestLabDnfNoHeaders: a kernel without headers in any repository is refused before anything is installed, as with apt: before
// anything is written at all, where the lists that are there know enough.
func TestLabDnfNoHeaders(t *testing.T) {
	t.Parallel()
	const lonely, other = "5.14.0-1.el9.x86_64", "5.14.0-2.el9.x86_64"
	d := newDnfDriver(t)
	d.Put("/lib/modules/"+lonely+"/modules.dep", "", 0o644)
	d.Put("/lib/modules/"+lonely+"/modules.builtin", "", 0o644)
	d.Put("/lib/modules/"+other+"/build/Makefile", "", 0o644)
	d.Must("sh", "-c", "rm -rf /var/cache/dnf/*; dnf -y -q makecache") // lists that are younger than the kernel
	state, tree := d.RpmState(), d.TreeOutsideCaches()
	same := func() {
		t.Helper()
		d.Must("rm", "-rf", "/etc/gpuadm", "/var/lib/gpuadm")
		d.Must("mkdir", "-p", "/usr/lib/firmware") // which packages that were there would leave
		d.same(state, tree)
	}

	d.Put("/etc/gpuadm/node.toml", "format = 1\n[driver]\nversion = \"580.65.06\"\n", 0o644)
	d.gpuadm(1, []string{"cannot build modules for kernel " + lonely, "kernel-devel-" + lonely, "these kernels have headers: " + other, "no kernel headers", "nothing was touched", "try"}, "apply", "sources", "packages")
	same()

	d.spec("580.65.06") // a mirror may have them, which its lists tell
	d.apply(1, "kernel-devel-"+lonely, "undone", "try")
	same()
}

// idle wants an apply that has nothing to do to ask rpm once for its packages, keys among them, and to run nothing else but
// what says its own version: here no packaging system knows the lab's containerd.
func (d *dnfDriver) idle() {
	d.t.Helper()
	const log = "/run/strace"
	r := d.Exec("strace", "-f", "-q", "-e", "trace=execve", "-e", "signal=none", "-o", log, "gpuadm", "apply", "sources", "packages")
	if r.Exit != 0 || r.Stdout != "Nothing to do.\n" {
		d.t.Fatalf("strace of apply: %s", r)
	}
	ran := ran(d.Get(log))
	if want := map[string]int{"/usr/local/sbin/gpuadm": 1, "/usr/bin/rpm": 1, "/usr/bin/containerd": 1}; !maps.Equal(ran, want) {
		d.t.Errorf("an apply that has nothing to do ran %v, want %v:\n%s", ran, want, d.Get(log))
	}
}

// TestLabDnfHindered: a file system without room, and a script that fails on the way to another version, leave what was there; an
// apply that has nothing to do runs hardly anything.
func TestLabDnfHindered(t *testing.T) {
	t.Parallel()
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
