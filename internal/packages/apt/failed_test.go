// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	h := must.Get(local.Open(t.TempDir()))(t)
	for said, want := range map[string]string{
		"dpkg: error processing archive /var/cache/apt/archives/x.deb (--unpack):\n cannot copy extracted data for './a' to '/a.dpkg-new': failed to write (No space left on device)": "the disk is full",
		"E: You don't have enough free space in /var/cache/apt/archives/.":                                                                                          "the disk is full",
		"E: Sub-process /usr/bin/dpkg exited unexpectedly":                                                                                                          "Sub-process /usr/bin/dpkg exited unexpectedly",
		"E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4194304 (apt-get)":                                                                "process 4194304 holds /var/lib/dpkg/lock-frontend",
		"dpkg: error: dpkg frontend lock was locked by another process with pid 4194304\nNote: removing the lock is wrong":                                          "process 4194304 holds dpkg's lock",
		"E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4194304 (apt-get)\nN: Be aware":                                                       "holds /var/lib/apt/lists/lock",
		"E: Version '9' for 'x' was not found":                                                                                                                      "Version '9' for 'x' was not found",
		"W: GPG error: file:/srv InRelease: The following signatures were invalid: BADSIG 7C21842EBE06E8C1\nE: The repository 'file:/srv InRelease' is not signed.": "is not accepted",
		"W: OpenPGP signature verification failed: http://a InRelease: Sub-process /usr/bin/sqv returned an error code (1), error message is: Missing key 9FDD":     "is not accepted",
		"E: Release file for http://a/InRelease is expired (invalid since 1d 2h 3min 4s). Updates for this repository will not be applied.":                         "the list http://a/InRelease has expired, 1d 2h 3min 4s ago",
		"E: Release file for http://a/InRelease is not valid yet (invalid for another 3h 1min 2s). Updates for this repository will not be applied.":                "this machine's clock is slow",
		"E: Failed to fetch http://a/Packages.gz  File has unexpected size (32924 != 38727). Mirror sync in progress? [IP: 192.0.2.1 443]\n   Hashes of expected file:\n    - Filesize:38727 [weak]\nE: Some index files failed to download. They have been ignored, or old ones used instead.": "a file is not what the repository's list says of it: Failed to fetch http://a/Packages.gz  File has unexpected size (32924 != 38727)",
		"E: Failed to fetch http://a/x_1_amd64.deb  Hash Sum mismatch\n   Hashes of expected file:\n    - SHA256:95":                                                                                  "a file is not what the repository's list says of it",
		"E: The repository 'http://a/ InRelease' does not have a Release file.":                                                                                                                       "cannot install packages: The repository 'http://a/ InRelease' does not have a Release file",
		"E: Encountered a section with no Package: header\nE: Problem with MergeList /var/lib/apt/lists/_srv_repo_nvbad_Packages\nE: The package lists or status file could not be parsed or opened.": "apt cannot read the list of a repository, /var/lib/apt/lists/_srv_repo_nvbad_Packages",
		"E: Unable to correct problems": "cannot install packages: Unable to correct problems",
	} {
		err := explain(h, "", &host.CommandError{
			Argv:   []string{"apt-get"},
			Code:   100,
			Stderr: said,
			Cause:  errors.New("exit status 100"),
		})
		told := (*trouble.Error)(nil)
		check.That(t, strings.Contains(err.Error(), want) && errors.As(err, &told) && len(told.Try) > 0 && strings.HasPrefix(told.What, "cannot "), "%s\nsays: %v", said, err)
	}
}

// TestExplainedDates: the remedy of a list with the wrong date or of files of two dates is not that
// of a signature, nor of an address.
func TestExplainedDates(t *testing.T) {
	t.Parallel()
	h := must.Get(local.Open(t.TempDir()))(t)
	for said, try := range map[string]string{
		"E: Release file for http://a/InRelease is expired (invalid since 1d 2h 3min 4s).":          "mirror it again; its copy is older than the repository allows",
		"E: Release file for http://a/InRelease is not valid yet (invalid for another 3h 1min 2s).": "timedatectl",
		"E: Failed to fetch http://a/x_1_amd64.deb  Hash Sum mismatch":                              "run the same command again in some minutes",
	} {
		err := explain(h, "", &host.CommandError{
			Argv:   []string{"apt-get"},
			Code:   100,
			Stderr: said,
		})
		got := wordsOf(packages.Unread(h, err, "http://a", "/etc/x.sources"))
		contains(t, got, try)
		for _, other := range []string{"fingerprint", "check that the address"} {
			check.That(t, !strings.Contains(got, other), "%s\nadvises on %q: %s", said, other, got)
		}
	}
}

