// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	persistenced = "nvidia-persistenced.service"
	brokenHeader = "/usr/include/this-is-not-there.h"
)

// bootDKMS is a host with real headers of a kernel that does not run.
func bootDKMS(t *testing.T, dist string) (n driverNode, kernel string) {
	t.Helper()
	n = bootDriver(t, lab.Options{Dist: dist, Headers: true})
	kernel = headersOf(t, n.Host)
	n.Put("/lib/modules/"+kernel+"/modules.dep", "", 0o644) // as if the kernel were installed, too: its headers are
	n.Must("depmod", kernel)
	n.Put(smallInitramfs, "MODULES=list\n", 0o644)
	return n, kernel
}

// smallInitramfs has update-initramfs leave out the machine's modules, which no test looks at: with
// all of them each image takes half a minute.
const smallInitramfs = "/etc/initramfs-tools/conf.d/lab"

// driversOn are two versions of the driver for a system, the older one first: NVIDIA's repository for
// Debian 13 begins at branch 590.
func driversOn(dist string) (older, newer string) {
	if dist == "trixie" {
		return "590.48.01", "595.58.03"
	}
	return "580.65.06", "580.95.05"
}

// built wants modules of one version for the kernel, signed by DKMS's key, and no other version in
// DKMS's tree.
func (n driverNode) built(kernel, version string) {
	n.t.Helper()
	for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
		v, magic, signer := modinfo(n.Host, kernel, "version", module), modinfo(n.Host, kernel, "vermagic", module), modinfo(n.Host, kernel, "signer", module)
		check.That(n.t, v == version && strings.HasPrefix(magic, kernel+" ") && signer == "DKMS module signing key",
			"%s: version %q, vermagic %q, signer %q", module, v, magic, signer)
	}

	out := n.Must("dkms", "status")
	check.That(n.t, strings.Count(out, "nvidia/") == 1 && strings.HasPrefix(out, "nvidia/"+version+", "+kernel+", ") && strings.Contains(out, ": installed"),
		"dkms status: %s", out)
}

// image tells one initial file system of the kernel from another; "" if there is none.
func (n driverNode) image(kernel string) string {
	n.t.Helper()
	return n.Exec("stat", "-c", "%z", "/boot/initrd.img-"+kernel).Stdout
}

// idle wants a second apply to start no child and to write nothing, as strace sees it.
func (n driverNode) idle() {
	n.t.Helper()
	const log = "/run/strace"
	r := rebooted(n.Exec("strace", "-f", "--seccomp-bpf", "-e", "trace=?"+strings.Join(judged, ",?"), "-y", "-s", "0", "-o", log, "gpuadm", "apply"))
	must.That(n.t, r.Exit == 0 && r.Stdout == "Nothing to do.\n", "strace of apply: %s", r)
	seen := map[string]int{}
	for line := range strings.Lines(n.Get(log)) {
		what, bad := judge(line)
		if seen[what]++; bad {
			n.t.Errorf("not to be done: %s", line)
		}
	}

	check.That(n.t, seen["execve"] == 1 && seen["write to standard output"] != 0, "strace saw no apply: %v", seen)
}

// TestLabDriverDKMS: all stages in one apply build and prove the modules and run the daemon; an
// upgrade replaces them; one that does not compile leaves the old modules; undo leaves nothing.
func TestLabDriverDKMS(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.DistsFor(t) {
		t.Run(dist, func(t *testing.T) {
			n, kernel := bootDKMS(t, dist)
			version, _ := driversOn(dist)
			first := n.snapshot()
			image := n.image(kernel)
			t.Log(n.wants(0, n.spec(version, "1.18.0"), "apply").Stdout)
			n.has(version)
			n.built(kernel, version)
			check.That(t, n.MainPID(persistenced) != 0, "%s does not run", persistenced)
			check.That(t, n.image(kernel) != image || image == "", "the initial file system, which has nouveau, was not rebuilt")
			n.idle()
			if dist == "bookworm" {
				n.upgrades(kernel)
			}
			t.Log(n.gpuadm(0, "undo", "--to", "all").Stdout)
			n.same(first, "/boot/initrd.img-"+kernel) // rebuilt
			r := n.Exec("modinfo", "-k", kernel, "nvidia")
			check.That(t, r.Exit != 0, "undo of all left a module: %s", r)
		})
	}
}

