// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// TestLabDebianOpen: bookworm-security has 535.309.01 of all but the open modules, which only resolve at 535.261.03-1: that is installed
// as a whole, and the update that it misses is named.
func TestLabDebianOpen(t *testing.T) {
	t.Parallel()
	dir := repos.For(t, "debian12-archive", repos.Recipe{})
	n := driverNode{node{lab.Boot(t, lab.Options{Dist: "bookworm", GPUs: 8, Repos: dir}), t}, repos.Fingerprint(t, dir)}
	repos.Show(n.Host, repos.Good)
	n.Put("/etc/apt/sources.list.d/archive.list", repos.ArchiveSource("debian12"), 0o644)
	n.Put("/srv/tools/Packages", "", 0o644)
	n.Must("sh", "-c", `set -e; cd /srv/tools
for name in dkms gcc make; do
	mkdir -p d/DEBIAN; printf 'Package: %s\nVersion: 3.0.10-8+deb12u1\nArchitecture: all\nMaintainer: lab <lab@example.invalid>\nDescription: none\n' $name >d/DEBIAN/control
	dpkg-deb --build d $name.deb >/dev/null; dpkg -i $name.deb >/dev/null; rm -rf d
done`)
	n.hasKernel()
	n.Must("apt-get", "update")
	first := n.snapshot()

	// apt's own candidates do not resolve.
	aptExits(t, n.Host, 100, "nvidia-open-kernel-dkms", "install", "nvidia-open-kernel-dkms", "nvidia-smi", "libcuda1=535.309.01-0+deb12u1")

	const spec = "format = 1\n[driver]\nversion = \"535\"\nsource = \"distro\"\nmodules = \"open\"\n"
	n.Put(specFile, spec, 0o644)
	n.gpuadm(0, "apply", "sources")
	says(t, n.wants(0, spec, "plan", "packages"), "the other packages are available in 535.309.01")
	oneTransaction(t, n.Host, "apply", "sources", "packages")
	for name, is := range lab.Only(n.AptState(), "nvidia-open-kernel-*", "libcuda1", "libnvidia-*", "nvidia-smi", "nvidia-alternative", "firmware-nvidia-gsp") {
		if !strings.HasPrefix(is, "535.261.03-1") {
			t.Errorf("package %s is %q, want 535.261.03-1", name, is)
		}
	}
	if is := n.AptState()["nvidia-open-kernel-dkms"]; is == "" {
		t.Error("the open modules are not there")
	}
	says(t, n.wants(0, spec, "plan", "-v"), "535.309.01")
	n.gpuadm(0, "undo", "--to", "all")
	n.same(first)
}
