// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func TestParseRepos(t *testing.T) {
	r := packages.Repository{
		ID:    "cuda",
		URL:   "file:///srv/nvidia/compute/cuda/repos/rhel9/x86_64/",
		About: "x",
	}
	all := enabled("f", repoFile(r, "/etc/pki/rpm-gpg/k.asc", host.Via{}))
	if len(all) != 1 || all[0].id != "gpuadm-cuda" || all[0].url() != "file:///srv/nvidia/compute/cuda/repos/rhel9/x86_64" || all[0].values["gpgkey"] != "file:///etc/pki/rpm-gpg/k.asc" {
		t.Fatalf("got %+v", all)
	}
	all[0].id = "cuda" // what dnf 4.23 called the folder
	check.Equal(t, all[0].list(nil), "/var/cache/dnf/cuda-993b405957239e4a/repodata/repomd.xml", "dnf keeps the list at")
	all = enabled("f", []byte("[a]\nenabled=0\nbaseurl=x\n[b]\nbaseurl=y\n"))
	check.That(t, len(all) == 1 && all[0].url() == "y", "one of two is disabled: %+v", all)
	all = enabled("f", []byte("[a] # mine\nbaseurl=x\n [b]\nbaseurl=y\n"))
	check.That(t, len(all) == 2 && all[0].id == "a" && all[0].url() == "x", "a comment behind a name: %+v", all)
	for signed, says := range map[packages.Signed]string{packages.SignedBoth: "gpgcheck=1\nrepo_gpgcheck=1", packages.SignedMetadata: "gpgcheck=0\nrepo_gpgcheck=1", packages.SignedPackages: "gpgcheck=1\nrepo_gpgcheck=0"} {
		r.Signed = signed
		check.Has(t, string(repoFile(r, "/k", host.Via{})), says, "signed %q:", signed)
	}
}

// TestProxyOfARepository: a repository is reached through the spec's proxy, unless no_proxy names
// its host.
func TestProxyOfARepository(t *testing.T) {
	via := host.Via{
		HTTP:  "http://proxy.example:3128",
		HTTPS: "http://proxy.example:3129",
		No:    []string{"10.0.0.0/8", ".corp.example"},
	}
	for url, want := range map[string]string{
		"https://vendor.example/rhel9":      "proxy=http://proxy.example:3129\n",
		"http://vendor.example/rhel9":       "proxy=http://proxy.example:3128\n",
		"https://mirror.corp.example/rhel9": "proxy=_none_\n",
		"http://10.1.2.3:8080/rhel9":        "proxy=_none_\n",
	} {
		file := string(repoFile(packages.Repository{ID: "driver", URL: url}, "/k", via))
		check.Has(t, file, "\n"+want, "%s:", url)
		file = string(repoFile(packages.Repository{ID: "driver", URL: url}, "/k", host.Via{No: via.No}))
		check.That(t, !strings.Contains(file, "proxy"), "%s without a proxy in the spec:\n%s", url, file)
	}
}

//go:embed testdata/transaction.txt
var transactionTable string

func TestParseTable(t *testing.T) {
	want := []move{
		{rpmPackage{"nvlsm", "2025.06.11-1", "x86_64"}, false},
		{rpmPackage{"kernel-devel-matched-with-a-name-longer-than-its-column", "5.14.0-427.el9", "x86_64"}, false},
		{rpmPackage{"kernel-old", "5.14.0-1.el9", "x86_64"}, true},
		{rpmPackage{"nvidia-driver-cuda", "3:580.65.06-1.el9", "x86_64"}, true},
		{rpmPackage{"libnvidia-container1", "1.18.0-1", "x86_64"}, false},
		{rpmPackage{"libnvidia-cfg", "3:580.65.06-1.el9", "x86_64"}, false},
		{rpmPackage{"nvidia-persistenced", "3:580.65.06-1.el9", "x86_64"}, true},
	}
	got := parseTable(transactionTable)
	check.That(t, slices.Equal(got, want), "got  %+v\nwant %+v", got, want)
	got = parseTable("Dependencies resolved.\nNothing to do.\nComplete!\n")
	check.That(t, got == nil, "nothing to do is %v", got)
}

