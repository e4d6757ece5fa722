// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// driverNode is a host that shall get its driver and toolkit from the lab's repositories.
type driverNode struct {
	node
	key string // fingerprint of the key that signs them
}

func bootDriver(t *testing.T, o lab.Options) driverNode {
	t.Helper()
	deb := repos.Deb(t, repos.Recipe{})
	o.Repos, o.GPUs = deb, 8
	n := driverNode{node{lab.Boot(t, o), t}, repos.Fingerprint(t, deb)}
	repos.Show(n.Host, repos.Good)
	n.Must("rm", "-f", "/usr/bin/nvidia-container-runtime") // the lab's own, which the toolkit's package has too

	if !o.Headers { // a kernel to build for, with empty headers as dkms is empty
		n.Put("/lib/modules/"+emptyKernel+"/modules.dep", "", 0o644)
		emptyPackage(n.Host, "linux-headers-"+emptyKernel)
	}
	n.Put(specFile, "format = 1\n", 0o644)
	return n
}

// emptyPackage installs a package with a name and nothing else.
func emptyPackage(h *lab.Host, name string) {
	h.Put("/tmp/"+name+"/DEBIAN/control", "Package: "+name+"\nVersion: 99:1\nArchitecture: all\nMaintainer: lab <lab@example.invalid>\nDescription: none\n", 0o644)
	h.Must("dpkg-deb", "--build", "/tmp/"+name, "/tmp/"+name+".deb")
	h.Must("dpkg", "-i", "/tmp/"+name+".deb")
	h.Must("rm", "-r", "/tmp/"+name)
}

// emptyKernel is a kernel that nothing is built for.
const emptyKernel = "6.1.0-99-lab"

// ourOwn leaves out what gpuadm keeps for itself.
func ourOwn(diff string) string {
	var left []string
	for line := range strings.Lines(diff) {
		name := strings.Fields(line)[1]
		if !strings.HasPrefix(name, state) && name != specFile && name != filepath.Dir(specFile) {
			left = append(left, line)
		}
	}

	return strings.Join(left, "")
}

// spec asks for a driver, and for a toolkit too unless that is "".
func (n driverNode) spec(driver, toolkit string) string {
	s := "format = 1\n"
	add := func(section, version, url string) {
		if version != "" {
			s += fmt.Sprintf("[%s]\nversion = %q\n[%s.repo]\nurl = %q\nkey = %q\nfingerprint = %q\n", section, version, section, url, repos.Key, n.key)
		}
	}

	add("driver", driver, repos.Mirror+"/"+repos.CUDA+"/debian12/x86_64")
	add("toolkit", toolkit, repos.Mirror+"/"+repos.Toolkit+"/deb/amd64")
	return s
}

// wants writes the spec and runs gpuadm: the stages that bring packages, unless other words are
// said.
func (n driverNode) wants(exit int, spec string, args ...string) lab.Result {
	n.t.Helper()
	n.Put(specFile, spec, 0o644)
	if len(args) == 0 {
		args = []string{"apply", "sources", "packages"}
	}
	return n.gpuadm(exit, args...)
}

// has wants every package of NVIDIA's in one version; those of the toolkit in theirs.
func (n driverNode) has(driver string) {
	n.t.Helper()
	for name, is := range driverPackages(n.AptState()) {
		if strings.Contains(name, "container") || name == "dkms" || strings.Contains(is, driver+"-1") {
			continue
		}
		n.t.Errorf("package %s is %q, want %s", name, is, driver)
	}
}

// TestLabDriverApt: exact versions there and back, on a host that never had a driver.
func TestLabDriverApt(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	first, files := n.AptState(), n.TreeOutsideCaches()

	n.wants(0, n.spec("580.65.06", "1.18.0"), "plan", "sources", "packages")
	check.None(t, ourOwn(n.TreeOutsideCaches().Touched(files)), "plan touched:")
	n.wants(0, n.spec("580.65.06", "1.18.0"))
	n.has("580.65.06")
	state := n.AptState()
	for _, name := range []string{"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-container-toolkit"} {
		check.That(t, strings.HasSuffix(state[name], " held"), "package %s is %q: not held", name, state[name])
	}
	says(t, n.wants(0, n.spec("580.65.06", "1.18.0")), "Nothing to do.")

	n.wants(0, n.spec("580.95.05", "1.18.1"))
	n.has("580.95.05")
	n.wants(0, n.spec("570.172.08", "1.18.1"))
	n.has("570.172.08")
	aptExits(t, n.Host, 0, "", "upgrade")
	aptExits(t, n.Host, 0, "", "dist-upgrade")
	n.has("570.172.08")

	n.gpuadm(0, "undo", "--yes")
	n.has("580.95.05")
	n.gpuadm(0, "undo", "--to", "all")
	for _, d := range differ(n.AptState(), first) {
		t.Errorf("after undo of all, %s", d)
	}
	check.None(t, ourOwn(n.TreeOutsideCaches().Diff(files)), "undo of all left:")
}

