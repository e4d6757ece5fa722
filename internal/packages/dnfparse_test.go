// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestHalfDone: of a dnf that was killed all counts that came in its transaction, and what it did not come to remove.
func TestHalfDone(t *testing.T) {
	out := "kernel\t0\t5.14.0\t1\tx86_64\t50\t50\t(none)\nkernel\t0\t5.14.0\t2\tx86_64\t101\t100\t(none)\nlibnvidia-ml\t3\t580.65.06\t1.el9\tx86_64\t50\t50\t(none)\n" +
		"libnvidia-ml\t3\t580.105.08\t1.el9\tx86_64\t103\t100\t(none)\ndkms\t0\t3.0\t1\tnoarch\t99\t99\t(none)\n" +
		"gpg-pubkey\t0\td42d0685\t62589a51\t(none)\t102\t102\t(none)\nlater\t0\t1\t1\tnoarch\t300\t300\t(none)\n"
	d := parseRPM(out)
	d.fill()
	if got := d.packages["libnvidia-ml"].Version; nativeRPM() == "x86_64" && got != "3:580.105.08-1.el9" {
		t.Errorf("of two versions %s counts", got)
	}
	if got := d.packages["kernel-5.14.0-1."+nativeRPM()].Version; nativeRPM() == "x86_64" && got != "5.14.0-1" {
		t.Errorf("the older kernel: %q", got)
	}
	if d.doubles() != nil || d.halfDone() != nil {
		t.Error("without a dnf that was killed nothing is half done")
	}
	d.cut = time.Unix(100, 5e8)
	if got, want := d.halfDone(), []rpmPackage{{"kernel", "5.14.0-2", "x86_64"}, {"libnvidia-ml", "3:580.105.08-1.el9", "x86_64"}}; !slices.Equal(got, want) {
		t.Errorf("half done: %v", got)
	}
	if got := d.doubles(); !slices.Equal(got, []rpmPackage{{"libnvidia-ml", "3:580.65.06-1.el9", "x86_64"}}) {
		t.Errorf("installed twice: %v", got)
	}
	if d.cut = time.Unix(301, 0); d.halfDone() != nil || d.doubles() != nil {
		t.Errorf("it was killed before it had installed anything: %v", d.halfDone())
	}
}