// FuzzDnf gives dnf's output: the table of a simulation, what a query found, and what scripts said.
func FuzzDnf(f *testing.F) {
	f.Add("\n Package  Arch\n===\nInstalling:\n nvlsm  x86_64  2025.06.11-1  cuda  7.6 k\n     replacing  kernel-old.x86_64 5.14.0-1.el9\n\nTransaction Summary\n")
	f.Add("\n Package \n" + strings.Repeat("Removing:\n a b c d\n replacing a.b c.\n", manyTimes))
	f.Add("\n Package " + strings.Repeat(" a\n", manyTimes))
	f.Add("a\t0\t1\t1\tx86_64\tcuda\na\\t0\\t2\\t1\\tx86_64\\tgpuadm-cuda\n")
	f.Add(strings.Repeat("a\t\t\t\tnoarch\t\n", manyTimes))
	f.Add("warning: %post(a-1-1.x86_64) scriptlet failed, exit status 10\n")
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for _, m := range parseTable(out) {
				if m.name == "" && !strings.Contains(out, "replacing") || strings.ContainsAny(m.name, " \t\n") {
					t.Errorf("a move of %q", m.name)
				}
			}

			for name, offers := range parseOffers(out, []string{"a"}, map[string]int{"cuda": 7}) {
				if name != "a" || len(offers) == 0 {
					t.Errorf("%q: %v", name, offers)
				}
			}

			_ = scriptsRan(out)
		})
	})
}

// TestTask: one command where it can be; else a script, with files first: dnf's shell takes them
// only there.
func TestTask(t *testing.T) {
	mixed := task{install: []string{"/f.rpm", "a-0:1-1"}, remove: []string{"b-0:1-1.noarch"}}
	if got := string(mixed.script()); mixed.args() != nil || got != "install /f.rpm a-0:1-1\nremove b-0:1-1.noarch\nrun\nexit\n" {
		t.Errorf("mixed: %v, %q", mixed.args(), got)
	}
	lost := task{install: []string{"libnvidia-cfg = 3:1-1"}, remove: []string{"b"}}
	check.Equal(t, string(lost.script()), "install 'libnvidia-cfg = 3:1-1'\nremove b\nrun\nexit\n", "with a lost requirement:")
	for _, one := range []task{{install: []string{"a"}}, {remove: []string{"a"}}} {
		got := one.args()
		check.That(t, slices.Contains([]string{"install --allowerasing a", "remove a"}, strings.Join(got, " ")), "%+v: %v", one, got)
	}
}

func TestStream(t *testing.T) {
	h := must.Get(local.Open(t.TempDir()))(t)
	for _, dir := range []string{"/etc", "/etc/dnf", moduleFolder} {
		must.OK(t, h.Mkdir(dir, host.Attr{Mode: 0o755}))
	}
	w := Stream("580-open", "")
	for _, to := range []converge.State{"580-open", "590-open", ""} {
		must.OK(t, w.Make(t.Context(), h, to))
		is, err := w.Look(t.Context(), h)
		check.That(t, err == nil && is == to, "made %q, found %q, %v", to, is, err)
	}

	_, err := w.To("590-open")
	check.That(t, err != nil && strings.Contains(wordsOf(err), "dnf module reset nvidia-driver"), "another stream: %v", err)
	to, err := w.To("")
	check.That(t, to == "580-open" && err == nil, "none: %q, %v", to, err)
}

// TestKeepStream: the advice asks for the stream that is enabled, not for the one that is asked for
// already.
func TestKeepStream(t *testing.T) {
	for _, x := range []struct{ asked, found, says string }{
		{"580-open", "580", `or write an exact version of branch 580, modules = "proprietary", build = "precompiled" in [driver], by which stream 580 stays`},
		{"580-open", "580-dkms", `or write modules = "proprietary", build = "dkms" in [driver], by which stream 580-dkms stays`},
		{"580-open", "570-open", `or write version = "570" in [driver], by which stream 570-open stays`},
		{"580", "570", `or write an exact version of branch 570 in [driver], by which stream 570 stays`},
		{"580-dkms", "570-open", `or write version = "570", modules = "open" in [driver], by which stream 570-open stays`},
		{"580-open", "open-dkms", ""},
	} {
		err := refuseStream(x.asked, converge.State(x.found))
		words := wordsOf(err)
		if x.says == "" {
			check.That(t, !strings.Contains(words, "or "), "%s over %s: %s", x.asked, x.found, words)
			continue
		}
		check.Has(t, words, x.says, "%s over %s:", x.asked, x.found)
	}
}