// TestLabDriverBranch: a branch is its newest version on the day it is installed, and stays there.
func TestLabDriverBranch(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	repos.Show(n.Host, repos.Vanished)
	n.wants(0, n.spec("570", ""))
	n.has("570.172.08")
	state := n.AptState()
	repos.Show(n.Host, repos.Good)
	n.Must("apt-get", "update") // Show made apt forget its lists, and the next apply would read them
	says(t, n.wants(0, n.spec("570", "")), "Nothing to do.")
	n.has("570.172.08")
	if now := n.AptState(); !maps.Equal(now, state) {
		t.Errorf("packages have changed: %v, were %v", driverPackages(now), driverPackages(state))
	}
}

// TestLabDriverRefused: what cannot be is refused before anything is changed.
func TestLabDriverRefused(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("580.65.06", ""))
	state := n.AptState()
	same := func(what string) {
		t.Helper()
		check.That(t, maps.Equal(n.AptState(), state), "%s: packages have changed", what)
	}

	says(t, n.wants(1, n.spec("580.99.99", "")), "580.99.99", "580.95.05")
	same("a version that never was")
	for variant, words := range map[repos.Variant]string{
		repos.Tampered: "signature", repos.WrongKey: "key", repos.Unsigned: "sign", repos.Expired: "expired", repos.Mismatched: "hash sum mismatch",
	} {
		repos.Show(n.Host, repos.Good)
		repos.Show(n.Host, variant)
		n.Must("rm", "-rf", "/var/lib/apt/lists")
		r := n.wants(1, n.spec("580.95.05", ""))
		check.That(t, strings.Contains(strings.ToLower(r.Stderr), words), "%s: it does not say %q: %s", variant, words, r)
		same(string(variant))
	}

	repos.Show(n.Host, repos.Good)
	n.key = strings.Repeat("A", 40)
	n.gpuadm(0, "undo", "--to", "all")
	says(t, n.wants(1, n.spec("580.95.05", "")), "fingerprint", n.key)
}

// asDebian makes a repository of packages named as in Debian's archive, in two versions of the
// driver, and nvidia-fs beside them in one. That says in its module which driver it found when it
// was built: the real one has the sums of that one's symbols.
//
//go:embed testdata/as-debian.sh
var asDebian string

// besides wants nvidia-peermem in the driver's version, and nvidia-fs in its own, built against
// that driver.
func (n driverNode) besides(kernel, driver string) {
	n.t.Helper()
	is := modinfo(n.Host, kernel, "version", "nvidia-peermem")
	check.That(n.t, is == driver, "nvidia-peermem is %q, and the driver %s", is, driver)
	is, of := modinfo(n.Host, kernel, "version", "nvidia-fs"), modinfo(n.Host, kernel, "driver", "nvidia-fs")
	check.That(n.t, is == "2.13.5" && of == driver, "nvidia-fs is %q and built against driver %q; want 2.13.5 and %s", is, of, driver)
	out := n.Must("dkms", "status")
	check.That(n.t, strings.Count(out, "nvidia-fs/2.13.5, "+kernel+", ") == 1 && strings.Count(out, ": installed") == 2, "dkms status: %s", out)
}

// TestLabDriverBeside: peermem and gds bring their modules with the driver, loaded at boot; another
// driver has a rebuilt nvidia-fs, with the same package, and so has undo; without them in the spec
// they go.
func TestLabDriverBeside(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	n, kernel := bootDKMS(t, "bookworm")
	n.Must("sh", "-c", asDebian, "sh", lab.RepoDir+"/good/compute/cuda/repos/debian12/x86_64/nvidia-kernel-open-dkms_580.65.06-1_amd64.deb")
	first := n.snapshot()
	spec := func(driver, more string) string {
		return "format = 1\n[driver]\nversion = \"" + driver + "\"\nsource = \"distro\"\nmodules = \"open\"\n" + more
	}
	const both = "peermem = true\ngds = true\n"
	n.wants(0, spec("535.216.01", both), "apply")
	n.besides(kernel, "535.216.01")
	load := n.Get("/etc/modules-load.d/gpuadm.conf")
	check.That(t, strings.Contains(load, "\nnvidia-peermem\n") && strings.Contains(load, "\nnvidia-fs\n"), "loaded at boot are: %s", load)
	n.idle()

	says(t, n.wants(0, spec("535.261.03", both), "apply"), "dkms nvidia-fs for "+kernel+"   of another driver")
	n.besides(kernel, "535.261.03")
	n.idle()
	n.gpuadm(0, "undo", "--yes")
	n.besides(kernel, "535.216.01")
	n.wants(0, spec("535.216.01", both), "apply")
	n.idle()

	n.wants(0, spec("535.216.01", ""), "apply")
	r := n.Exec("modinfo", "-k", kernel, "nvidia-fs")
	check.That(t, r.Exit != 0, "gds is no longer asked for, and nvidia-fs is still there: %s", r)
	n.built(kernel, "535.216.01")
	n.gpuadm(0, "undo", "--to", "all")
	n.same(first, "/boot/initrd.img-"+kernel)
}