func (n driverNode) upgrades(kernel string) {
	n.t.Helper()
	pid := n.MainPID(persistenced)
	n.wants(0, n.spec("580.95.05", "1.18.0"), "apply")
	n.built(kernel, "580.95.05")
	now := n.MainPID(persistenced)
	check.That(n.t, now != 0 && now != pid, "%s is process %d, was %d", persistenced, now, pid)
	before := n.snapshot()

	// dkms(8) reads this file for that version alone.
	n.Put("/etc/dkms/nvidia-590.48.01.conf", `MAKE[0]="make -C ${kernel_source_dir} M=${dkms_tree}/nvidia/590.48.01/build KCPPFLAGS='-include `+brokenHeader+`' modules"`+"\n", 0o644)
	r := n.wants(1, n.spec("590.48.01", "1.18.0"), "apply")
	says(n.t, r, "nvidia-kernel-open-dkms", "this-is-not-there.h", "try")
	n.Must("rm", "/etc/dkms/nvidia-590.48.01.conf")
	n.same(before, "/etc/apt", "/usr/lib/modules", "/var/lib/dkms") // rebuilt
	n.built(kernel, "580.95.05")
	n.wants(0, n.spec("580.95.05", "1.18.0"), "apply")
	n.idle()
}

// TestLabDriverFullDKMS: an upgrade fails while it fills DKMS's disk, so that the roll-back cannot
// build the old modules again either. gpuadm says so in place of a whole roll-back, status shows it,
// and the apply after the disk has room again heals it.
func TestLabDriverFullDKMS(t *testing.T) {
	t.Parallel()
	n, kernel := bootDKMS(t, "bookworm")
	const tree, full = "/var/lib/dkms", "/var/lib/dkms/full"
	n.Must("sh", "-c", "mkdir -p "+tree+" && mount -t tmpfs -o size=300m tmpfs "+tree)
	n.wants(0, n.spec("580.65.06", ""), "apply")
	n.built(kernel, "580.65.06")

	// dkms(8) reads this file for that version alone.
	fills := `MAKE[0]="dd if=/dev/zero of=` + full + ` bs=1M; false"` + "\n"
	n.Put("/etc/dkms/nvidia-590.48.01.conf", fills, 0o644)
	r := n.wants(1, n.spec("590.48.01", ""), "apply")
	says(t, r, "nvidia-kernel-open-dkms", "not as before", "try")
	old := n.Exec("modinfo", "-k", kernel, "-F", "version", "nvidia")
	check.That(t, strings.TrimSpace(old.Stdout) != "580.65.06", "the disk was not full: the old modules were built again")
	status := n.Exec("gpuadm", "status")
	check.That(t, status.Exit != 0, "status is fine without the modules: %s", status)

	n.Must("rm", full, "/etc/dkms/nvidia-590.48.01.conf")
	n.wants(0, n.spec("580.65.06", ""), "apply")
	n.built(kernel, "580.65.06")
}

// TestLabDriverOwnKernel: a kernel whose headers are on the disk, from no package of their usual
// name, has its modules built with these: a kernel of one's own, or Proxmox VE's. A second apply does
// nothing, and undo leaves the headers.
func TestLabDriverOwnKernel(t *testing.T) {
	t.Parallel()
	n, packaged := bootDKMS(t, "bookworm")
	const own = "6.1.99-own"
	n.Must("sh", "-c", `set -e; from=/usr/src/linux-headers-$1 to=/usr/src/own-$2
		cp -a $from $to
		grep -rl "$1" $to/include $to/.kernelvariables | xargs sed -i "s/$1/$2/g"
		mkdir -p /lib/modules/$2; ln -s $to /lib/modules/$2/build; : >/lib/modules/$2/modules.dep
		rm -r /lib/modules/$1; depmod $2`, "sh", packaged, own)
	first := n.snapshot()

	n.wants(0, n.spec("580.65.06", ""), "apply")
	n.built(own, "580.65.06")
	says(t, n.gpuadm(0, "apply"), "Nothing to do.")
	n.gpuadm(0, "undo", "--to", "all")
	n.same(first)
}

