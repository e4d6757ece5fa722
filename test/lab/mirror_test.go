// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// mirror writes a mirror of what a spec asks for.
func (n driverNode) mirror(exit int, spec, system, dir string) lab.Result {
	n.t.Helper()
	n.Put("/root/mirror.toml", spec, 0o644)
	return n.gpuadm(exit, "mirror", "--for", system, "--kernel", emptyKernel, "--gpu", "H100-80GB", "-f", "/root/mirror.toml", "--keep", "-o", dir)
}

// headersRepo moves the headers from the host into a repository, as distributions have them.
func (n driverNode) headersRepo() {
	n.t.Helper()
	n.Must("dpkg", "--remove", "linux-headers-"+emptyKernel)
	n.Must("sh", "-c", `mkdir /srv/headers && cd /srv/headers && cp /tmp/headers.deb . && (dpkg-deb -f headers.deb; echo Filename: ./headers.deb
echo Size: $(stat -c %s headers.deb); echo SHA256: $(sha256sum <headers.deb | cut -d' ' -f1)) >Packages
apt-ftparchive release . >/tmp/Release && mv /tmp/Release .`)
	n.Put("/etc/apt/sources.list.d/headers.list", "deb [trusted=yes] file:/srv/headers /\n", 0o644)
}

// TestLabMirror: two versions are mirrored from the lab's repositories. Then there is no repository any more: from the folder alone
// the driver is installed, repaired, upgraded, undone, and the toolkit baked. A byte that differs is named, and nothing is installed.
func TestLabMirror(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.headersRepo()
	old, next := n.spec("580.65.06", "1.18.0"), n.spec("580.95.05", "1.18.1")
	says(t, n.mirror(2, old, "ubuntu-24.04", "/srv/mirror"), "cannot mirror for ubuntu-24.04 on debian 12", "docker run")
	before := n.TreeOutsideCaches()
	says(t, n.mirror(0, old, "debian-12", "/srv/mirror"), "Signed by ")
	if diff := n.TreeOutsideCaches().Diff(before); strings.Contains(diff, "/etc/") || strings.Contains(diff, "/var/") {
		t.Errorf("mirror has changed the machine:\n%s", diff)
	}
	n.Must("mv", "/srv/mirror", "/srv/.gpuadm-mirror-old") // as a run that is killed between its two last steps leaves it
	says(t, n.mirror(0, old, "debian-12", "/srv/mirror"), "Nothing to do.")
	n.Must("cp", "-a", "/srv/mirror", "/srv/first")
	n.Put("/srv/.gpuadm-mirror-new/left_1_amd64.deb", "", 0o644) // as a run that is killed while it signs leaves it
	for _, seconds := range []string{"0.3", "1", "3"} {
		n.Put("/root/mirror.toml", next, 0o644)
		// The apt-get of the killed run goes on, and another run waits for it (exit 75).
		n.Must("sh", "-c", "timeout --signal=KILL "+seconds+" gpuadm mirror --for debian-12 --kernel "+emptyKernel+" --gpu H100-80GB -f /root/mirror.toml --keep -o /srv/mirror; "+
			"for i in $(seq 200); do grep -qsx apt-get /proc/[0-9]*/comm || break; sleep 0.1; done")
	}
	n.mirror(0, next, "debian-12", "/srv/mirror")
	n.Must("sh", "-c", "mv /srv/mirror /srv/next && mv /srv/first /srv/mirror")
	n.Put("/srv/other/file", "an operator's", 0o644)
	says(t, n.mirror(1, next, "debian-12", "/srv/other"), "/srv/other: it has other files")

	n.Must("rm", "-rf", repos.At, "/srv/headers", "/etc/apt/sources.list.d/headers.list", "/var/lib/apt/lists")
	n.Put("/etc/apt/sources.list", "deb http://debian.invalid/debian bookworm main\n", 0o644) // no such host: RFC 2606
	if routes := n.Must("ip", "route"); routes != "" {
		t.Fatalf("the host has routes: %s", routes)
	}
	n.Must("mkdir", "-p", "/etc/gpuadm/node.d")
	n.Must("cp", "/srv/mirror/mirror.toml", "/etc/gpuadm/node.d/")
	asks := func(driver, toolkit string) string {
		return "format = 1\n[driver]\nversion = \"" + driver + "\"\n[toolkit]\nversion = \"" + toolkit + "\"\n"
	}

	first, file := n.AptState(), "/srv/mirror/libnvidia-ml1_580.65.06-1_amd64.deb"
	n.Must("sh", "-c", "cp "+file+" /tmp/good && printf X | dd of="+file+" bs=1 seek=1000 conv=notrunc")
	says(t, n.wants(1, asks("580.65.06", "1.18.0")), "cannot use the mirror: "+file+" differs from gpuadm-mirror.json")
	for _, d := range differ(n.AptState(), first) {
		t.Errorf("a mirror with a wrong byte: %s", d)
	}
	n.Must("cp", "/tmp/good", file)
	n.wants(0, asks("580.65.06", "1.18.0"))
	n.has("580.65.06")
	if state := n.AptState(); state["linux-headers-"+emptyKernel] == "" || !strings.HasPrefix(state["nvidia-container-toolkit"], "1.18.0-1") {
		t.Errorf("headers or toolkit are missing: %v", driverPackages(state))
	}
	n.Must("dpkg", "--purge", "--force-all", "nvidia-kernel-open-dkms")
	n.wants(0, asks("580.65.06", "1.18.0"))
	n.has("580.65.06")
	if n.AptState()["nvidia-kernel-open-dkms"] == "" {
		t.Error("nvidia-kernel-open-dkms was not installed again")
	}
	n.Must("sh", "-c", "rm -r /srv/mirror && mv /srv/next /srv/mirror && touch /srv/mirror/gpuadm-mirror.json") // as it is copied to a node
	n.wants(0, asks("580.95.05", "1.18.1"))
	n.has("580.95.05")
	says(t, n.wants(0, asks("580.95.05", "1.18.1")), "Nothing to do.")
	n.gpuadm(0, "undo")
	n.has("580.65.06")

	n.gpuadm(0, "undo", "--to", "all")
	n.wants(0, "format = 1\n[toolkit]\nversion = \"1.18.0\"\n", "bake")
	if is := n.AptState()["nvidia-container-toolkit"]; is != "1.18.0-1 held" {
		t.Errorf("the baked toolkit is %q", is)
	}
}