// TestCutShort: dnf's lock of a process that is gone is what a killed dnf leaves; that of one at work is none of it.
func TestCutShort(t *testing.T) {
	for text, cut := range map[string]bool{
		"":                                      false,
		"-- var/lib/dnf/rpmdb_lock.pid --\n7\n": true,
		"-- var/lib/dnf/rpmdb_lock.pid --\n7\n-- proc/7/cmdline --\n/usr/bin/python3 /usr/bin/dnf install x\n": false,
		"-- var/lib/dnf/rpmdb_lock.pid --\n7\n-- proc/7/cmdline --\nsshd\n":                                    true,
	} {
		n, err := simhost.New([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := !cutShort(n).IsZero(); got != cut {
			t.Errorf("%q: cut short: %v", text, got)
		}
	}
}

func TestParseTable(t *testing.T) {
	const out = `Last metadata expiration check: 0:02:44 ago on Sat Nov 21 12:46:45 2026.
Dependencies resolved.
================================================================================
 Package                          Arch      Version              Repo      Size
================================================================================
Installing:
 nvlsm                            x86_64    2025.06.11-1         cuda     7.6 k
 kernel-devel-matched-with-a-name-longer-than-its-column
                                  x86_64    5.14.0-427.el9       baseos    21 M
     replacing  kernel-old.x86_64 5.14.0-1.el9
Removing:
 nvidia-driver-cuda               x86_64    3:580.65.06-1.el9    @cuda    168  
Downgrading:
 libnvidia-container1             x86_64    1.18.0-1             tk       7.9 k
Installing dependencies:
 libnvidia-cfg                    x86_64    3:580.65.06-1.el9    cuda     8.1 k
Removing dependent packages:
 nvidia-persistenced              x86_64    3:580.65.06-1.el9    @cuda    1.6 M
Enabling module streams:
 nvidia-driver                              580-open                           

Transaction Summary
================================================================================
Install    1 Package
`
	want := []dnfMove{
		{rpmPackage{"nvlsm", "2025.06.11-1", "x86_64"}, false, false},
		{rpmPackage{"kernel-devel-matched-with-a-name-longer-than-its-column", "5.14.0-427.el9", "x86_64"}, false, false},
		{rpmPackage{"kernel-old", "5.14.0-1.el9", "x86_64"}, true, true},
		{rpmPackage{"nvidia-driver-cuda", "3:580.65.06-1.el9", "x86_64"}, true, false},
		{rpmPackage{"libnvidia-container1", "1.18.0-1", "x86_64"}, false, false},
		{rpmPackage{"libnvidia-cfg", "3:580.65.06-1.el9", "x86_64"}, false, true},
		{rpmPackage{"nvidia-persistenced", "3:580.65.06-1.el9", "x86_64"}, true, true},
	}
	if got := parseTable(out); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := parseTable("Dependencies resolved.\nNothing to do.\nComplete!\n"); got != nil {
		t.Errorf("nothing to do is %v", got)
	}
}

// TestExactlyDnf: more, less and other than planned is refused.
func TestExactlyDnf(t *testing.T) {
	changes := []converge.Change{{Name: "a", Before: "1-1", After: "2-1 held"}, {Name: "b", Before: "1-1", After: ""}, {Name: "c", Before: "1-1", After: "1-1 held"}}
	work := due(changes)
	a, b := dnfMove{rpmPackage{"a", "2-1", "noarch"}, false, false}, dnfMove{rpmPackage{"b", "1-1", "noarch"}, true, false}
	for says, moves := range map[string][]dnfMove{
		"":                               {a, b},
		"leave b as it is":               {a},
		"install x-1-1.noarch beside it": {a, b, {rpmPackage{"x", "1-1", "noarch"}, false, true}},
		"remove x-1-1.noarch":            {a, b, {rpmPackage{"x", "1-1", "noarch"}, true, true}},
		"install a-3-1.noarch":           {{rpmPackage{"a", "3-1", "noarch"}, false, false}, b},
	} {
		err := exactlyDnf(moves, changes, work, rpmDatabase{})
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(wordsOf(err), says)) {
			t.Errorf("%v: want %q, got %v", moves, says, err)
		}
	}
}

func TestLocks(t *testing.T) {
	p := rpmPackage{"nvidia-driver-cuda", "3:580.95.05-1.el9", "x86_64"}
	for line, holds := range map[string]bool{
		"nvidia-driver-cuda-3:580.95.05-1.el9.*":      true,
		"nvidia-driver-cuda-3:580.95.05-1.el9.x86_64": true,
		"nvidia-driver-cuda-0:580.95.05-1.el9.*":      false,
		"nvidia-driver-cuda-3:580.65.06-1.el9.*":      false,
		"*nvidia*580*":                                true,
		"nvidia-driver-cuda":                          true,
		"nvidia-driver":                               false,
		"!nvidia-driver-cuda-3:580.95.05-1.el9.*":     false,
		"# nvidia-driver-cuda":                        false,
		"[":                                           false,
	} {
		if got := (locks{lines: []string{line + "\n"}}).holds(p); got != holds {
			t.Errorf("%q holds: %v", line, got)
		}
	}
	const others = "\n# Added lock on Fri\nkernel-0:5.14.0-427.el9.*\nnvidia-driver-cuda-libs-3:580.95.05-1.el9.*"
	l := locks{lines: strings.SplitAfter(others, "\n")}
	ours := l.with(p)
	if got := strings.Join(ours.lines, ""); got != others+"\nnvidia-driver-cuda-3:580.95.05-1.el9.*\n" {
		t.Errorf("locked: %q", got)
	}
	free, ok := ours.without(rpmPackage{name: p.name, evr: p.evr, arch: p.arch})
	if got := strings.Join(free.lines, ""); !ok || got != others+"\n" {
		t.Errorf("let go: %q, %v", got, ok)
	}
	if _, ok := (locks{lines: []string{"*nvidia*\n"}}).without(p); ok {
		t.Error("a pattern of others was let go")
	}
}

// TestScriptsRan reads what dnf 4.23 said, with exit code 0, when a script failed.
func TestScriptsRan(t *testing.T) {
	const out = `  Upgrading        : kmod-nvidia-open-dkms-3:580.105.08-1.el9.x86_64       2/18 
  Running scriptlet: kmod-nvidia-open-dkms-3:580.105.08-1.el9.x86_64       2/18 
Error! Bad return status for module build
warning: %post(kmod-nvidia-open-dkms-3:580.105.08-1.el9.x86_64) scriptlet failed, exit status 10

  Running scriptlet: nvidia-persistenced-3:580.105.08-1.el9.x86_64         3/18 
warning: %postun(nvlsm-1-1.x86_64) scriptlet failed, signal 9
Complete!
`
	err := scriptsRan(out)
	if err == nil {
		t.Fatal("no script has failed")
	}
	contains(t, wordsOf(err), "cannot install package kmod-nvidia-open-dkms-3:580.105.08-1.el9.x86_64: its script %post failed, exit status 10\n", "\nError! Bad return status for module build\n")
	for _, others := range []string{"warning: %postun(nvlsm-1-1.x86_64) scriptlet failed, signal 9\n", "error: %triggerin(glibc-2-1.x86_64) scriptlet failed, exit status 1\n"} {
		if err := scriptsRan(others); err != nil {
			t.Errorf("%s: %v", others, err)
		}
	}
}

func TestNamed(t *testing.T) {
	for _, c := range [][3]string{
		{"nvlsm", "2025.06.11-1", "nvlsm-0:2025.06.11-1"},
		{"libnvidia-ml", "3:580.95.05-1.el9", "libnvidia-ml-3:580.95.05-1.el9"},
		{"libnvidia-ml.i686", "3:580.95.05-1.el9", "libnvidia-ml-3:580.95.05-1.el9.i686"},
		{"kernel-devel-5.14.0-427.el9.x86_64", "5.14.0-427.el9", "kernel-devel-5.14.0-427.el9.x86_64"},
		{"python3.11", "3.11.9-1.el9", "python3.11-0:3.11.9-1.el9"},
	} {
		if got := named(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s is named %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

func TestParseRepos(t *testing.T) {
	r := Repository{ID: "cuda", URL: "file:///srv/nvidia/compute/cuda/repos/rhel9/x86_64/", About: "x"}
	all := parseRepos(dnfRepo(r, "/etc/pki/rpm-gpg/k.asc", host.Via{}))
	want := []dnfRepository{{"gpuadm-cuda", "file:///srv/nvidia/compute/cuda/repos/rhel9/x86_64", "/etc/pki/rpm-gpg/k.asc", ""}}
	if !slices.Equal(all, want) {
		t.Errorf("got %+v", all)
	}
	all[0].id = "cuda" // what dnf 4.23 called the folder
	if got := all[0].list(nil); got != "/var/cache/dnf/cuda-993b405957239e4a/repodata/repomd.xml" {
		t.Errorf("dnf keeps the list at %s", got)
	}
	if all := parseRepos([]byte("[a]\nenabled=0\nbaseurl=x\n[b]\nbaseurl=y\n")); len(all) != 1 || all[0].url != "y" {
		t.Errorf("one of two is disabled: %+v", all)
	}
	for signed, says := range map[Signed]string{SignedBoth: "gpgcheck=1\nrepo_gpgcheck=1", SignedMetadata: "gpgcheck=0\nrepo_gpgcheck=1", SignedPackages: "gpgcheck=1\nrepo_gpgcheck=0"} {
		r.Signed = signed
		if text := string(dnfRepo(r, "/k", host.Via{})); !strings.Contains(text, says) {
			t.Errorf("signed %q: %s", signed, text)
		}
	}
}

// TestExplainDnf reads what dnf 4.23 and rpm 4.20 said.
func TestExplainDnf(t *testing.T) {
	n, err := simhost.New([]byte("-- var/lib/dnf/rpmdb_lock.pid --\n841\n-- proc/841/cmdline --\n/usr/bin/dnf upgrade\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code       int
		said, what string
	}{
		{200, "RPMDB already locked by 841\n  The application with PID 841 is: dnf\n", "cannot install packages: process 841 (/usr/bin/dnf upgrade) holds dnf's lock"},
		{1, "error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)\n", "holds rpm's lock"},
		{1, "Error: Transaction test error:\n  installing package x needs 12MB more space on the / filesystem\n\nError Summary\n-------------\nDisk Requirements:\n   At least 12MB more space needed on the / filesystem.\n", "the disk is full: installing package x needs 12MB more space on the / filesystem"},
		{1, "Error: Unable to find a match: nosuch-0:1-1.x86_64\n", "cannot install packages: Unable to find a match: nosuch-0:1-1.x86_64"},
		{1, "Error: \n Problem: package nvidia-driver-cuda-3:580.65.06-1.el9.x86_64 requires libnvidia-ml = 3:580.65.06-1.el9, but none of the providers can be installed\n  - conflicting requests\n", "cannot install packages: Problem: package nvidia-driver-cuda-3:580.65.06-1.el9.x86_64 requires libnvidia-ml"},
		{1, "Error: Failed to download metadata for repo 'cuda': repomd.xml GPG signature verification error: Bad GPG signature\n", "is not accepted"},
		{1, "  - Status code: 404 for https://example.invalid/x/repodata/repomd.xml.asc (IP: 192.0.2.1)\nError: GPG verification is enabled, but GPG signature is not available. This may", "is not accepted"},
		{1, "Public key for x.rpm is not installed. Failing package is: x-1-1.x86_64\nError: GPG check FAILED\n", "is not accepted"},
		{1, "[MIRROR] a.rpm: Downloading successful, but checksum doesn't match. Calculated: e2(sha256)  Expected: c5(sha256)\nError: Error downloading packages:\n", "do not fit together"},
		{1, "Error: Failed to download metadata for repo 'x': Cannot download repomd.xml: All mirrors were tried\n", "cannot install packages: Failed to download metadata for repo 'x': Cannot download repomd.xml: All mirrors were tried"},
	} {
		err := explainDnf(n, "", &host.CommandError{Argv: []string{"dnf"}, Code: c.code, Stderr: strings.TrimSpace(c.said), Cause: errors.New("exit status 1")})
		if !strings.Contains(err.Error(), c.what) {
			t.Errorf("%q: %v", c.said, err)
		}
		if busy := (*locked)(nil); errors.As(err, &busy) != strings.Contains(c.what, "lock") {
			t.Errorf("%q: to be waited for: %v", c.said, busy)
		}
	}
}

func TestStream(t *testing.T) {
	h, err := host.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/etc", "/etc/dnf", moduleFolder} {
		if err := h.Mkdir(dir, host.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	w := Stream("580-open", "")
	for _, to := range []converge.State{"580-open", "590-open", ""} {
		if err := w.Make(t.Context(), h, to); err != nil {
			t.Fatal(err)
		}
		if is, err := w.Look(t.Context(), h); err != nil || is != to {
			t.Errorf("made %q, found %q, %v", to, is, err)
		}
	}
	if _, err := w.To("590-open"); err == nil || !strings.Contains(wordsOf(err), "dnf module reset nvidia-driver") {
		t.Errorf("another stream: %v", err)
	}
	if to, err := w.To(""); to != "580-open" || err != nil {
		t.Errorf("none: %q, %v", to, err)
	}
}

func TestRPMFile(t *testing.T) {
	for file, want := range map[string]rpmPackage{
		"kmod-nvidia-open-dkms-580.65.06-1.el9.x86_64.rpm": {"kmod-nvidia-open-dkms", "580.65.06-1.el9", "x86_64"},
		"libnvidia-ml-580.65.06-1.el9.i686.rpm":            {"libnvidia-ml", "580.65.06-1.el9", "i686"},
		"transaction":                                      {}, "a-1.rpm": {}, "a.b-1.rpm": {}, "": {},
	} {
		if got, ok := rpmFile(file); got != want || ok != (want.name != "") {
			t.Errorf("%q: %+v, %v", file, got, ok)
		}
	}
}

func TestDnfLeftovers(t *testing.T) {
	dir := t.TempDir()
	const cuda = "[%s]\nbaseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/\n"
	put(t, dir+dnfRepos+"/cuda-rhel9.repo", strings.ReplaceAll(cuda, "%s", "cuda"), 0o644)
	put(t, dir+dnfRepos+"/gpuadm-driver.repo", strings.ReplaceAll(cuda, "%s", "gpuadm-driver"), 0o644)
	put(t, dir+dnfRepos+"/old.repo", "[old]\nbaseurl=https://nvidia.github.io/nvidia-docker/centos7/x86_64\n", 0o644)
	h, err := host.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := Leftovers(h)
	if len(found) != 2 || !strings.Contains(found[0], "cuda-rhel9.repo, /etc/yum.repos.d/gpuadm-driver.repo: each names") || !strings.Contains(found[1], "old.repo: nvidia-docker") {
		t.Errorf("found %q", found)
	}
}

// TestTask: one command where it can be; else a script, with files first: dnf's shell takes them only there.
func TestTask(t *testing.T) {
	mixed := task{install: []string{"/f.rpm", "a-0:1-1"}, remove: []string{"b-0:1-1.noarch"}}
	if got := string(mixed.script()); mixed.args() != nil || got != "install /f.rpm a-0:1-1\nremove b-0:1-1.noarch\nrun\nexit\n" {
		t.Errorf("mixed: %v, %q", mixed.args(), got)
	}
	for _, one := range []task{{install: []string{"a"}}, {remove: []string{"a"}}, {reinstall: []string{"a"}}} {
		if got := one.args(); len(got) != 2 || got[1] != "a" || one.empty() {
			t.Errorf("%+v: %v", one, got)
		}
	}
}