// TestLabDriverNoHeaders: a kernel without headers is refused before anything is installed, and it
// says which have some.
func TestLabDriverNoHeaders(t *testing.T) {
	t.Parallel()
	n, kernel := bootDKMS(t, "bookworm")
	n.Put("/lib/modules/"+emptyKernel+"/modules.dep", "", 0o644)
	first := n.snapshot()
	// The lists say which kernels have headers: what was written to read them is rolled back.
	r := n.wants(1, n.spec("580.65.06", ""), "apply")
	says(t, r, "linux-headers-"+emptyKernel, "these kernels have headers: "+kernel, "undone", "sources.list.d/gpuadm-driver.sources", "try")
	n.same(first)

	// A kernel that has its modules needs no headers, and one that comes without closes nothing.
	n.Must("rm", "-r", "/lib/modules/"+emptyKernel)
	n.wants(0, n.spec("580.65.06", ""), "apply")
	n.built(kernel, "580.65.06")
	n.Must("sh", "-c", "dpkg --force-all -r $(dpkg-query -W -f '${Package} ' 'linux-headers-*')")
	n.waitsForReboot()
	says(t, n.gpuadm(0, "apply"), "Nothing to do.")
	n.Put("/lib/modules/"+emptyKernel+"/modules.dep", "", 0o644)
	n.waitsForReboot()
	says(t, n.gpuadm(0, "apply"), "Nothing to do now", "deferred until kernel "+emptyKernel+" has headers", "no GPUs")
	says(t, n.gpuadm(0, "plan"), "the next boot starts kernel "+emptyKernel+", without the GPUs")
}

// waitsForReboot wants a gate that nothing closes but the reboot into a kernel that is installed: the
// lab's hosts run another one.
func (n driverNode) waitsForReboot() {
	n.t.Helper()
	r := n.gpuadm(1, "gate")
	says(n.t, r, "cannot let kubelet start: a reboot is needed")
	check.That(n.t, !strings.Contains(r.Stderr, "headers"), "headers close the gate: %s", r)
}

// asUbuntu makes packages on the host, named as in Ubuntu's archive, of modules that dkms has built
// for the kernel: signed by a key of the distribution's in linux-modules-nvidia-…-KERNEL, and as
// source for DKMS; and a signed repository of them.
//
//go:embed testdata/as-ubuntu.sh
var asUbuntu string

// indexUbuntu indexes what is there.
//
//go:embed testdata/index-ubuntu.sh
var indexUbuntu string

