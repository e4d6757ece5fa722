// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// snapshot is a host's packages and files at one time.
type snapshot struct {
	packages map[string]string
	files    lab.Tree
}

func (n driverNode) snapshot() snapshot {
	n.t.Helper()
	return snapshot{n.AptState(), n.TreeOutsideCaches()}
}

// same wants packages with their versions, holds and marks, and all files, as they were; of the
// files that say where packages come from only so much as lies outside the folders named in
// without.
func (n driverNode) same(before snapshot, without ...string) {
	n.t.Helper()
	now := n.snapshot()
	for _, d := range differ(now.packages, before.packages) {
		n.t.Error(d)
	}
	for line := range strings.Lines(ourOwn(now.files.Diff(before.files))) {
		name := strings.Fields(line)[1]
		check.That(n.t, slices.ContainsFunc(without, func(dir string) bool {
			return strings.HasPrefix(name, dir)
		}), "a file has changed: %s", line)
	}

	check.None(n.t, n.Must("dpkg", "--audit"), "dpkg --audit:")
	dir := strings.Fields(n.Must("ls", "/var/lib/dpkg/updates"))
	check.That(n.t, len(dir) == 0, "dpkg has not finished: %v", dir)
}

// differ says of which packages, of those that are there now and those that were there, it is not
// said what it was.
func differ(now, was map[string]string) (list []string) {
	both := maps.Clone(was)
	maps.Copy(both, now)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		if now[name] != was[name] {
			list = append(list, fmt.Sprintf("package %s is %q, was %q", name, now[name], was[name]))
		}
	}

	return list
}

// TestLabDriverFails: where a package's script fails, everything is turned back, and it says what
// the script said. Where the way back fails too, that is said, and the next apply heals.
func TestLabDriverFails(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	first := n.snapshot()
	if check.All() { // a first installation is the simplest of what is rolled back
		repos.Fails(n.Host, "after", "nvidia-persistenced")
		says(t, n.wants(1, n.spec("580.65.06", "1.18.0")), "cannot install package nvidia-persistenced", "after of nvidia-persistenced 580.65.06: told to fail", "try")
		n.same(first, "/etc/nvidia-container-runtime")
		repos.Heal(n.Host)
	}

	n.wants(0, n.spec("580.65.06", "1.18.0"))
	before := n.snapshot()
	says(t, n.wants(1, n.spec(repos.BadDriver, "1.18.1")), "nvidia-kernel-open-dkms", "Bad return status for module build", "try")
	n.same(before)

	repos.Fails(n.Host, "after", "libnvidia-ml1")
	r := n.wants(1, n.spec("580.95.05", "1.18.1"))
	says(t, r, "libnvidia-ml1 580.95.05: told to fail", "could not be rolled back")
	if state := n.AptState(); state["libcuda1"] != before.packages["libcuda1"] || state["nvidia-container-toolkit"] != before.packages["nvidia-container-toolkit"] {
		t.Errorf("what can be rolled back is not: %v", driverPackages(state))
	}
	repos.Heal(n.Host)
	n.wants(0, n.spec("580.95.05", "1.18.1"))
	n.has("580.95.05")

	if check.All() {
		repos.Fails(n.Host, "after", "libnvidia-ml1")
		says(t, n.wants(1, n.spec("570.172.08", "1.18.1")), "could not be rolled back")
		repos.Heal(n.Host)
	}

	n.gpuadm(0, "undo", "--to", "all") // in a nightly run from halfway, without an apply that heals
	n.same(first)
}

