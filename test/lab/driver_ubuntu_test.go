// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// listedNode is a host with package repositories that are made of recorded listings, and with their
// distribution's name.
type listedNode struct {
	driverNode
	distro string
}

// releases are what os-release says of a distribution.
func releases(distro string) string {
	version := map[string]string{"ubuntu2204": "22.04", "ubuntu2404": "24.04", "ubuntu2604": "26.04"}[distro]
	return fmt.Sprintf("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=%q\nPRETTY_NAME=\"Ubuntu %s\"\nVERSION_CODENAME=%s\n", version, version,
		map[string]string{"ubuntu2204": "jammy", "ubuntu2404": "noble", "ubuntu2604": "resolute"}[distro])
}

// bootListed boots a Debian 12 with real apt and dpkg that says it is an Ubuntu, with that
// distribution's archive among its sources.
func bootListed(t *testing.T, distro string) listedNode {
	t.Helper()
	dir := repos.For(t, distro, repos.Recipe{})
	n := listedNode{driverNode{node{lab.Boot(t, lab.Options{
		Dist:  "bookworm",
		GPUs:  8,
		Repos: dir,
	}), t}, repos.Fingerprint(t, dir)}, distro}
	repos.Show(n.Host, repos.Good)
	n.Must("rm", "-f", "/usr/bin/nvidia-container-runtime", "/etc/os-release")
	n.Put("/etc/os-release", releases(distro), 0o644)
	n.Put("/etc/apt/sources.list.d/archive.list", repos.ArchiveSource(distro), 0o644)
	n.hasKernel()
	n.Must("apt-get", "update")
	return n
}

// hasKernel gives the host a kernel to build for, with empty headers as dkms is empty.
func (n driverNode) hasKernel() {
	n.t.Helper()
	n.Put("/lib/modules/"+emptyKernel+"/modules.dep", "", 0o644)
	emptyPackage(n.Host, "linux-headers-"+emptyKernel)
	n.Must("rm", "/tmp/linux-headers-"+emptyKernel+".deb")
}

// of is a spec that asks for a driver of NVIDIA's repository.
func (n listedNode) of(version string) string {
	return fmt.Sprintf("format = 1\n[driver]\nversion = %q\nsource = \"nvidia\"\n[driver.repo]\nurl = %q\nkey = %q\nfingerprint = %q\n", version,
		repos.Mirror+"/"+repos.CUDA+"/"+n.distro+"/x86_64", repos.Key, n.key)
}

// ofDistro is a spec that asks for a driver of the distribution's archive.
func ofDistro(version string) string {
	return fmt.Sprintf("format = 1\n[driver]\nversion = %q\nsource = \"distro\"\n", version)
}

// once applies a spec, which shall take one transaction.
func (n listedNode) once(spec string) {
	n.t.Helper()
	n.Put(specFile, spec, 0o644)
	oneTransaction(n.t, n.Host, "apply", "sources", "packages")
}

// driver are the installed packages of the driver and its companions.
func (n listedNode) driver() map[string]string {
	n.t.Helper()
	list := lab.Only(n.AptState(), "*nvidia*", "libcuda*", "cuda-drivers*")
	maps.DeleteFunc(list, func(name, _ string) bool {
		return strings.Contains(name, "container")
	})
	return list
}

// installed wants packages of the driver, all in one upstream version, and among them those that do
// what a node needs: a module, NVML and CUDA, the persistence daemon.
func (n listedNode) installed(version string) {
	n.t.Helper()
	list := n.driver()
	check.That(n.t, len(list) > 0, "no package of driver %s is there", version)
	for name, is := range list {
		check.That(n.t, strings.HasPrefix(is, version+"-") || strings.Contains(name, "linux-modules"), "package %s is %q, want %s", name, is, version)
	}
	for _, file := range []string{
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so." + version, "/usr/lib/x86_64-linux-gnu/libcuda.so." + version,
		"/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-smi", "/usr/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
	} {
		check.That(n.t, n.Exec("test", "-e", file).Exit == 0, "driver %s: %s is not there", version, file)
	}

	r := n.Exec("sh", "-c", "ls -d /usr/src/nvidia-"+version+" /usr/lib/modules/"+emptyKernel+"/kernel/nvidia-*")
	check.That(n.t, r.Stdout != "", "driver %s: neither a module nor its source is there", version)
}