// TestDisabledModule: what dnf module disable has written counts as a choice of the administrator.
func TestDisabledModule(t *testing.T) {
	const disabled = "[nvidia-driver]\nname=nvidia-driver\nstream=\nprofiles=\nstate=disabled\n"
	h := simulated(t, stream(driverModule).file(), disabled)
	want := Stream("580-open", "")

	found, err := want.Look(t.Context(), h)
	must.That(t, err == nil && found == off, "found %q, %v", found, err)
	_, err = want.To(found)
	check.That(t, err != nil && strings.Contains(wordsOf(err), "the module was disabled outside gpuadm"), "%v", err)
}

// FuzzModuleStream gives a file of dnf's about a module, and one about repositories.
func FuzzModuleStream(f *testing.F) {
	f.Add("[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nprofiles=\nstate=enabled\n")
	f.Add("[a]\nenabled=0\nbaseurl=x\n[b]\nbaseurl=y\n")
	f.Add(strings.Repeat("[a]\n=\n", manyTimes))
	f.Add(strings.Repeat("a=", manyTimes))
	f.Fuzz(func(t *testing.T, text string) {
		alloc.Most(t, 400, len(text), func() {
			is, err := readStream(simulated(t, stream(driverModule).file(), text), driverModule)
			if err != nil || strings.ContainsAny(is, "\n") || is != "" && !strings.Contains(text, "abled") {
				t.Errorf("%q, %v", is, err)
			}
			for _, r := range parseRepos("f", []byte(text)) {
				if strings.ContainsAny(r.id+r.url()+r.values["gpgkey"], "\n") {
					t.Errorf("%+v", r)
				}
			}
		})
	})
}

func TestLocks(t *testing.T) {
	p := rpmPackage{"nvidia-driver-cuda", "3:580.95.05-1.el9", "x86_64"}
	for line, holds := range map[string]bool{
		"nvidia-driver-cuda-3:580.95.05-1.el9.*":      true,
		"nvidia-driver-cuda-3:580.95.05-1.el9.x86_64": true,
		"nvidia-driver-cuda-0:580.95.05-1.el9.*":      false,
		"nvidia-driver-cuda-3:580.65.06-1.el9.*":      false,
		"nvidia-driver-cuda-3:580.95.05":              true,
		"nvidia-driver-cuda-3:580.65.06":              false,
		"*nvidia*580*":                                true,
		"nvidia-driver-cuda":                          true,
		"nvidia-driver":                               false,
		"!nvidia-driver-cuda-3:580.95.05-1.el9.*":     false,
		"# nvidia-driver-cuda":                        false,
		"[":                                           false,
	} {
		check.Equal(t, (locks{lines: []string{line + "\n"}}).holds(p), holds, "%q holds:", line)
	}

	const others = "\n# Added lock on Fri\nkernel-0:5.14.0-427.el9.*\nnvidia-driver-cuda-libs-3:580.95.05-1.el9.*"
	l := locks{lines: strings.SplitAfter(others, "\n")}
	ours := l.with(p)
	check.Equal(t, strings.Join(ours.lines, ""), others+"\nnvidia-driver-cuda-3:580.95.05-1.el9.*\n", "locked:")
	free, ok := ours.without(rpmPackage{name: p.name, evr: p.evr, arch: p.arch})
	got := strings.Join(free.lines, "")
	check.That(t, ok && got == others+"\n", "unlocked: %q, %v", got, ok)
	for lines, hides := range map[string]bool{
		"": false, "nvidia-driver-cuda-3:580.95.05-1.el9.*": false, "nvidia-driver-cuda-3:580.65.06-1.el9.*": true, "nvidia-driver-cuda-libs-3:580.65.06-1.el9.*": false,
		"!nvidia-driver-cuda-3:580.95.05-1.el9.*": true, "nvidia-driver-cuda-3:580.65.06-1.el9.*\nnvidia-driver-cuda-3:580.95.05-1.el9.x86_64": false,
	} {
		d := rpmDatabase{locks: locks{lines: strings.SplitAfter(lines, "\n")}}
		check.Equal(t, d.hides(p.name, p.evr), hides, "%q hides:", lines)
		d.packages = map[string]packages.State{p.name: {Version: "3:580.65.06-1.el9"}}
		check.Equal(t, d.hides(p.name, p.evr), lines != "" && lines[0] == '!', "%q hides an installed package's:", lines)
	}

	_, ok = (locks{lines: []string{"*nvidia*\n"}}).without(p)
	check.That(t, !ok, "a pattern of others was taken out")
}