// TestExplainedOverwrite: of packages that dpkg cannot unpack the operator reads which file of
// which package is in the way. The words are dpkg 1.21's, from a lab host.
func TestExplainedOverwrite(t *testing.T) {
	t.Parallel()
	h := must.Get(local.Open(t.TempDir()))(t)
	const said = "dpkg: error processing archive /tmp/apt-dpkg-install-edXzGp/0-libnvidia-cfg1-595-server.deb (--unpack):\n" +
		" trying to overwrite '/usr/lib/libnvidia-cfg.so.1', which is also in package libnvidia-cfg1 595.71.05-1ubuntu1\n" +
		"Errors were encountered while processing:\n" +
		" /tmp/apt-dpkg-install-edXzGp/0-libnvidia-cfg1-595-server.deb\n" +
		"E: Sub-process /usr/bin/dpkg returned an error code (1)"
	err := explain(h, "", &host.CommandError{
		Argv:   []string{"apt-get"},
		Code:   100,
		Stderr: said,
	})
	told := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &told), "%v", err)
	check.List(t, told.Because, []string{
		"0-libnvidia-cfg1-595-server.deb: trying to overwrite '/usr/lib/libnvidia-cfg.so.1', " +
			"which is also in package libnvidia-cfg1 595.71.05-1ubuntu1",
	}, "because:")
}

// A proxy that a file sets for us is a next step where nothing else is known; and what is said
// already is not said again.
func TestExplainedProxy(t *testing.T) {
	t.Parallel()
	const said = "E: Failed to fetch http://vendor.invalid/x/InRelease  Could not connect to 127.0.0.1:1 (127.0.0.1). - connect (111: Connection refused)\nE: Some index files failed to download."
	for text, in := range map[string]string{
		"": "",
		"-- etc/apt/apt.conf.d/90gpuadm --\nAcquire::http::Proxy \"http://127.0.0.1:1\";\n":                     "[proxy] of node.toml",
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n[gpuadm-driver]\nproxy=http://127.0.0.1:1\n":                 "[proxy] of node.toml",
		"-- etc/yum.repos.d/theirs.repo --\n[theirs]\nproxy=http://127.0.0.1:1\n":                               "",
		"-- etc/apt/apt.conf.d/95x --\n# old\nAcquire { http { proxy \"http://127.0.0.1:1\"; }; };\n":           "/etc/apt/apt.conf.d/95x",
		"-- etc/apt/apt.conf.d/x --\nAcquire::http::Proxy::vendor.invalid \"http://127.0.0.1:1\";\n":            "/etc/apt/apt.conf.d/x",
		"-- etc/apt/apt.conf --\n//Acquire::http::Proxy \"http://127.0.0.1:1\";\nx::https::Proxy \"DIRECT\";\n": "",
		"-- etc/dnf/dnf.conf --\n[main]\nproxy = 127.0.0.1:1\nproxy_username=a\n":                               "/etc/dnf/dnf.conf",
	} {
		n := must.Get(simhost.New([]byte(text)))(t)
		got := wordsOf(packages.Unread(n, explain(n, said, &host.CommandError{Stderr: said}), "http://vendor.invalid/x", "/etc/x.sources"))
		check.That(t, strings.Contains(got, "127.0.0.1:1: check that the proxy runs, and is the right one in "+in+"\n") == (in != ""), "%s\n%s", text, got)
		contains(t, got, "cannot read repository http://vendor.invalid/x (/etc/x.sources): Failed to fetch http://vendor.invalid/x/InRelease  Could not connect", "\nSome index files failed to download", "check that the address is right")
		if strings.Count(got, "Could not connect to") > 2 { // as the cause, and as what apt said
			t.Errorf("the message repeats the cause: %s", got)
		}
	}
}

