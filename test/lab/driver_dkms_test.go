// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
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
	return n, kernel
}

// built wants modules of one version for the kernel, signed by DKMS's key, and no other version in DKMS's tree.
func (n driverNode) built(kernel, version string) {
	n.t.Helper()
	for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
		v, magic, signer := modinfo(n.Host, kernel, "version", module), modinfo(n.Host, kernel, "vermagic", module), modinfo(n.Host, kernel, "signer", module)
		if v != version || !strings.HasPrefix(magic, kernel+" ") || signer != "DKMS module signing key" {
			n.t.Errorf("%s: version %q, vermagic %q, signer %q", module, v, magic, signer)
		}
	}
	out := n.Must("dkms", "status")
	if strings.Count(out, "nvidia/") != 1 || !strings.HasPrefix(out, "nvidia/"+version+", "+kernel+", ") || !strings.Contains(out, ": installed") {
		n.t.Errorf("dkms status: %s", out)
	}
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
	if r := n.Exec("strace", "-f", "-y", "-s", "0", "-o", log, "gpuadm", "apply"); r.Exit != 0 || r.Stdout != "Nothing to do.\n" {
		n.t.Fatalf("strace of apply: %s", r)
	}
	seen := map[string]int{}
	for line := range strings.Lines(n.Get(log)) {
		what, bad := judge(line)
		if seen[what]++; bad {
			n.t.Errorf("not to be done: %s", line)
		}
	}
	if seen["execve"] != 1 || seen["write to standard output"] == 0 {
		n.t.Errorf("strace saw no apply: %v", seen)
	}
}

// TestLabDriverDKMS: all stages in one apply build and prove the modules and run the daemon; an upgrade replaces them; one
// that does not compile leaves the old modules; undo leaves nothing.
func TestLabDriverDKMS(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.Dists() {
		t.Run(dist, func(t *testing.T) {
			n, kernel := bootDKMS(t, dist)
			n.Put("/etc/initramfs-tools/conf.d/lab", "MODULES=list\n", 0o644) // a small image is made sooner
			first := n.snapshot()
			image := n.image(kernel)
			t.Log(n.wants(0, n.spec("580.65.06", "1.18.0"), "apply").Stdout)
			n.has("580.65.06")
			n.built(kernel, "580.65.06")
			if n.MainPID(persistenced) == 0 {
				t.Errorf("%s does not run", persistenced)
			}
			if now := n.image(kernel); now == image && image != "" {
				t.Error("the initial file system, which has nouveau, was not rebuilt")
			}
			n.idle()
			if dist == "bookworm" {
				n.upgrades(kernel)
			}
			t.Log(n.gpuadm(0, "undo", "--to", "all").Stdout)
			n.same(first, "/boot/initrd.img-"+kernel) // rebuilt
			if r := n.Exec("modinfo", "-k", kernel, "nvidia"); r.Exit == 0 {
				t.Errorf("undo of all left a module: %s", r)
			}
		})
	}
}

func (n driverNode) upgrades(kernel string) {
	n.t.Helper()
	pid := n.MainPID(persistenced)
	n.wants(0, n.spec("580.95.05", "1.18.0"), "apply")
	n.built(kernel, "580.95.05")
	if now := n.MainPID(persistenced); now == 0 || now == pid {
		n.t.Errorf("%s is process %d, was %d", persistenced, now, pid)
	}
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

// TestLabDriverNoHeaders: a kernel without headers is refused before anything is installed, and it says which have some.
func TestLabDriverNoHeaders(t *testing.T) {
	t.Parallel()
	n, kernel := bootDKMS(t, "bookworm")
	n.Put("/lib/modules/"+emptyKernel+"/modules.dep", "", 0o644)
	first := n.snapshot()
	// A mirror may have headers too, which its lists say: what was written for it is rolled back.
	r := n.wants(1, n.spec("580.65.06", ""), "apply")
	says(t, r, "linux-headers-"+emptyKernel, "these kernels have headers: "+kernel, "undone", "sources.list.d/gpuadm-driver.sources", "try")
	n.same(first)

	// Lists that are younger than the kernel decide before anything is written; NVIDIA's own repository has no headers, and is
	// not even asked.
	n.Put("/srv/none/Packages", "Package: something-else\nVersion: 1\nArchitecture: all\nFilename: ./x.deb\nSize: 1\nSHA256: "+strings.Repeat("0", 64)+"\nDescription: x\n", 0o644)
	n.Put("/etc/apt/sources.list.d/none.list", "deb [trusted=yes] file:/srv/none ./\n", 0o644)
	n.Must("apt-get", "update")
	first = n.snapshot()
	r = n.wants(1, "format = 1\n[driver]\nversion = \"580.65.06\"\n", "apply")
	says(t, r, "linux-headers-"+emptyKernel, "these kernels have headers: "+kernel, "nothing was touched", "no kernel headers", "try")
	n.same(first)
	says(t, n.wants(0, n.spec("580.65.06", ""), "plan", "packages"), "until the lists of", "no source that is known now has linux-headers-"+emptyKernel)
}
