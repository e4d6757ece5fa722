// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// dnfHost is a host with NVIDIA's repositories for dnf.
func dnfHost(t *testing.T) *lab.Host {
	t.Helper()
	h := lab.Boot(t, lab.Options{Dist: lab.RHELish, GPUs: 8, Repos: repos.RPM(t, repos.Recipe{})})
	repos.AddDnf(h)
	return h
}

// dnfExits runs dnf, which shall exit with a code and say some words.
func dnfExits(t *testing.T, h *lab.Host, code int, says string, args ...string) {
	t.Helper()
	r := h.Exec(slices.Concat([]string{"dnf", "-y"}, args)...)
	if r.Exit != code || !strings.Contains(r.Stdout+r.Stderr, says) {
		t.Errorf("dnf %s: want exit %d and %q: %s", strings.Join(args, " "), code, says, r)
	}
}

// TestLabRepoDnf: the host says it is a RHEL 9; packages are hidden until a stream is enabled; dnf draws the set along;
// a version lock keeps them; downgrades are done.
func TestLabRepoDnf(t *testing.T) {
	t.Parallel()
	h := dnfHost(t)
	if state := h.Running(); state != "running" {
		t.Errorf("systemd is %s: %s", state, h.Must("systemctl", "--failed", "--no-legend"))
	}
	if facts := h.Must("gpuadm", "facts"); !strings.Contains(facts, "rhel 9.4") {
		t.Errorf("facts: %s", facts)
	}
	if r := h.Exec("sh", "-c", "command -v dpkg apt-get || test -e /var/lib/dpkg"); r.Exit == 0 {
		t.Errorf("what is Debian's shall not be there: %s", r)
	}
	dnfExits(t, h, 1, "modular filtering", "install", "nvidia-driver-cuda")
	dnfExits(t, h, 0, "", "--setopt=cuda-rhel9-x86_64.module_hotfixes=true", "install", "nvidia-driver-cuda-3:570.172.08", "kmod-nvidia-open-dkms-3:570.172.08")
	h.Must("dnf", "-y", "remove", "nvidia-driver-cuda", "kmod-nvidia-open-dkms")
	dnfExits(t, h, 0, "", "module", "enable", "nvidia-driver:580-open")
	// RHEL's dnf.conf says best=True: a name without a version beside an exact one wants its newest.
	dnfExits(t, h, 1, "cannot install the best candidate", "install", "nvidia-driver-cuda-3:580.65.06", "kmod-nvidia-open-dkms")
	dnfExits(t, h, 0, "", "install", "nvidia-driver-cuda-3:580.65.06", "kmod-nvidia-open-dkms-3:580.65.06")
	state := h.RpmState()
	want := map[string]string{
		"nvidia-driver-cuda": "3:580.65.06-1.el9", "kmod-nvidia-open-dkms": "3:580.65.06-1.el9", "libnvidia-ml": "3:580.65.06-1.el9 auto",
	}
	for name, is := range want {
		if state[name] != is {
			t.Errorf("%s is %q, want %q", name, state[name], is)
		}
	}
	// A lock of some members, with best=True, and nothing at all can be upgraded any more.
	h.Must("dnf", "-y", "versionlock", "add", "nvidia-driver-cuda")
	dnfExits(t, h, 1, "cannot install the best update candidate", "upgrade")
	set := slices.Sorted(maps.Keys(lab.Only(state, "*nvidia*")))
	h.Must("dnf", "-y", "versionlock", "clear")
	h.Must(slices.Concat([]string{"dnf", "-y", "versionlock", "add"}, set)...)
	dnfExits(t, h, 0, "", "upgrade")
	if state = h.RpmState(); state["libnvidia-ml"] != "3:580.65.06-1.el9 held auto" {
		t.Errorf("after an upgrade with a lock: %v", lab.Only(state, "*nvidia*"))
	}
	dnfExits(t, h, 1, "exclude filtering", "install", "nvidia-driver-cuda-3:580.95.05")
	h.Must("dnf", "-y", "versionlock", "clear")
	dnfExits(t, h, 0, "", "install", "nvidia-driver-cuda-3:580.95.05")
	dnfExits(t, h, 0, "", "downgrade", "nvidia-driver-cuda-3:580.65.06")
	if state = h.RpmState(); state["kmod-nvidia-open-dkms"] != "3:580.65.06-1.el9" {
		t.Errorf("after the downgrade: %v", lab.Only(state, "*nvidia*"))
	}
	dnfExits(t, h, 1, "", "module", "enable", "nvidia-driver:570-open")
	dnfExits(t, h, 0, "", "module", "switch-to", "nvidia-driver:570-open", "--allowerasing")
	if state = h.RpmState(); state["nvidia-driver-cuda"] != "3:570.172.08-1.el9" {
		t.Errorf("after the switch to another stream: %v", lab.Only(state, "*nvidia*"))
	}
}

