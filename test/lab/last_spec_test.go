// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// oneTry is a kubelet that systemd does not start again: an operator's drop-in, after gpuadm's.
const oneTry = "[Service]\nRestart=no\n"

// logs waits until a unit's log says all this: journald may be behind the unit.
func (n node) logs(unit string, parts ...string) {
	n.t.Helper()
	says := func() bool {
		log := n.Journal(unit)
		missing := func(part string) bool { return !strings.Contains(log, part) }
		return !slices.ContainsFunc(parts, missing)
	}

	check.That(n.t, eventually(says), "the log of %s does not say %q:\n%s", unit, parts, n.Journal(unit))
}

// TestLabLastSpec: a typing error in node.toml does not take a node away. Before the first apply the
// gate stays closed, with the cause; the apply after the fix clears what had failed and starts
// kubelet. After an apply the boot goes by its spec, and the drift unit says so before that.
func TestLabLastSpec(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	n.gpuadm(0, "apply", "--install")
	n.Must("rm", "/var/lib/gpuadm/last-spec.toml") // as if the first apply had not ended well

	n.Put(specFile, specText+"[[[\n", 0o644)
	n.Put("/etc/systemd/system/kubelet.service.d/60-operator.conf", oneTry, 0o644)
	n.Reboot()
	n.active(bootUnit, "failed")
	n.active("kubelet.service", "failed")
	const why = "no apply of node.toml has ended well on this machine, so there is no spec to go by instead"
	n.logs(bootUnit, specFile, why)
	n.logs("kubelet.service", "cannot let kubelet start: "+specFile)
	out := n.gpuadm(3, "doctor")
	t.Logf("doctor: %s", out)
	check.Says(t, out.Stdout, "! ADM-001", "explains    ADM-002", "1 root cause")

	n.Put(specFile, specText, 0o644)
	out = n.gpuadm(0, "apply")
	check.Says(t, out.Stdout, "No longer failed: ", bootUnit, "kubelet.service")
	n.active("kubelet.service", "active")
	failed := n.Must("systemctl", "--failed", "--plain", "--no-legend")
	check.None(t, strings.TrimSpace(failed), "after the fix systemd still lists")

	n.Must("rm", "/etc/systemd/system/kubelet.service.d/60-operator.conf")
	n.Put(specFile, specText+"[[[\n", 0o644)
	n.gpuadm(2, "apply")
	drift := n.Exec("systemctl", "start", "gpuadm-drift.service")
	check.That(t, drift.Exit != 0, "the drift unit says nothing of the spec")
	n.logs("gpuadm-drift.service", "the next boot goes by the last applied spec")
	before := n.files()
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("gpuadm-ready.service", "active")
	n.active("kubelet.service", "active")
	check.None(t, before.Diff(n.files()), "the boot has changed")
	n.logs(bootUnit, "this boot goes by the last applied spec", specFile)
	out = n.gpuadm(2, "status")
	check.Says(t, out.Stdout, "node.toml cannot be used. This is the state by the last applied spec")
	out = n.gpuadm(3, "doctor")
	check.Says(t, out.Stdout, "! ADM-001", "a boot goes by the last applied spec", "1 root cause")

	n.Put(config, "version = 2\n", 0o644) // a boot makes this again, by the same spec
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	n.configured()

	n.Must("rm", specFile)
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	n.logs(bootUnit, "was removed: gpuadm leaves this machine as it is")
	gone := n.Exec("test", "-e", "/var/lib/gpuadm/last-spec.toml")
	must.That(t, gone.Exit != 0, "the spec of a removed node.toml is still kept")
}