// TestLocksWithoutThePlugin: where dnf does not load its plugin, a locked package is not held, and
// gpuadm refuses to lock packages in vain. An empty file turns nothing off.
func TestLocksWithoutThePlugin(t *testing.T) {
	p := rpmPackage{"nvidia-driver-cuda", "3:580.95.05-1.el9", "x86_64"}
	for _, c := range []struct{ conf, general, off string }{
		{"[main]\nenabled = 1\nlocklist = /l\n", "[main]\nbest=True\n", ""},
		{"locklist = /l\n", "", ""},
		{"[main]\nenabled = 0\nlocklist = /l\n", "", "enabled in [main] of /etc/dnf/plugins/versionlock.conf"},
		{"[main]\nenabled=false\n", "", "enabled in [main] of /etc/dnf/plugins/versionlock.conf"},
		{"[main]\nenabled=1\n", "[main]\nplugins=0\n", "plugins in [main] of /etc/dnf/dnf.conf"},
		{"[main]\nenabled=1\n", "[main]\nplugins=1\n", ""},
	} {
		n := must.Get(simhost.New([]byte("-- etc/dnf/plugins/versionlock.conf --\n" + c.conf +
			"-- etc/dnf/dnf.conf --\n" + c.general +
			"-- l --\n" + exact(p) + "-- etc/dnf/plugins/versionlock.list --\n" + exact(p))))(t)
		l := must.Get(readLocks(n))(t)
		check.Equal(t, l.off, c.off, "%s%s: off", c.conf, c.general)
		check.Equal(t, l.holds(p), c.off == "", "%s%s: the package is held", c.conf, c.general)

		held := packages.State{Version: p.evr, Held: true}
		err := l.refuseOff([]converge.Change{{Ref: converge.Ref{Kind: "package", Name: p.name}, After: held.String()}})
		check.Equal(t, err != nil, c.off != "", "%s%s: a lock is refused", c.conf, c.general)
	}
}

// FuzzVersionlock gives the list of dnf's plugin: what is locked is held, and what is unlocked is
// not, with all lines of others kept.
func FuzzVersionlock(f *testing.F) {
	f.Add("\n# Added lock on Fri\nkernel-0:5.14.0-427.el9.*\nnvidia-driver-cuda-libs-3:580.95.05-1.el9.*", "nvidia-driver-cuda")
	f.Add("[\n*\n!a\na-0:1-1.*", "a")
	f.Add(strings.Repeat("*a*a*a*a*b\n", 200), strings.Repeat("a", 60))
	f.Fuzz(func(t *testing.T, text, name string) {
		if name == "" || strings.ContainsAny(name, "\n\\*?[ \t\r\v\f\u0085\u00a0#!") || strings.TrimSpace(name) != name || len(name) > 100 {
			return
		}
		alloc.Most(t, 400, len(text)+len(name), func() {
			l := must.Get(readLocks(simulated(t, lockList, text)))(t)
			p := rpmPackage{name, "3:580.95.05-1.el9", "x86_64"}
			ours := l.with(p)
			if !ours.holds(p) {
				t.Errorf("%q is locked and not held", name)
			}
			free, ok := ours.without(p)
			if ok == free.holds(p) {
				t.Errorf("%q is unlocked: %v, and held: %v", name, ok, free.holds(p))
			}
			for _, line := range l.lines {
				if !exactOf(line, name) && strings.TrimSpace(line) != "" && !slices.ContainsFunc(free.lines, func(at string) bool { return strings.TrimSpace(at) == strings.TrimSpace(line) }) {
					t.Errorf("line %q of others is lost", line)
				}
			}
		})
	})
}

// simulated is a machine with one file.
func simulated(t *testing.T, name, text string) host.View {
	t.Helper()
	n, err := simhost.New(nil)
	if err == nil {
		err = n.WriteFile("/x", nil, host.Attr{})
	}
	must.OK(t, err)
	return oneFile{n, name, text}
}

type oneFile struct {
	host.View
	name, text string
}