// TestLabRepoDnfBroken: a %post that fails is nothing to dnf; a %pre that fails is; and of a dnf that was killed rpm
// knows nothing.
func TestLabRepoDnfBroken(t *testing.T) {
	t.Parallel()
	h := dnfHost(t)
	dnfExits(t, h, 0, "", "module", "enable", "nvidia-driver:580-open")
	dnfExits(t, h, 0, "Complete!", "install", "kmod-nvidia-open-dkms-"+repos.RPMVersion(repos.BadDriver))
	if got := h.RpmState()["kmod-nvidia-open-dkms"]; got != "3:580.105.08-1.el9" {
		t.Errorf("with a failing post: %q", got)
	}
	repos.Fails(h, "before", "nvidia-imex")
	dnfExits(t, h, 1, "", "install", "nvidia-imex")
	if got := h.RpmState()["nvidia-imex"]; got != "" {
		t.Errorf("with a failing pre: %q", got)
	}
	there, _ := repos.Waits(h, "after", "nvlsm")
	task := h.Go("dnf", "-y", "install", "nvlsm")
	there()
	if h.KillInside("dnf") == 0 {
		t.Error("no dnf to kill")
	}
	if r := task.Wait(); r.Exit != 128+9 {
		t.Errorf("dnf, killed: %s", r)
	}
	repos.Heal(h)
	if got := h.RpmState()["nvlsm"]; got == "" {
		t.Error("rpm does not know a package with its post script running when dnf was killed")
	}
	dnfExits(t, h, 0, "", "install", "nvidia-imex-"+repos.PlainRPMVersion("580.95.05"), "nvidia-container-toolkit-"+repos.PlainRPMVersion("1.18.0"))
	h.Must("systemctl", "start", "nvidia-imex.service")
}

// TestLabRepoDnfVariants: what dnf says of repositories that are not as they should be.
func TestLabRepoDnfVariants(t *testing.T) {
	t.Parallel()
	h := dnfHost(t)
	for _, c := range []struct {
		variant repos.Variant
		code    int
		says    string
	}{
		{repos.Tampered, 1, "GPG"},
		{repos.WrongKey, 1, "GPG"},
		{repos.Unsigned, 1, "repomd.xml.asc"},
		{repos.Mismatched, 1, ""},
		{repos.Vanished, 0, ""},
		{repos.Lagging, 0, ""},
		{repos.Good, 0, ""},
	} {
		repos.Show(h, repos.Good)
		repos.Show(h, c.variant)
		dnfExits(t, h, c.code, c.says, "makecache")
	}
	repos.Show(h, repos.Good)
	repos.Show(h, repos.Corrupt)
	dnfExits(t, h, 1, "", "install", "nvlsm")
	repos.Show(h, repos.Vanished)
	dnfExits(t, h, 1, "", "install", "nvidia-imex-580.95.05-1")
}