// What dpkg has left half done is named by its database, with what its script and the compiler
// said.
func TestExplainedScript(t *testing.T) {
	t.Parallel()
	const status = "-- var/lib/dpkg/status --\nPackage: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\nPackage: nvidia-dkms\nStatus: install ok half-configured\nArchitecture: amd64\nVersion: 580.95.05-1\n\n"
	const said = "made to fail\ndpkg: error processing package nvidia-dkms (--configure):\n installed nvidia-dkms package post-installation script subprocess returned error exit status 10\nErrors were encountered while processing:\n nvidia-dkms\nE: Sub-process /usr/bin/dpkg returned an error code (1)"
	n, err := simhost.New([]byte(status + "-- var/lib/dkms/nvidia/580.95.05/build/make.log --\nfirst line\n/x/nv.c:3:9: error: no such thing\nmake: *** [all] Error 2\n-- var/lib/dpkg/updates/ --\n"))
	must.OK(t, err)
	got := wordsOf(explain(n, "Setting up other (1) ...\nSetting up nvidia-dkms (580.95.05-1) ...\nLoading new nvidia DKMS files\n", &host.CommandError{Stderr: said}))
	contains(t, got, "cannot install package nvidia-dkms: dpkg has left it half-configured\n", "/x/nv.c:3:9: error: no such thing", "Loading new nvidia DKMS files", "made to fail", "exit status 10", "try:", "term.log")
	for log, try := range map[string]string{
		"/bin/sh: 1: g++: not found\nmake: *** [all] Error 127\n": `write packages = ["g++"] in [driver]`,
		"*** Failed PREEMPT_RT sanity check. Bailing out! ***\n":  "IGNORE_PREEMPT_RT_PRESENCE=1",
	} {
		n := must.Get(simhost.New([]byte(status + "-- var/lib/dkms/nvidia/580.95.05/build/make.log --\n" + log + "-- var/lib/dpkg/updates/ --\n")))(t)
		contains(t, wordsOf(explain(n, "", &host.CommandError{Stderr: said})), "cannot install package nvidia-dkms: ", try)
	}

	full := "cp: error writing '/var/lib/dkms/nvidia/580.95.05/build/nv.o': No space left on device\n"
	got = wordsOf(explain(n, full, &host.CommandError{Stderr: said}))
	contains(t, got, "the disk is full: cp: error writing '/var/lib/dkms", "make room in /var/lib/dkms")
	check.That(t, !strings.Contains(got, "apt-get clean"), "%s", got)
	const headers = "-- lib/modules/6.8.0-88-generic/build/.config --\n#\nCONFIG_CC_VERSION_TEXT=\"gcc 13.2.0\"\n-- lib/modules/6.8.0-45-generic/modules.dep --\n"
	const source = "-- usr/src/nvidia-580.95.05/nvidia/nv.c --\nMODULE_LICENSE(\"NVIDIA\");\n"
	n = must.Get(simhost.New([]byte(status + headers + source + "-- var/lib/dkms/nvidia/580.95.05/build/make.log --\nDKMS make.log for nvidia-580.95.05 for kernel 6.8.0-88-generic (x86_64)\nnv.c:3:9: error: no such thing\n-- var/lib/dpkg/updates/ --\n")))(t)
	var taught converge.Taught
	must.That(t, errors.As(explain(n, "", &host.CommandError{Stderr: said}), &taught), "a build that fails teaches nothing")
	check.Equal(t, taught.Lesson, converge.Lesson{
		Subject: "the modules nvidia 580.95.05 for kernel 6.8.0-88-generic, proprietary", With: "gcc 13.2.0", Says: "nv.c:3:9: error: no such thing",
	}, "lesson: ")
	got = wordsOf(explain(n, "", &host.CommandError{Stderr: "E: Unable to fetch some archives"}))
	check.That(t, !strings.Contains(got, "nvidia-dkms"), "dpkg has not run: %s", got)
}