// TestLabUbuntuVersions: from version to version and from branch to branch of NVIDIA's repository,
// each in one transaction of apt-get, and back to the first tree.
func TestLabUbuntuVersions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, distro string
		undone       bool // each time, so that each starts from nothing
		versions     []string
	}{
		{"there and back", "ubuntu2404", false, []string{"580.95.05", "580.105.08", "580.95.05", "595.71.05"}},
		// The listing of each lacks what another branch has: nvidia-utils from 590 on,
		// libnvidia-gpucomp up to 570, nvidia-persistenced up to 550.
		{"fewer", "ubuntu2404", true, []string{"590.48.01", "570.133.20", "550.54.15", "535.183.01", "610.43.02", "615.71.09"}},
		// nvidia-persistenced needs libnvidia-cfg1 in one version, which is not a package up to 580:
		// libnvidia-cfg1-575 provides it.
		{"virtual", "ubuntu2204", false, []string{"575.57.08", "580.95.05", "570.148.08"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.distro == "ubuntu2404" && c.undone {
				lab.Nightly(t)
			}
			n := bootListed(t, c.distro)
			first := n.snapshot()
			for i, version := range c.versions {
				n.once(n.of(version))
				n.installed(version)
				says(t, n.wants(0, n.of(version)), "Nothing to do.")
				if c.undone || i == len(c.versions)-1 {
					n.gpuadm(0, "undo", "--to", "all")
					n.same(first)
				}
			}
		})
	}
}

// TestLabUbuntuTransitional: packages that only draw in another branch's are refused before
// anything is changed.
func TestLabUbuntuTransitional(t *testing.T) {
	t.Parallel()
	n := bootListed(t, "ubuntu2404")
	first := n.AptState()
	for _, c := range [][2]string{{"590.48.01", "595"}, {"590", "595"}, {"535.309.01", "580"}} {
		says(t, n.wants(1, ofDistro(c[0])), c[0], c[1])
		if now := n.AptState(); !maps.Equal(now, first) {
			t.Fatalf("version %s of the distribution: packages have changed: %v", c[0], differ(now, first))
		}
	}

	n.once(ofDistro("580.173.02"))
	n.installed("580.173.02")
}

// TestLabUbuntuSources: from Ubuntu's 595 to NVIDIA's, with files in the same places and no
// Conflicts, and back by undo; and from NVIDIA's to Ubuntu's.
func TestLabUbuntuSources(t *testing.T) {
	t.Parallel()
	n := bootListed(t, "ubuntu2404")
	n.once(ofDistro("595.71.05"))
	n.installed("595.71.05")
	before := n.driver()
	n.Put(specFile, n.of("595.71.05"), 0o644)
	n.gpuadm(0, "apply", "sources", "packages")
	n.installed("595.71.05")
	for name, is := range n.driver() {
		check.That(t, !strings.Contains(name, "-server") && !strings.Contains(is, "24.04"), "package %s %s is Ubuntu's", name, is)
	}
	n.gpuadm(0, "undo", "--yes")
	now := n.driver()
	check.That(t, maps.Equal(now, before), "undo brought %v, want %v", now, before)

	n.gpuadm(0, "undo", "--to", "all")
	n.once(n.of("595.71.05"))
	n.once(ofDistro("595.71.05"))
	n.installed("595.71.05")
	for name, is := range n.driver() {
		// Ubuntu has nvidia-modprobe by the same name: NVIDIA's stays, in the same version.
		isNVIDIAs := strings.Contains(is, "-1ubuntu1") && name != "nvidia-modprobe"
		check.That(t, !isNVIDIAs, "package %s %s is NVIDIA's", name, is)
	}
}

// TestLabPairs is test/pairs with real apt: A is applied, then each B is applied and undone; after
// the last B all is. A nightly run has all 30 pairs.
func TestLabPairs(t *testing.T) {
	t.Parallel()
	n := bootListed(t, "ubuntu2404")
	first := n.snapshot()
	specs := []string{n.of("580.95.05"), n.of("580.105.08"), n.of("595.71.05"), n.of("570.133.20"), ofDistro("580.173.02"), ofDistro("595.71.05")}
	for a := range specs {
		var second []int
		for b := range specs {
			pair := a + len(specs)*b
			if a != b && (check.All() || pair%7 == 3) {
				second = append(second, b)
			}
		}

		if len(second) == 0 {
			continue
		}

		n.Put(specFile, specs[a], 0o644)
		n.gpuadm(0, "apply", "sources", "packages")
		before := n.snapshot()
		for _, b := range second {
			t.Logf("A:\n%s\nB:\n%s", specs[a], specs[b])
			n.Put(specFile, specs[b], 0o644)
			n.gpuadm(0, "apply", "sources", "packages")
			says(t, n.gpuadm(0, "apply", "sources", "packages"), "Nothing to do.")
			n.gpuadm(0, "undo", "--yes")
			n.Put(specFile, specs[a], 0o644)
			n.same(before)
		}

		n.gpuadm(0, "undo", "--to", "all")
		n.same(first)
	}
}
