// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// TestLabDriverKept: what an administrator has changed survives an upgrade, without a question; automatic upgrades are
// set to skip gpuadm's packages, and skip them; no password gets into what gpuadm says or keeps.
func TestLabDriverKept(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	const theirs, password = "/etc/apt/sources.list.d/theirs.list", "hunter2"
	n.Put(theirs, "deb [trusted=yes] http://me:"+password+"@127.0.0.1:1/debian theirs main\n", 0o644) // and it cannot be reached
	first := n.snapshot()
	quiet := func(r lab.Result) {
		t.Helper()
		if strings.Contains(r.Stdout+r.Stderr, password) {
			t.Errorf("it says a password: %s", r)
		}
	}
	n.Put(specFile, n.spec("580.65.06", "1.18.0"), 0o644)
	apply := []string{"env", "http_proxy=http://me:" + password + "@127.0.0.1:1", "gpuadm", "apply", "sources", "packages"}
	r := n.Exec(apply...)
	if quiet(r); r.Exit != 0 {
		t.Errorf("another owner's repository that cannot be read blocks apply: %s", r)
	}

	dump := n.Must("apt-config", "dump", "Unattended-Upgrade::Package-Blacklist")
	for _, name := range []string{"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced", "nvidia-container-toolkit", "libnvidia-container1"} {
		if !strings.Contains(dump, "Unattended-Upgrade::Package-Blacklist:: \"^"+name+"$\";") {
			t.Errorf("automatic upgrades would take %s: %s", name, dump)
		}
	}

	// dpkg asks where both the administrator and the package have changed a file: as if the package had had another before.
	const conf, edited = "/etc/nvidia-container-runtime/config.toml", "disable-require = true # ours\n"
	n.Must("sed", "-i", "s|^ "+conf+" [0-9a-f]*| "+conf+" 0123456789abcdef0123456789abcdef|", "/var/lib/dpkg/status")
	n.Put(conf, edited, 0o644)
	quiet(n.wants(0, n.spec("580.95.05", "1.18.1")))
	n.has("580.95.05")
	if now := n.Get(conf); now != edited {
		t.Errorf("%s was %q, is %q", conf, edited, now)
	}
	aptExits(t, n.Host, 0, "", "dist-upgrade", "-o", "Dir::Etc::sourceparts=/nowhere")
	n.has("580.95.05")

	r = n.wants(1, strings.Replace(n.spec("580.95.05", "1.18.1"), "file:///srv", "http://127.0.0.1:1", 1))
	quiet(r)
	says(t, r, "cannot read repository http://127.0.0.1:1", "try")
	r = n.wants(2, n.spec("580.95.05", "1.18.1")+"[proxy]\nhttp = \"http://me:"+password+"@127.0.0.1:1\"\n")
	quiet(r)
	says(t, r, "run a local proxy that knows the password")
	if r := n.Exec("grep", "-rl", password, state, "/var/log/journal", "/run/log/journal"); r.Stdout != "" {
		t.Errorf("a password is kept in: %s", r)
	}
	n.gpuadm(0, "undo", "--to", "all")
	n.same(first)
}

// TestLabDriverNewer: a version that has come since apt last read its lists, and one that only the mirror has to which the
// spec has just moved: both come in one apply.
func TestLabDriverNewer(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	repos.Show(n.Host, repos.Vanished)
	n.wants(0, n.spec("580.65.06", ""))
	repos.Show(n.Host, repos.Lagging)
	n.wants(0, n.spec(repos.Gone, ""))
	n.has(repos.Gone)

	there := func(spec string) string {
		return strings.Replace(spec, "url = \""+repos.Mirror, "url = \"file://"+lab.RepoDir+"/"+string(repos.Vanished), 1)
	}
	n.wants(0, there(n.spec("580.65.06", "")))
	n.has("580.65.06")
	n.wants(0, n.spec(repos.Gone, ""))
	n.has(repos.Gone)

	// The way back to what has been fetched before wants no repository.
	n.wants(0, n.spec("580.65.06", ""))
	n.Must("rm", repos.At)
	n.gpuadm(0, "undo")
	n.has(repos.Gone)
}

// TestLabDriverRoom: what a killed run has left in our own folder, and no undo needs, does not keep the next one from its
// work where it has filled the disk; what undo needs is there after it.
func TestLabDriverRoom(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("570.172.08", ""))
	const left = state + "/packages/old_1.0-1_amd64.deb"
	n.Must("sh", "-c", "cp -a "+state+" /run/kept && mount -t tmpfs -o size=16m tmpfs "+state+" && cp -a /run/kept/. "+state+" && mkdir -p "+state+"/packages")
	if r := n.Exec("dd", "if=/dev/zero", "of="+left, "bs=4k"); r.Exit == 0 {
		t.Fatalf("the disk is not full: %s", r)
	}
	n.wants(0, n.spec("580.65.06", ""))
	n.has("580.65.06")
	if r := n.Exec("test", "-e", left); r.Exit == 0 {
		t.Errorf("%s is still there", left)
	}
	n.gpuadm(0, "undo")
	n.has("570.172.08")
	n.gpuadm(0, "undo")
	if out := n.Must("sh", "-c", "ls "+state+"/packages "+state+"/blobs | grep -v : || :"); out != "\n" && out != "" {
		t.Errorf("all is undone, and kept are: %s", out)
	}
}

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