func (o oneFile) ReadFile(name string) ([]byte, error) {
	if name == o.name {
		return []byte(o.text), nil
	}
	return o.View.ReadFile(name)
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
	must.That(t, err != nil, "no script has failed")
	for _, want := range []string{"cannot install package kmod-nvidia-open-dkms-3:580.105.08-1.el9.x86_64: its script %post failed, exit status 10\n", "\nError! Bad return status for module build\n"} {
		check.Has(t, wordsOf(err), want, "%q is missing in", want)
	}
	for _, others := range []string{"warning: %postun(nvlsm-1-1.x86_64) scriptlet failed, signal 9\n", "error: %triggerin(glibc-2-1.x86_64) scriptlet failed, exit status 1\n"} {
		err := scriptsRan(others)
		check.That(t, err == nil, "%s: %v", others, err)
	}
}

// TestExplainDnf reads what dnf 4.23 and rpm 4.20 said.
func TestExplainDnf(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- var/lib/dnf/rpmdb_lock.pid --\n841\n-- proc/841/cmdline --\n/usr/bin/dnf upgrade\n")))(t)
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
		{1, "[MIRROR] a.rpm: Downloading successful, but checksum doesn't match. Calculated: e2(sha256)  Expected: c5(sha256)\nError: Error downloading packages:\n", "a file is not what the repository's list says of it: [MIRROR] a.rpm: Downloading"},
		{1, "[MIRROR] a.rpm: Downloading successful, but checksum doesn't match. Calculated: e2(sha256)\nError: Transaction failed\n", "cannot install packages: Transaction failed"},
		{1, "Error: a message of no known kind", "cannot install packages: a message of no known kind"},
		{1, "Error: Failed to download metadata for repo 'x': Cannot download repomd.xml: All mirrors were tried\n", "cannot install packages: Failed to download metadata for repo 'x': Cannot download repomd.xml: All mirrors were tried"},
	} {
		err := explain(n, "", &host.CommandError{
			Argv:   []string{"dnf"},
			Code:   c.code,
			Stderr: strings.TrimSpace(c.said),
			Cause:  errors.New("exit status 1"),
		})
		told := (*trouble.Error)(nil)
		check.That(t, strings.Contains(err.Error(), c.what) && errors.As(err, &told) && len(told.Try) > 0 && strings.HasPrefix(told.What, "cannot "), "%q: %v", c.said, err)
		busy := (*packages.Locked)(nil)
		check.That(t, errors.As(err, &busy) == strings.Contains(c.what, "lock"), "%q: to be waited for: %v", c.said, busy)
	}
}

func wordsOf(err error) string {
	t := (*trouble.Error)(nil)
	if !errors.As(err, &t) {
		return fmt.Sprint(err)
	}
	return strings.Join(slices.Concat([]string{t.What}, t.Because, t.Undone, []string{"try:"}, t.Try), "\n")
}

// TestUnverified: a repository is named that has some of the files, and of which neither its own
// section nor dnf.conf says that dnf verifies anything.
func TestUnverified(t *testing.T) {
	repos := enabled("a.repo", []byte(`[signed]
gpgcheck=1
[listed]
gpgcheck=0
repo_gpgcheck=True
[plain]
gpgcheck=0
[silent]
[unused]
gpgcheck=0
`))
	main := parseRepos("dnf.conf", []byte("[main]\nrepo_gpgcheck=0\n"))
	files := map[string]rpmFetched{"a.rpm": {from: []string{"signed", "plain"}}, "b.rpm": {from: []string{"listed"}}, "c.rpm": {from: []string{"silent"}}}
	got, want := slices.Sorted(maps.Keys(unverified(repos, main, files))), []string{"plain", "silent"}
	check.That(t, slices.Equal(got, want), "unverified: %v, want %v", got, want)
}

// TestMirrored: dnf reads no other repository where all of gpuadm's are mirrors, and each one
// otherwise. A mirror that was written since makes the lists old.
func TestMirrored(t *testing.T) {
	const lock, alone = "-- srv/mirror/" + packages.MirrorLock + " --\n{}\n", "--enablerepo=gpuadm-*"
	mirror := string(repoFile(packages.Repository{
		ID:     "driver",
		URL:    "file:///srv/mirror",
		Signed: packages.SignedMetadata,
		Whole:  true,
	}, "/k", host.Via{}))
	check.That(t, strings.Contains(mirror, "gpgcheck=0\nrepo_gpgcheck=1\n") && strings.Contains(mirror, "\nmodule_hotfixes=1\n"), "a mirror's repository:\n%s", mirror)
	for files, want := range map[string]bool{
		"": false,
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror:                                                                                                false, // a folder that is not a mirror
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror + "-- etc/yum.repos.d/base.repo --\n[base]\nbaseurl=https://x\n" + lock:                        true,
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror + "-- etc/yum.repos.d/gpuadm-toolkit.repo --\n[gpuadm-toolkit]\nbaseurl=https://x\n" + lock:    false,
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror + "-- etc/yum.repos.d/gpuadm-crb.repo --\n[gpuadm-crb]\nbaseurl=https://x\nenabled=0\n" + lock: true,
	} {
		n := must.Get(simhost.New([]byte(files)))(t)
		got := slices.Contains(New(nil).(dnf).options(n), alone)
		check.That(t, got == want, "other repositories are left out: %v, want %v, with\n%s", got, want, files)
	}
}