// TestLabDriverKilled: dpkg, gpuadm, apt, the hook between them, or all of the machine end in the
// midst of an installation.
func TestLabDriverKilled(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("570.172.08", ""))
	before := n.snapshot()

	there, _ := repos.Waits(n.Host, "after", "libcuda1")
	n.Put(specFile, n.spec("580.65.06", ""), 0o644)
	task := n.Go("gpuadm", "apply", "sources", "packages")
	there()
	check.That(t, n.KillInside("dpkg") != 0, "no dpkg to kill")
	repos.Heal(n.Host)
	r := task.Wait()
	check.That(t, r.Exit == 1, "want exit 1: %s", r)
	says(t, r, "dpkg was killed")
	n.same(before, "/etc/apt")
	n.wants(0, n.spec("580.65.06", ""))
	n.has("580.65.06")

	there, goOn := repos.Waits(n.Host, "after", "libcuda1")
	n.Put(specFile, n.spec("580.95.05", ""), 0o644)
	n.Must("systemd-run", "--unit=first", "--property=KillMode=process", "gpuadm", "apply", "sources", "packages")
	there()
	n.KillMain("first.service")
	pid := strings.TrimSpace(n.Must("pgrep", "--exact", "apt-get"))
	for _, verb := range []string{"apply", "undo --yes"} {
		says(t, n.gpuadm(75, strings.Fields(verb)...), fmt.Sprintf("a command of a killed gpuadm run is still at work: process %s (apt-get ", pid))
	}
	goOn()
	n.Must("sh", "-c", "while pgrep --exact apt-get; do sleep 0.1; done")
	n.wants(0, n.spec("580.95.05", ""))
	n.has("580.95.05")

	// Before dpkg starts: the hook by which apt asks gpuadm is killed, apt is, gpuadm is.
	const hook, waits = "/usr/local/bin/before", "touch /run/there; while [ -e /run/there ]; do sleep 0.1; done\n"
	n.Put("/etc/apt/apt.conf.d/00before", "DPkg::Pre-Install-Pkgs { \""+hook+"\"; };\n", 0o644)
	before = n.snapshot()
	// apt runs gpuadm as its descriptor 4; what looks for that must be the faster of the two, on a
	// busy machine, too.
	n.Put(hook, "#!/bin/sh\ncat >/dev/null\nexec >/dev/null 2>&1\nrenice -n 19 $(pgrep -x apt-get)\n(while ! pkill -9 -x 4; do :; done) &\nrenice -n -20 $!\n", 0o755)
	says(t, n.wants(1, n.spec("570.172.08", "")), "undone")
	n.same(before, "/etc/apt", "/usr/local")
	n.Put(hook, "#!/bin/sh\ncat >/dev/null\n"+waits, 0o755)
	begun := func() {
		must.That(t, lab.Until(3*time.Minute, func() bool {
			return n.Exec("test", "-e", "/run/there").Exit == 0
		}), "apt runs no hook")
	}

	task = n.Go("gpuadm", "apply", "sources", "packages")
	begun()
	n.KillInside("apt-get")
	n.Must("rm", "/run/there")
	r = task.Wait()
	check.That(t, r.Exit == 1, "apt was killed: %s", r)
	n.same(before, "/etc/apt", "/usr/local")
	n.Must("systemd-run", "--unit=second", "--property=KillMode=process", "gpuadm", "apply", "sources", "packages")
	begun()
	n.KillMain("second.service")
	n.Must("rm", "/run/there", "/etc/apt/apt.conf.d/00before", hook)
	n.Must("sh", "-c", "while pgrep --exact apt-get; do sleep 0.1; done")
	n.wants(0, n.spec("570.172.08", ""))
	n.has("570.172.08")

	there, _ = repos.Waits(n.Host, "before", "libnvidia-ml1")
	n.Put(specFile, n.spec("580.65.06", ""), 0o644)
	task = n.Go("gpuadm", "apply", "sources", "packages")
	there()
	n.PowerLoss()
	task.Wait()
	n.wants(0, n.spec("580.65.06", ""))
	n.has("580.65.06")
	says(t, n.wants(0, n.spec("580.65.06", "")), "Nothing to do.")
}

