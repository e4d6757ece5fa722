// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

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
	for _, want := range []string{"cannot install package kmod-nvidia-open-dkms-3:580.105.08-1.el9.x86_64: its script %post failed, exit status 10\n", "\nError! Bad return status for module build\n"} {
		if said := wordsOf(err); !strings.Contains(said, want) {
			t.Errorf("%q is missing in %s", want, said)
		}
	}
	for _, others := range []string{"warning: %postun(nvlsm-1-1.x86_64) scriptlet failed, signal 9\n", "error: %triggerin(glibc-2-1.x86_64) scriptlet failed, exit status 1\n"} {
		if err := scriptsRan(others); err != nil {
			t.Errorf("%s: %v", others, err)
		}
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
		{1, "[MIRROR] a.rpm: Downloading successful, but checksum doesn't match. Calculated: e2(sha256)  Expected: c5(sha256)\nError: Error downloading packages:\n", "cannot install packages: Error downloading packages"},
		{1, "Error: Failed to download metadata for repo 'x': Cannot download repomd.xml: All mirrors were tried\n", "cannot install packages: Failed to download metadata for repo 'x': Cannot download repomd.xml: All mirrors were tried"},
	} {
		err := explain(n, "", &host.CommandError{Argv: []string{"dnf"}, Code: c.code, Stderr: strings.TrimSpace(c.said), Cause: errors.New("exit status 1")})
		if !strings.Contains(err.Error(), c.what) {
			t.Errorf("%q: %v", c.said, err)
		}
		if busy := (*packages.Locked)(nil); errors.As(err, &busy) != strings.Contains(c.what, "lock") {
			t.Errorf("%q: to be waited for: %v", c.said, busy)
		}
	}
}

// Whatever dnf says, there is something to do next.
func TestExplainedDnfWithAFix(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	for _, said := range []string{"Error: a message of no known kind", "Error: \n Problem: conflicting requests\n  - nothing provides x\n"} {
		told := (*trouble.Error)(nil)
		if err := explain(n, "", &host.CommandError{Stderr: said}); !errors.As(err, &told) || len(told.Try) == 0 || !strings.HasPrefix(told.What, "cannot ") {
			t.Errorf("%s: %v", said, err)
		}
	}
}

func wordsOf(err error) string {
	t := (*trouble.Error)(nil)
	if !errors.As(err, &t) {
		return err.Error()
	}
	return strings.Join(slices.Concat([]string{t.What}, t.Because, []string{"try:"}, t.Try), "\n")
}