// TestRequiresDnf4: the packages may be the driver's or the toolkit's, and the advice is for both.
func TestRequiresDnf4(t *testing.T) {
	for link, want := range map[string]string{"dnf-3": "", "dnf5": "leave out [toolkit]"} {
		n := must.Get(simhost.New([]byte("-- usr/bin/" + link + " --\n-- usr/bin/dnf link=" + link + " --\n")))(t)
		_, err := New(nil).Installed(t.Context(), n)
		var told *trouble.Error
		if want == "" {
			check.That(t, !errors.As(err, &told), "%s: %v", link, err)
			continue
		}
		must.That(t, errors.As(err, &told) && len(told.Try) == 1, "%s: %v", link, err)
		check.Has(t, told.Try[0], want, "%s", link)
	}
}

// down is a machine whose repositories cannot be reached.
type down struct{ *simhost.Node }

func (down) Do(_ context.Context, argv ...string) ([]byte, error) {
	if slices.Contains(argv, "download") {
		return nil, errors.New("cannot reach the repository")
	}
	return nil, nil
}

func (down) Ask(context.Context, ...string) ([]byte, error) { return nil, nil }

func (down) Now() time.Time { return time.Time{} }

// TestUnkeptBesideABroken: a broken package is not kept, and those beside it that cannot be kept
// either are named all the same.
func TestUnkeptBesideABroken(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	replaced := func(name string, before packages.State) converge.Change {
		return converge.Change{
			Ref:    converge.Ref{Kind: "package", Name: name},
			Before: before.String(),
			After:  "3:580.1-1.el9",
		}
	}
	whole := packages.State{Version: "3:570.1-1.el9"}
	broken := packages.State{Version: "3:570.1-1.el9", Broken: packages.Incomplete}
	all := map[string]packages.State{"a": broken, "b": whole}
	r := &packages.Resolution{
		Solver:    solver{d: rpmDatabase{packages: all}},
		Installed: all,
		Changes:   []converge.Change{replaced("a", broken), replaced("b", whole)},
	}
	var said []string
	ctx := converge.Listen(t.Context(), func(_ converge.What, text string) { said = append(said, text) })
	must.OK(t, r.Unkept(ctx, n, nil))
	const want = "cannot keep b 3:570.1-1.el9: no repository has that version; to install it again gpuadm will need a repository that has it"
	check.That(t, slices.Equal(said, []string{want}), "it said %q, want %q", said, want)
}

// With a repository that is down dnf keeps nothing of what gets replaced, and says so. What the
// plan has called lost already is not said again, and a run that was stopped ends there.
func TestDnfKeepsWhatItCan(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	var h host.Host = down{n}
	name, newer := "kmod-nvidia", packages.State{Version: "3:590.1-1.el9"}
	change := converge.Change{
		Ref:    converge.Ref{Kind: "package", Name: name},
		Before: newer.String(),
		After:  "3:580.1-1.el9",
	}
	s := solver{d: rpmDatabase{packages: map[string]packages.State{name: newer}}}
	r := &packages.Resolution{
		Solver:    s,
		Installed: s.d.packages,
		Changes:   []converge.Change{change},
	}
	keep := func(ctx context.Context, all map[string][]packages.Offer) error {
		return r.Unkept(ctx, h, s.fetch(ctx, h, r.Replaced(), all))
	}
	var said []string
	ctx := converge.Listen(t.Context(), func(what converge.What, text string) {
		said = append(said, string(what)+": "+text)
	})
	for _, c := range []struct {
		again map[string][]packages.Offer
		want  string
	}{
		{map[string][]packages.Offer{name: {{Version: newer.Version}}}, "cannot reach the repository"},
		{nil, "no repository has that version"},
	} {
		said = nil
		want := "unkept: cannot keep kmod-nvidia 3:590.1-1.el9: " + c.want + "; to install it again gpuadm will need a repository that has it"
		err := keep(ctx, c.again)
		check.That(t, err == nil && slices.Equal(said, []string{want}), "%v, it said %q, want %q", err, said, want)
	}

	again := map[string][]packages.Offer{name: {{Version: newer.Version}}}
	stopped, stop := context.WithCancel(ctx)
	stop()
	check.That(t, keep(stopped, again) != nil, "stopped, it went on")
	said, r.Changes[0].Lost = nil, "no repository has it any more"
	err := keep(ctx, again)
	check.That(t, err == nil && len(said) == 0, "of what the plan called lost: %v, it said %q", err, said)
}

