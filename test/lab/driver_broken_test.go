// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
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

// same wants packages with their versions, holds and marks, and all files, as they were; of the files that say where
// packages come from only so much as lies outside the folders named in without.
func (n driverNode) same(before snapshot, without ...string) {
	n.t.Helper()
	now := n.snapshot()
	for _, d := range differ(now.packages, before.packages) {
		n.t.Error(d)
	}
	for line := range strings.Lines(ourOwn(now.files.Diff(before.files))) {
		name := strings.Fields(line)[1]
		if !slices.ContainsFunc(without, func(dir string) bool { return strings.HasPrefix(name, dir) }) {
			n.t.Errorf("a file has changed: %s", line)
		}
	}
	if audit := n.Must("dpkg", "--audit"); audit != "" {
		n.t.Errorf("dpkg --audit: %s", audit)
	}
	if dir := strings.Fields(n.Must("ls", "/var/lib/dpkg/updates")); len(dir) > 0 {
		n.t.Errorf("dpkg has not finished: %v", dir)
	}
}

// differ says of which packages, of those that are there now and those that were there, it is not said what it was.
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

// TestLabDriverFails: where a package's script fails, everything is turned back, and it says what the script said. Where
// the way back fails too, that is said, and the next apply heals.
func TestLabDriverFails(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	first := n.snapshot()
	repos.Fails(n.Host, "after", "nvidia-persistenced")
	says(t, n.wants(1, n.spec("580.65.06", "1.18.0")), "cannot install package nvidia-persistenced", "after of nvidia-persistenced 580.65.06: told to fail", "try")
	n.same(first, "/etc/nvidia-container-runtime")
	repos.Heal(n.Host)

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

	repos.Fails(n.Host, "after", "libnvidia-ml1")
	says(t, n.wants(1, n.spec("570.172.08", "1.18.1")), "could not be rolled back")
	repos.Heal(n.Host)
	n.gpuadm(0, "undo", "--to", "all") // from halfway, without an apply that heals
	n.same(first)
}

// TestLabDriverKilled: dpkg, gpuadm, or all of the machine end in the midst of an installation.
func TestLabDriverKilled(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("570.172.08", ""))
	before := n.snapshot()

	there, _ := repos.Waits(n.Host, "after", "libcuda1")
	n.Put(specFile, n.spec("580.65.06", ""), 0o644)
	task := n.Go("gpuadm", "apply", "sources", "packages")
	there()
	if n.KillInside("dpkg") == 0 {
		t.Error("no dpkg to kill")
	}
	repos.Heal(n.Host)
	r := task.Wait()
	if r.Exit != 1 {
		t.Errorf("want exit 1: %s", r)
	}
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
	for _, verb := range []string{"apply", "undo"} {
		says(t, n.gpuadm(75, verb), fmt.Sprintf("another gpuadm run is at work: process %s (apt-get ", pid))
	}
	goOn()
	n.Must("sh", "-c", "while pgrep --exact apt-get; do sleep 0.1; done")
	n.wants(0, n.spec("580.95.05", ""))
	n.has("580.95.05")

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

// TestLabDriverHindered: an obstacle is named, and nothing is changed.
func TestLabDriverHindered(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("580.65.06", "1.18.0"))
	before := n.snapshot()

	release := n.HoldAptLock()
	pid := strings.TrimSpace(n.Get("/run/gpuadm-lab-lock"))
	n.Put(specFile, n.spec("580.95.05", "1.18.0"), 0o644)
	r := n.gpuadm(1, "apply", "sources", "packages", "--deadline", "12s")
	says(t, r, "… process "+pid+" (perl -e", "holds /var/lib/dpkg/lock-frontend: waiting for up to ", "try")
	release()
	n.same(before, "/etc/apt")

	const archives = "/var/cache/apt/archives"
	n.Must("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", archives)
	says(t, n.wants(1, n.spec("580.95.05", "1.18.0")), "the disk is full", archives)
	n.Must("umount", archives)
	n.same(before, "/etc/apt")

	// Where neither gpuadm nor apt looks, dpkg finds out in its midst.
	const firmware = "/usr/lib/firmware/nvidia"
	n.Must("sh", "-c", "cp -a "+firmware+" /run/held; mount -t tmpfs -o size=12k tmpfs "+firmware+"; cp -a /run/held/. "+firmware)
	says(t, n.wants(1, n.spec("580.95.05", "1.18.0")), "the disk is full", "No space left on device")
	if diff := n.Exec("diff", "-r", "/run/held", firmware); diff.Exit != 0 {
		t.Errorf("firmware: %s", diff)
	}
	n.Must("umount", firmware)
	n.same(before, "/etc/apt")

	repos.Show(n.Host, repos.Vanished)
	n.Must("apt-get", "update")
	says(t, n.wants(1, n.spec(repos.Gone, "1.18.0")), "cannot install driver "+repos.Gone, "580.65.06", "try")
	n.same(before, "/etc/apt", "/srv")
	n.wants(0, n.spec("580.65.06", "1.18.0")) // what is installed stays, though 1.18.0 has left the repository
	n.same(before, "/srv")
}

// TestLabDriverHalfInstalled: dpkg ended while it unpacked a dependency of the driver again, as an operator asked, and has left it
// half-installed. Nothing else is pending: apply plans that, and fixes it.
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
	if n.KillInside("dpkg") == 0 {
		t.Error("no dpkg to kill")
	}
	task.Wait()
	repos.Heal(n.Host)
	n.Must("sh", "-c", "dpkg --set-selections </dev/null") // an operator's next dpkg takes over what the killed one left
	if state := n.AptState()[part]; !strings.Contains(state, "half-installed") {
		t.Fatalf("%s is %q", part, state)
	}
	r := n.wants(3, spec, "plan", "--exit-code", "-v", "packages")
	says(t, r, part, "it is half-installed")
	n.wants(0, spec)
	n.same(before)
	says(t, n.wants(0, spec), "Nothing to do.")
}