// TestLabDriverHindered: an obstacle is named or waited for, and nothing is changed.
func TestLabDriverHindered(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("580.65.06", "1.18.0"))
	before := n.snapshot()

	// Another apt is at work: that is not a fault. A deadline ends the wait; without one apply goes on
	// once it can.
	there, goOn := repos.Waits(n.Host, "after", "nvidia-driver-cuda")
	other := n.Go("apt-get", "install", "-y", "--reinstall", "--allow-change-held-packages", "nvidia-driver-cuda")
	there()
	n.Put(specFile, n.spec("580.95.05", "1.18.0"), 0o644)
	says(t, n.gpuadm(1, "apply", "sources", "packages", "--deadline", "20s"), "(apt-get install ", "holds dpkg's lock: waiting for up to ", "try")
	n.Put(specFile, n.spec("580.65.06", "1.18.0"), 0o644)
	apply := n.Go("sh", "-c", "gpuadm apply sources packages >/run/said 2>&1")
	n.Must("timeout", "180", "sh", "-c", "until grep -q waiting /run/said; do sleep 0.1; done")
	r := n.Exec("gpuadm", "doctor")
	says(t, r, "Not checked: packages: process ", "(apt-get install ", "holds /var/lib/dpkg/lock-frontend")
	check.That(t, !strings.Contains(r.Stdout, "PKG-"), "in the midst of a transaction: %s", r)
	goOn()
	other.Wait()
	check.That(t, apply.Wait().Exit == 0 && strings.Contains(n.Get("/run/said"), "busy → clean"), "after the wait: %s", n.Get("/run/said"))
	n.same(before, "/etc/apt")

	// Where neither gpuadm nor apt looks, dpkg finds out in its midst.
	const firmware = "/usr/lib/firmware/nvidia"
	n.Must("sh", "-c", "cp -a "+firmware+" /run/held; mount -t tmpfs -o size=12k tmpfs "+firmware+"; cp -a /run/held/. "+firmware)
	says(t, n.wants(1, n.spec("580.95.05", "1.18.0")), "the disk is full", "No space left on device")
	diff := n.Exec("diff", "-r", "/run/held", firmware)
	check.That(t, diff.Exit == 0, "firmware: %s", diff)
	n.Must("umount", firmware)
	n.same(before, "/etc/apt")

	repos.Show(n.Host, repos.Vanished)
	n.Must("apt-get", "update")
	says(t, n.wants(1, n.spec(repos.Gone, "1.18.0")), "cannot install driver "+repos.Gone, "580.65.06", "try")
	n.same(before, "/etc/apt", "/srv")
	n.wants(0, n.spec("580.65.06", "1.18.0")) // what is installed stays, though 1.18.0 has left the repository
	n.same(before, "/srv")
}

// TestLabDriverHalfInstalled: dpkg ended while it unpacked a dependency of the driver again, as an
// operator asked, and has left it half-installed. Nothing else is pending: apply plans that, and
// fixes it.
func TestLabDriverHalfInstalled(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	spec := n.spec("580.65.06", "")
	n.wants(0, spec)
	before := n.snapshot()
	const part = "libnvidia-ml1"

	there, _ := repos.Waits(n.Host, "before", part)
	task := n.Go("apt-get", "-y", "--allow-change-held-packages", "install", "--reinstall", part)
	there()
	check.That(t, n.KillInside("dpkg") != 0, "no dpkg to kill")
	task.Wait()
	repos.Heal(n.Host)
	n.Must("sh", "-c", "dpkg --set-selections </dev/null") // an operator's next dpkg takes over what the killed one left
	state := n.AptState()[part]
	must.That(t, strings.Contains(state, "half-installed"), "%s is %q", part, state)
	r := n.wants(3, spec, "plan", "--exit-code", "-v", "packages")
	says(t, r, part, "it is half-installed")
	n.wants(0, spec)
	n.same(before)
	says(t, n.wants(0, spec), "Nothing to do.")
}