// TestExcluded: a package that dnf's configuration hides is not blamed on repositories that are not
// enabled, nor is a dependency.
func TestExcluded(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- etc/dnf/dnf.conf --\n[main]\ngpgcheck=1\nexcludepkgs=dkms\n-- etc/yum.repos.d/epel.repo --\n[epel]\nexclude = dkms*\n")))(t)
	n.Install("dnf", simhost.Program{Looks: func([]string) bool { return true }, Run: func(_ *files.Files, argv []string) ([]byte, error) {
		switch all := slices.Contains(argv, "--disableexcludes=all"); {
		case slices.Contains(argv, "--assumeno") && !all:
			return nil, &host.CommandError{
				Argv:   argv,
				Code:   1,
				Stderr: "Error: \n Problem: nothing provides dkms needed by kmod-nvidia-open-dkms-3:580.95.05-1.el9.noarch from cuda\n",
			}
		case slices.Contains(argv, "--assumeno"):
			return []byte("\n Package  Architecture  Version  Repository  Size\nInstalling:\n dkms  noarch  3.1-1.el9  epel  80 k\n\nTransaction Summary\n"),
				&host.CommandError{
					Argv:   argv,
					Code:   1,
					Stderr: "Operation aborted.\n",
				}
		case all:
			return []byte("dkms\t0\t3.1\t1.el9\tnoarch\tepel\n"), nil
		}
		return nil, nil
	}})
	err := solver{d: rpmDatabase{}}.Hidden(t.Context(), n, "dkms", "*", []string{"dkms"}, nil)
	want := []converge.Change{{
		Ref:   converge.Ref{Kind: "package", Name: "kmod-nvidia-open-dkms"},
		After: "3:580.95.05-1.el9",
	}}
	if _, err := (solver{d: rpmDatabase{}}).Simulate(t.Context(), n, want, nil, nil); !errors.Is(err, packages.ErrExcluded) {
		t.Errorf("of a dependency: %v", err)
	}
	told := (*trouble.Error)(nil)
	if !errors.As(err, &told) || !errors.Is(err, packages.ErrExcluded) || !strings.Contains(told.What, "excludes it") ||
		strings.Join(told.Because, "; ") != "/etc/dnf/dnf.conf, [main]: excludepkgs = dkms; /etc/yum.repos.d/epel.repo, [epel]: exclude = dkms*" {
		t.Errorf("%v %+v", err, told)
	}
}

// TestIncludedAlone: a repository with a list of the packages that dnf may take from it hides all
// others.
func TestIncludedAlone(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- etc/yum.repos.d/epel.repo --\n[epel]\nbaseurl=x\nincludepkgs=htop, iotop\n")))(t)
	check.List(t, excludes(n), []string{"/etc/yum.repos.d/epel.repo, [epel]: includepkgs = htop, iotop"}, "what hides packages:")
	check.Has(t, wordsOf(excluded(n, "cannot install dkms")), "add it to includepkgs", "it advises")
}

// TestCopiesOfRepositories: a copy of a repository's file beside it has no say, as with dnf.
func TestCopiesOfRepositories(t *testing.T) {
	n := must.Get(simhost.New([]byte(`
-- etc/yum.repos.d/tools.repo --
[tools]
baseurl=x
priority=20
-- etc/yum.repos.d/tools.repo.bak --
[tools]
baseurl=x
priority=10
excludepkgs=dkms
`)))(t)
	check.Equal(t, raised(n)["tools"], 99-20, "its offers are raised by")
	check.List(t, excludes(n), nil, "what hides packages:")
}