// publishUbuntu indexes and signs what is there, with a key of the test's own, and has apt read it.
func (n driverNode) publishUbuntu(home string) {
	n.t.Helper()
	n.Must("sh", "-c", indexUbuntu)
	gpg := func(in string, args ...string) string {
		n.t.Helper()
		cmd := exec.CommandContext(n.t.Context(), "gpg", append([]string{"--homedir", home, "--batch", "--yes", "--quiet", "--passphrase", ""}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.Output()
		must.That(n.t, err == nil, "gpg %v: %v", args, err)
		return string(out)
	}

	if r := n.Exec("test", "-e", ubuntuKey); r.Exit != 0 {
		gpg("", "--quick-gen-key", "lab <lab@example.invalid>", "ed25519", "sign", "1d")
		n.t.Cleanup(func() {
			_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		})
		n.Put(ubuntuKey, gpg("", "--armor", "--export"), 0o644)
		n.Put("/etc/apt/sources.list.d/ubuntu.list", "deb [signed-by="+ubuntuKey+"] file:/srv/ubuntu ./\n", 0o644)
	}

	n.Put("/srv/ubuntu/InRelease", gpg(n.Get("/srv/Release"), "--clearsign"), 0o644)
	n.Must("apt-get", "update")
}

const ubuntuKey = "/etc/apt/keyrings/ubuntu.asc"

// TestLabDriverPrecompiled: on what says it is an Ubuntu, modules that the distribution has signed
// are taken for exactly the kernel that they are for, and proven by their signer; where there are
// none for it DKMS builds them, and it says why.
func TestLabDriverPrecompiled(t *testing.T) {
	t.Parallel()
	n, kernel := bootDKMS(t, "bookworm")
	repos.AddApt(n.Host)
	aptExits(t, n.Host, 0, "", append([]string{"install"}, driverSet("580.65.06")...)...)
	n.Must("mkdir", "-p", "/etc/apt/keyrings")
	n.Must("sh", "-c", asUbuntu, "sh", kernel)
	aptExits(t, n.Host, 0, "", append([]string{"purge"}, names(driverSet(""))...)...)
	n.Must("rm", "/etc/apt/sources.list.d/nvidia.list")
	home, err := os.MkdirTemp("", "gpg") // a short name: gpg's sockets lie in it
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	n.publishUbuntu(home)
	n.Must("rm", "-f", "/etc/os-release")
	n.Put("/etc/os-release", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\nPRETTY_NAME=\"Ubuntu 24.04\"\n", 0o644)
	r := n.Exec("modinfo", "-k", kernel, "nvidia")
	must.That(t, r.Exit != 0, "a module is left: %s", r)
	first := n.AptState()

	const spec = "format = 1\n[driver]\nversion = \"580.65.06\"\nsource = \"distro\"\n"
	apply := []string{"apply", "sources", "packages", "modules"}
	signed := func() (version, signer string) {
		return modinfo(n.Host, kernel, "version", "nvidia"), modinfo(n.Host, kernel, "signer", "nvidia")
	}
	n.wants(0, spec, apply...)
	version, signer := signed()
	check.That(t, version == "580.65.06" && signer == "Canonical Ltd. Kernel Module Signing (lab)", "the module is %s, signed by %q", version, signer)
	state := n.AptState()
	for name, want := range map[string]bool{
		"linux-modules-nvidia-580-server-open-" + kernel: true, "linux-modules-nvidia-580-server-open-5.15.0-1-other": false, "nvidia-dkms-580-server-open": false,
	} {
		check.That(t, (state[name] != "") == want, "package %s is %q; want it there %t", name, state[name], want)
	}

	says(t, n.wants(0, spec, apply...), "Nothing to do.")
	n.gpuadm(0, "undo", "--to", "all")
	now := n.AptState()
	maps.DeleteFunc(now, func(name, is string) bool {
		return first[name] == "" && strings.HasSuffix(is, "config-files")
	})
	for _, d := range differ(now, first) {
		t.Errorf("after undo of all, %s", d)
	}

	n.Must("sh", "-c", "rm /srv/ubuntu/linux-modules-nvidia-580-server-open-"+kernel+"_*.deb")
	n.publishUbuntu(home)
	why := "no precompiled kernel modules for kernel " + kernel + ": Ubuntu's archive for ubuntu2404 has no linux-modules-nvidia-580-server-open-" + kernel
	says(t, n.wants(0, spec, append([]string{"plan"}, apply[1:]...)...), why)
	says(t, n.wants(1, spec+"build = \"precompiled\"\n", apply...), "cannot take precompiled kernel modules for kernel "+kernel, "build = \"auto\"")
	n.wants(0, spec, apply...)
	// On what calls itself an Ubuntu dkms signs with shim's key, of which there is none here.
	version, signer = signed()
	check.That(t, version == "580.65.06" && !strings.Contains(signer, "Canonical"), "the module is %s, signed by %q", version, signer)
	out := n.Must("dkms", "status")
	check.That(t, strings.Contains(out, "nvidia/580.65.06, "+kernel+", ") && strings.Contains(out, ": installed"), "dkms status: %s", out)
	if state := n.AptState(); state["nvidia-dkms-580-server-open"] == "" || state["linux-modules-nvidia-580-server-open-5.15.0-1-other"] != "" {
		t.Errorf("packages of DKMS's: %v", driverPackages(state))
	}
	says(t, n.wants(0, spec, apply...), "Nothing to do.")
}