// TestLabDriverUnpacked: an operator has unpacked parts of the driver and configured none: one that the
// spec asks for, one that it brought, an optional one. The next apply configures and holds them, and
// status says of none that it was changed outside gpuadm.
func TestLabDriverUnpacked(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	spec := n.spec("580.65.06", "")
	n.wants(0, spec)
	before := n.snapshot()
	for _, part := range []string{"libcuda1", "libnvidia-ml1", "nvidia-modprobe"} {
		n.Must("sh", "-ec", "cd /root; apt-get download "+part+"=$(dpkg-query -W -f '${Version}' "+part+"); dpkg --unpack "+part+"_*.deb; rm "+part+"_*.deb")
	}
	says(t, n.gpuadm(3, "status"), "package libcuda1 was changed outside gpuadm")

	n.wants(0, spec)
	n.same(before)
	r := n.gpuadm(3, "status") // the modules of this host are not built
	check.That(t, !strings.Contains(r.Stdout+r.Stderr, "outside gpuadm"), "status after gpuadm's own repair: %s", r)
	says(t, n.wants(0, spec), "Nothing to do.")
}

// TestLabDriverFileRemoved: the packages of the driver are installed, and another process has removed
// files of theirs. The reason names the packages, and the command that is printed unpacks them again.
func TestLabDriverFileRemoved(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	spec := n.spec("580.65.06", "")
	n.wants(0, spec)
	before := n.snapshot()
	n.Must("sh", "-ec", "rm /usr/bin/nvidia-smi $(dpkg -L libnvidia-ml1 | grep 'libnvidia-ml[.]so')")

	r := n.gpuadm(1, "apply")
	says(t, r, "libnvidia-ml.so.580.65.06 is a file of package libnvidia-ml1, which is installed", "/usr/bin/nvidia-smi is a file of package")
	_, command, printed := strings.Cut(r.Stdout+r.Stderr, "try      sudo ")
	must.That(t, printed, "no command is printed: %s", r)
	command, _, _ = strings.Cut(command, "\n")
	n.Must("sh", "-ec", command+" </dev/null")

	n.wants(0, spec)
	n.same(before)
	says(t, n.wants(0, spec), "Nothing to do.")
}

// TestLabDriverDependencyLost: dpkg has removed by force what the driver's packages depend on: a part
// of the driver that the spec does not name, and DKMS. The next apply brings both back.
func TestLabDriverDependencyLost(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	spec := n.spec("580.65.06", "")
	n.wants(0, spec)
	before := n.snapshot()
	n.Must("dpkg", "--force-all", "-P", "libnvidia-gpucomp", "dkms")
	check.That(t, n.Exec("apt-get", "check").Exit != 0, "apt misses nothing")

	r := n.gpuadm(0, "plan")
	check.That(t, !strings.Contains(r.Stdout, "Nothing to do"), "a lost dependency is not seen: %s", r)
	n.wants(0, spec)
	n.Must("apt-get", "check")
	n.same(before)
	says(t, n.wants(0, spec), "Nothing to do.")
}

