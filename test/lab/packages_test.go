// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

const gateFile = "/usr/lib/systemd/system/kubelet.service.d/50-gpuadm.conf"

// packagesNode is a host with a fake kubelet and without gpuadm, and the packages that make
// packages has built, at /srv.
func packagesNode(t *testing.T, dist, suffix string) (n node, older, newer string) {
	t.Helper()
	files := map[string]string{}
	for _, v := range []string{"0.0.1", "0.0.2"} {
		found, err := filepath.Glob("../../bin/packages/gpuadm*" + v + "-1*" + suffix)
		must.That(t, err == nil && len(found) == 1, "packages of %s: %q, %v; make packages builds them", v, found, err)
		name := must.Get(filepath.Abs(found[0]))(t)
		files["/srv/"+v+suffix] = name
	}

	n = node{lab.Boot(t, lab.Options{Dist: dist, GPUs: 8, Files: files}), t}
	n.Must("rm", "/usr/local/sbin/gpuadm")
	n.Put("/etc/systemd/system/kubelet.service", kubelet, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", "kubelet.service")
	n.answers()
	return n, "/srv/0.0.1" + suffix, "/srv/0.0.2" + suffix
}

// gated wants kubelet's unit to run gpuadm before it, or not to.
func (n node) gated(want bool) {
	n.t.Helper()
	check.Equal(n.t, strings.Contains(n.Property("kubelet.service", "ExecStartPre"), "/usr/bin/gpuadm"), want, "kubelet waits for the gate:")
}

// cycle installs a package, applies a spec, boots, upgrades and removes, each by a command.
func (n node) cycle(install, upgrade, remove string) {
	n.t.Helper()
	n.Must("sh", "-ec", install)
	n.gated(true)
	for _, unit := range []string{bootUnit, "gpuadm-ready.service", "gpuadm-spec.path"} {
		is := n.Property(unit, "UnitFileState")
		check.That(n.t, is == "enabled", "%s is %s after the installation", unit, is)
	}

	n.Must("systemctl", "restart", "kubelet.service") // a machine without a spec has an open gate
	n.Put(specFile, specText, 0o644)
	n.gpuadm(0, "apply")
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	if !strings.Contains(n.Journal(bootUnit), "Nothing to do") {
		n.t.Errorf("the boot unit's log:\n%s", n.Journal(bootUnit))
	}

	n.Must("systemctl", "disable", "gpuadm-ready.service")
	before := n.MainPID("kubelet.service")
	n.Must("sh", "-ec", upgrade)
	n.gated(true)
	check.That(n.t, n.MainPID("kubelet.service") == before && n.Property(bootUnit, "ActiveState") == "active", "the upgrade restarted kubelet or stopped the boot unit")
	is := n.Property("gpuadm-ready.service", "UnitFileState")
	check.That(n.t, is == "disabled", "the upgrade made %s of a unit that the operator had disabled", is)

	n.Must("systemctl", "kill", "--signal=KILL", "kubelet.service") // it is about to restart, by the gate's Restart=
	n.Must("sh", "-ec", remove)
	n.gated(false)
	check.None(n.t, n.Exec("sh", "-c", "ls -d /usr/bin/gpuadm /usr/lib/systemd/system/gpuadm* "+gateFile+" 2>/dev/null | grep -v gpuadm-lab").Stdout, "the removal left")
	n.Must("systemctl", "restart", "kubelet.service")
	n.active("kubelet.service", "active")
	check.Has(n.t, n.Must("ls", state), "journal", "the removal took the journal:")
}

// TestLabPackages: gpuadm comes as a package, converges the machine at boot, is upgraded while
// kubelet runs, and goes without leaving kubelet a gate.
func TestLabPackages(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.DistsFor(t) {
		t.Run(dist, func(t *testing.T) {
			t.Parallel()
			n, older, newer := packagesNode(t, dist, "_"+runtime.GOARCH+".deb")
			n.cycle("dpkg --install "+older, "dpkg --install "+newer, "dpkg --remove gpuadm")
			n.Must("dpkg", "--purge", "gpuadm")
			left := n.Exec("sh", "-c", "ls -d "+state+" /etc/systemd/system/*.wants/gpuadm* /etc/gpuadm/* 2>/dev/null").Stdout
			check.That(t, strings.TrimSpace(left) == specFile, "the purge left %q, want the operator's spec", left)
		})
	}

	t.Run(lab.RHELish, func(t *testing.T) {
		t.Parallel()
		n, older, newer := packagesNode(t, lab.RHELish, ".rpm")
		// The host's C library and shell are Debian's, of which rpm knows nothing.
		n.cycle("rpm --install --nodeps "+older, "rpm --upgrade --nodeps "+newer, "rpm --erase gpuadm")
		check.None(t, n.Exec("sh", "-c", "ls -d /etc/systemd/system/*.wants/gpuadm* 2>/dev/null").Stdout, "the removal left")
	})
}