// dpkg names the architecture of a package that may be installed for several: "Multi-Arch: same".
// Source: pkg_name with pnaw_nonambig in dpkg, lib/dpkg/pkg-show.c and src/main/configure.c.
func TestScriptOfAPackageWithItsArchitecture(t *testing.T) {
	t.Parallel()
	const status = "-- var/lib/dpkg/status --\nPackage: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\nPackage: libnvidia-compute-580\nStatus: install ok half-configured\nArchitecture: amd64\nMulti-Arch: same\nVersion: 580.95.05-1\n\n"
	const out = "Setting up libnvidia-compute-580:amd64 (580.95.05-1) ...\nldconfig: no such folder\n"
	const said = "dpkg: error processing package libnvidia-compute-580:amd64 (--configure):\n installed libnvidia-compute-580:amd64 package post-installation script subprocess returned error exit status 1\nE: Sub-process /usr/bin/dpkg returned an error code (1)"
	n := must.Get(simhost.New([]byte(status + "-- var/lib/dpkg/updates/ --\n")))(t)
	got := wordsOf(explain(n, out, &host.CommandError{Stderr: said}))
	contains(t, got, "cannot install package libnvidia-compute-580: dpkg has left it half-configured", "ldconfig: no such folder", "exit status 1")
}

// TestBrokenDatabase: apt says the same of dpkg's database as of the list of a repository.
func TestBrokenDatabase(t *testing.T) {
	t.Parallel()
	h := must.Get(local.Open(t.TempDir()))(t)
	const said = "E: Encountered a section with no Package: header\nE: Problem with MergeList /var/lib/dpkg/status\nE: The package lists or status file could not be parsed or opened."
	got := wordsOf(explain(h, "", &host.CommandError{Stderr: said}))
	contains(t, got, "apt cannot read dpkg's database, /var/lib/dpkg/status", "/var/lib/dpkg/status-old", "/var/backups")
	for _, other := range []string{"mirror", "repository"} {
		check.That(t, !strings.Contains(got, other), "it advises on a %s: %s", other, got)
	}
}

func TestLockIsNamed(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("580.1-1")
	m.repo.add(deb{
		name:    "dkms-like",
		version: "1.0-1",
	}, deb{
		name:    "slow",
		version: "1",
		files:   map[string]string{"/DEBIAN/postinst": "#!/bin/sh\ntouch /run/at-work\nwhile [ ! -e /run/pass ]; do sleep 0.1; done\n"},
	})
	m.update()
	other := m.command("apt-get", "-y", "install", "slow")
	must.OK(t, other.Start())
	t.Cleanup(func() { m.write("/run/pass", ""); other.Wait() })
	m.must("timeout", "600", "sh", "-c", "until [ -e /run/at-work ]; do sleep 0.1; done")
	database := packages.NewDatabase("dpkg", packages.NewReading(m.apt))
	check.Equal(t, must.Get(database.Look(t.Context(), m))(t), "busy", "while another apt works, the database is")
	m.apt.wait = 2 * time.Second // the other apt works for longer, until the file comes
	var says []string
	err := m.apt.get(converge.Listen(t.Context(), func(_ converge.What, text string) {
		says = append(says, text)
	}), m, "install", "--", "nvidia-driver=580.1-1", "nvidia-kernel=580.1-1", "libnvidia-compute=580.1-1")
	contains(t, wordsOf(err), "cannot install packages: process ", "(apt-get -y install slow) holds ", "never remove the lock file")
	check.That(t, errors.As(err, new(*packages.Locked)), "%T", err)
	check.That(t, len(says) == 1 && strings.HasPrefix(says[0], "process ") && strings.Contains(says[0], "(apt-get -y install slow) holds /var/lib/dpkg/lock-frontend: waiting for up to "), "while it waited it said %q", says)
	m.write("/run/pass", "")
	m.apt.wait = packages.LockWait
	check.OK(t, m.apt.get(t.Context(), m, "install", "--", "nvidia-driver"))
	check.Equal(t, must.Get(database.Look(t.Context(), m))(t), "clean", "then it is")
}