// TestLabDriverKept: what an administrator has changed survives an upgrade, without a question;
// automatic upgrades are set to skip gpuadm's packages, and skip them; no password gets into what
// gpuadm says or keeps.
func TestLabDriverKept(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	const theirs, password = "/etc/apt/sources.list.d/theirs.list", "hunter2"
	n.Put(theirs, "deb [trusted=yes] http://me:"+password+"@127.0.0.1:1/debian theirs main\n", 0o644) // and it cannot be reached
	first := n.snapshot()
	quiet := func(r lab.Result) {
		t.Helper()
		check.That(t, !strings.Contains(r.Stdout+r.Stderr, password), "it says a password: %s", r)
	}

	n.Put(specFile, n.spec("580.65.06", "1.18.0"), 0o644)
	apply := []string{"env", "http_proxy=http://me:" + password + "@127.0.0.1:1", "gpuadm", "apply", "sources", "packages"}
	r := n.Exec(apply...)
	if quiet(r); r.Exit != 0 {
		t.Errorf("another owner's repository that cannot be read blocks apply: %s", r)
	}

	dump := n.Must("apt-config", "dump", "Unattended-Upgrade::Package-Blacklist")
	for _, name := range []string{"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced", "nvidia-container-toolkit", "libnvidia-container1"} {
		check.That(t, strings.Contains(dump, "Unattended-Upgrade::Package-Blacklist:: \"^"+name+"$\";"), "automatic upgrades would take %s: %s", name, dump)
	}

	// dpkg asks where both the administrator and the package have changed a file: as if the package
	// had had another before.
	const conf, edited = "/etc/nvidia-container-runtime/config.toml", "disable-require = true # ours\n"
	n.Must("sed", "-i", "s|^ "+conf+" [0-9a-f]*| "+conf+" 0123456789abcdef0123456789abcdef|", "/var/lib/dpkg/status")
	n.Put(conf, edited, 0o644)
	quiet(n.wants(0, n.spec("580.95.05", "1.18.1")))
	n.has("580.95.05")
	check.Equal(t, n.Get(conf), edited, "%s was %q, is", conf, edited)
	aptExits(t, n.Host, 0, "", "dist-upgrade", "-o", "Dir::Etc::sourceparts=/nowhere")
	n.has("580.95.05")

	r = n.wants(1, strings.Replace(n.spec("580.95.05", "1.18.1"), "file:///srv", "http://127.0.0.1:1", 1))
	quiet(r)
	says(t, r, "cannot read repository http://127.0.0.1:1", "try")
	r = n.wants(2, n.spec("580.95.05", "1.18.1")+"[proxy]\nhttp = \"http://me:"+password+"@127.0.0.1:1\"\n")
	quiet(r)
	says(t, r, "run a local proxy that knows the password")
	r = n.Exec("grep", "-rl", password, state, "/var/log/journal", "/run/log/journal")
	check.That(t, r.Stdout == "", "a password is kept in: %s", r)
	n.gpuadm(0, "undo", "--to", "all")
	n.same(first)
}

// TestLabDriverNewer: a version that has come since apt last read its lists, and one that only the
// mirror has to which the spec has just moved: both come in one apply.
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
	n.gpuadm(0, "undo", "--yes")
	n.has(repos.Gone)
}

// TestLabDriverRoom: what a killed run has left in our own folder, and no undo needs, does not keep
// the next one from its work where it has filled the disk; what undo needs is there after it.
func TestLabDriverRoom(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("570.172.08", ""))
	const left = state + "/packages/old_1.0-1_amd64.deb"
	n.Must("sh", "-c", "cp -a "+state+" /run/kept && mount -t tmpfs -o size=16m tmpfs "+state+" && cp -a /run/kept/. "+state+" && mkdir -p "+state+"/packages")
	r := n.Exec("dd", "if=/dev/zero", "of="+left, "bs=4k")
	must.That(t, r.Exit != 0, "the disk is not full: %s", r)
	n.wants(0, n.spec("580.65.06", ""))
	n.has("580.65.06")
	check.That(t, n.Exec("test", "-e", left).Exit != 0, "%s is still there", left)
	n.gpuadm(0, "undo", "--yes")
	n.has("570.172.08")
	n.gpuadm(0, "undo", "--yes")
	out := n.Must("sh", "-c", "ls "+state+"/packages "+state+"/blobs | grep -v : || :")
	check.That(t, out == "\n" || out == "", "all is undone, and kept are: %s", out)
}

// TestLabDebianOpen: bookworm-security has 535.309.01 of all but the open modules, which only
// resolve at 535.261.03-1: that is installed as a whole, and the update that it misses is named.
func TestLabDebianOpen(t *testing.T) {
	t.Parallel()
	dir := repos.For(t, "debian12-archive", repos.Recipe{})
	n := driverNode{node{lab.Boot(t, lab.Options{
		Dist:  "bookworm",
		GPUs:  8,
		Repos: dir,
	}), t}, repos.Fingerprint(t, dir)}
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
		check.That(t, strings.HasPrefix(is, "535.261.03-1"), "package %s is %q, want 535.261.03-1", name, is)
	}
	check.That(t, n.AptState()["nvidia-open-kernel-dkms"] != "", "the open modules are not there")
	n.gpuadm(0, "undo", "--to", "all")
	n.same(first)
}
