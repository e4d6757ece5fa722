// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// aptHost is a host with NVIDIA's repositories for apt.
func aptHost(t *testing.T, dist string) *lab.Host {
	t.Helper()
	h := lab.Boot(t, lab.Options{Dist: dist, Repos: repos.Deb(t, repos.Recipe{})})
	repos.AddApt(h)
	return h
}

// apt runs apt-get without questions.
func apt(h *lab.Host, args ...string) lab.Result {
	return h.Exec(slices.Concat([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y"}, args)...)
}

// aptExits runs apt-get, which shall exit with a code and say some words.
func aptExits(t *testing.T, h *lab.Host, code int, says string, args ...string) {
	t.Helper()
	if r := apt(h, args...); r.Exit != code || !strings.Contains(r.Stdout+r.Stderr, says) {
		t.Errorf("apt-get %s: want exit %d and %q: %s", strings.Join(args, " "), code, says, r)
	}
}

// driverSet are the members of an open driver for computing.
func driverSet(version string) []string {
	return repos.DebSet(version, "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-modprobe",
		"nvidia-persistenced", "firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-nvvm4",
		"libnvidia-ptxjitcompiler1", "libnvidia-gpucomp")
}

// versions counts the packages of a state by their state's words.
func versions(state map[string]string) map[string]int {
	count := map[string]int{}
	for _, is := range state {
		count[is]++
	}
	return count
}

// driverPackages are NVIDIA's packages in a host.
func driverPackages(state map[string]string) map[string]string {
	return lab.Only(state, "nvidia-*", "libnvidia-*", "libcuda1", "firmware-nvidia-*", "cuda-*", "dkms")
}

// TestLabRepoApt: the newest version comes with its set; an exact version wants every member named; a hold holds; pins
// bring a downgrade only where it is allowed; daemons and libraries are there.
func TestLabRepoApt(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.Dists() {
		t.Run(dist, func(t *testing.T) {
			t.Parallel()
			h := aptHost(t, dist)
			aptExits(t, h, 100, "held broken packages", "install", "nvidia-driver-cuda=580.65.06-1")
			aptExits(t, h, 0, "", slices.Concat([]string{"install"}, driverSet("580.65.06"))...)
			if got := versions(driverPackages(h.AptState())); !maps.Equal(got, map[string]int{"580.65.06-1": 12, "0.lab-1 auto": 1}) {
				t.Errorf("installed: %v\n%v", got, driverPackages(h.AptState()))
			}
			if out := h.Must("ldconfig", "-p"); !strings.Contains(out, "libnvidia-ml.so.1 ") {
				t.Errorf("ldconfig does not know libnvidia-ml.so.1: %s", out)
			}
			if out := h.Must("nvidia-persistenced", "--version"); !strings.HasSuffix(out, "version 580.65.06\n") {
				t.Errorf("nvidia-persistenced --version: %s", out)
			}
			pid := h.MainPID("nvidia-persistenced.service")
			if pid == 0 {
				t.Error("nvidia-persistenced does not run after its package was installed")
			}

			h.Must(slices.Concat([]string{"apt-mark", "hold"}, names(driverSet("")))...)
			aptExits(t, h, 0, "", "dist-upgrade")
			if got := versions(driverPackages(h.AptState())); got["580.65.06-1 held"] != 12 {
				t.Errorf("a dist-upgrade went over the hold: %v", got)
			}
			aptExits(t, h, 100, "Held packages were changed", slices.Concat([]string{"install"}, driverSet("580.95.05"))...)
			aptExits(t, h, 0, "", slices.Concat([]string{"install", "--allow-change-held-packages"}, driverSet("580.95.05"))...)
			if now := h.MainPID("nvidia-persistenced.service"); now == 0 || now == pid {
				t.Errorf("nvidia-persistenced was process %d, is %d", pid, now)
			}
			h.Must(slices.Concat([]string{"apt-mark", "unhold"}, names(driverSet("")))...)
			aptExits(t, h, 100, "without --allow-downgrades", slices.Concat([]string{"install"}, driverSet("570.172.08"))...)
			aptExits(t, h, 0, "", slices.Concat([]string{"install", "--allow-downgrades"}, driverSet("570.172.08"))...)
			aptExits(t, h, 0, "", "install", "nvidia-open")
			if state := h.AptState(); state["nvidia-open"] != "595.58.03-1" || state["nvidia-driver-libs"] != "595.58.03-1 auto" {
				t.Errorf("the newest nvidia-open: %v", driverPackages(state))
			}
		})
	}
}

// names cuts the versions off.
func names(set []string) []string {
	var list []string
	for _, member := range set {
		name, _, _ := strings.Cut(member, "=")
		list = append(list, name)
	}
	return list
}

// TestLabRepoAptToolkit: the container toolkit in its exact version, and a companion of the driver's with its daemon.
func TestLabRepoAptToolkit(t *testing.T) {
	t.Parallel()
	h := aptHost(t, "trixie")
	toolkit := repos.DebSet("1.18.0", "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
	aptExits(t, h, 0, "", slices.Concat([]string{"install"}, toolkit, repos.DebSet("580.95.05", "nvidia-fabricmanager"))...)
	if out := h.Must("nvidia-ctk", "--version"); out != "NVIDIA Container Toolkit CLI version 1.18.0\n" {
		t.Errorf("nvidia-ctk: %s", out)
	}
	if h.MainPID("nvidia-fabricmanager.service") != 0 {
		t.Error("its package alone started nvidia-fabricmanager")
	}
	h.Must("systemctl", "start", "nvidia-fabricmanager.service")
	if h.Must("nv-fabricmanager", "--version") != "Fabric Manager version is : 580.95.05\n" || h.MainPID("nvidia-fabricmanager.service") == 0 {
		t.Error("nv-fabricmanager does not run")
	}
	aptExits(t, h, 0, "", "install", "nvidia-fabricmanager-570=570.172.08-1")
	if got := lab.Only(h.AptState(), "nvidia-fabricmanager*"); !maps.Equal(got, map[string]string{"nvidia-fabricmanager-570": "570.172.08-1"}) {
		t.Errorf("the older era's package shall take the place of the newer's: %v", got)
	}
}

// TestLabRepoAptBroken: a postinst that fails leaves its package half-configured, and apt fails until it is repaired; so
// it is with a dpkg that was killed, and there apt does nothing more at all.
func TestLabRepoAptBroken(t *testing.T) {
	t.Parallel()
	h := aptHost(t, "bookworm")
	aptExits(t, h, 100, "post-installation script", slices.Concat([]string{"install"}, driverSet(repos.BadDriver))...)
	if state := h.AptState(); state["nvidia-kernel-open-dkms"] != "580.105.08-1 half-configured" {
		t.Errorf("after the failing postinst: %v", driverPackages(state))
	}
	aptExits(t, h, 100, "", "install", "nvlsm")
	if h.AptState()["nvlsm"] == "" {
		t.Error("a package beside the broken one was not installed")
	}
	h.Put(repos.LetPass, "", 0o644)
	h.Must("dpkg", "--configure", "-a")
	h.Must("apt-get", "check")
	if audit := h.Must("dpkg", "--audit"); audit != "" {
		t.Errorf("after the repair: %s", audit)
	}

	there, _ := repos.Waits(h, "after", "libnvidia-container1")
	task := h.Go("apt-get", "install", "-y", "libnvidia-container1")
	there()
	if n := h.KillInside("dpkg"); n == 0 {
		t.Error("no dpkg to kill")
	}
	if r := task.Wait(); r.Exit != 100 {
		t.Errorf("apt after its dpkg was killed: %s", r)
	}
	repos.Heal(h)
	aptExits(t, h, 100, "you must manually run 'dpkg --configure -a'", "install", "nvidia-imex")
	h.Must("dpkg", "--configure", "-a")
	aptExits(t, h, 0, "", "install", "nvidia-imex")
}

// TestLabRepoAptLock: apt fails at once while another holds dpkg's lock, and waits if an option says so.
func TestLabRepoAptLock(t *testing.T) {
	t.Parallel()
	h := aptHost(t, "trixie")
	release := h.HoldAptLock()
	aptExits(t, h, 100, "It is held by process", "install", "nvlsm")
	aptExits(t, h, 100, "It is held by process", "-o", "DPkg::Lock::Timeout=1", "install", "nvlsm")
	release()
	aptExits(t, h, 0, "", "install", "nvlsm")
}

// TestLabRepoAptVariants: what apt says of repositories that are not as they should be.
func TestLabRepoAptVariants(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.Dists() {
		t.Run(dist, func(t *testing.T) {
			t.Parallel()
			h := aptHost(t, dist)
			if d := h.TreeOutsideCaches().Diff(h.TreeOutsideCaches()); d != "" {
				t.Errorf("a tree differs from itself: %s", d)
			}
			for _, c := range []struct {
				variant repos.Variant
				code    int
				says    string
			}{
				{repos.Expired, 100, "expired"},
				{repos.Tampered, 100, ""},
				{repos.WrongKey, 100, ""},
				{repos.Unsigned, 100, "is not signed"},
				{repos.Mismatched, 100, ""},
				{repos.Vanished, 0, ""},
				{repos.Lagging, 0, ""},
				{repos.Good, 0, ""},
			} {
				repos.Show(h, repos.Good)
				repos.Show(h, c.variant)
				if r := h.Exec("apt-get", "update", "--error-on=any"); r.Exit != c.code || !strings.Contains(r.Stdout+r.Stderr, c.says) {
					t.Errorf("%s: want exit %d and %q: %s", c.variant, c.code, c.says, r)
				}
			}
			repos.Show(h, repos.Corrupt)
			h.Must("apt-get", "update")
			aptExits(t, h, 100, "", "install", "nvlsm")
			repos.Show(h, repos.Good)
			repos.Show(h, repos.Vanished)
			h.Must("apt-get", "update")
			aptExits(t, h, 100, "was not found", "install", "nvidia-imex=580.95.05-1")
			// A pin to what is gone fails open: this is why gpuadm asks for candidates first.
			h.Put("/etc/apt/preferences.d/pin", "Package: *\nPin: version 580.95.*\nPin-Priority: 1001\n", 0o644)
			aptExits(t, h, 0, "", "install", "nvidia-imex")
			if got := h.AptState()["nvidia-imex"]; got != "595.58.03-1" {
				t.Errorf("pinned to a version that is gone: %q", got)
			}
		})
	}
}

// TestLabRepoHTTP: the repositories over HTTP, from the outer machine into the host's own network, and through a proxy.
func TestLabRepoHTTP(t *testing.T) {
	t.Parallel()
	h := aptHost(t, "bookworm")
	asked := repos.Serve(h, "127.0.0.1:8077", repos.Good)
	h.Put("/etc/apt/sources.list.d/nvidia.list", repos.AptSources("http://127.0.0.1:8077", "bookworm", repos.Keyring), 0o644)
	h.Must("apt-get", "update")
	aptExits(t, h, 0, "", "install", "nvlsm")
	if list := asked(); !slices.ContainsFunc(list, func(url string) bool { return strings.Contains(url, "nvlsm_") }) {
		t.Errorf("asked for: %v", list)
	}
	const server = "http://developer.download.nvidia.com"
	h.Put("/etc/apt/sources.list.d/nvidia.list", repos.AptSources(server, "bookworm", repos.Keyring), 0o644)
	h.Put("/etc/apt/apt.conf.d/proxy", `Acquire::http::Proxy "http://127.0.0.1:8077";`, 0o644)
	h.Must("apt-get", "update")
	aptExits(t, h, 0, "", "install", "nvidia-imex")
	if list := asked(); !slices.ContainsFunc(list, func(url string) bool {
		return strings.HasPrefix(url, server+"/") && strings.Contains(url, "nvidia-imex_")
	}) {
		t.Errorf("the proxy was asked for: %v", list)
	}
}

// TestLabRepoBuilt: the tools of this machine read what was built.
func TestLabRepoBuilt(t *testing.T) {
	t.Parallel()
	dir := repos.Deb(t, repos.Recipe{})
	out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--field", dir+"/good/compute/cuda/repos/debian12/x86_64/nvidia-kernel-open-dkms_580.95.05-1_amd64.deb").Output()
	if err != nil || !strings.Contains(string(out), "Conflicts: nvidia-kernel-dkms") {
		t.Errorf("%v: %s", err, out)
	}
	if print := repos.Fingerprint(t, dir); len(print) != 40 {
		t.Errorf("fingerprint %q", print)
	}
}
