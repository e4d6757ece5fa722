// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// denial is one way in which root may not do what root does.
type denial struct {
	name string
	// make prepares the host, by is what gpuadm apply is run by.
	make func(node)
	by   []string
	exit int
	says []string
}

// TestLabDenied: a process of root's that lacks a capability, may not make a system call, or sees a read-only file system
// gets a message with which it is and what to do; nothing is half done; and in a shell of root's the next apply does it all.
// SELinux cannot be shown here: the hosts share the kernel of the machine they run on. See TestConfined for its words.
func TestLabDenied(t *testing.T) {
	t.Parallel()
	for _, d := range denials() {
		t.Run(strings.ReplaceAll(d.name, " ", "-"), func(t *testing.T) {
			either(t, func(t *testing.T, o lab.Options) { d.test(boot(t, o)) })
		})
	}
}

func (d denial) test(n node) {
	n.t.Helper()
	if d.make != nil {
		d.make(n)
	}
	before, inside, pid := n.files(), n.engineFiles(), n.MainPID(daemon)
	r := n.Exec(append(d.by, "gpuadm", "apply")...)
	n.t.Logf("apply: %s", r)
	if r.Exit != d.exit {
		n.t.Errorf("exit %d, want %d", r.Exit, d.exit)
	}
	for _, words := range d.says {
		if !strings.Contains(r.Stdout+r.Stderr, words) {
			n.t.Errorf("it does not say %q", words)
		}
	}
	if d.exit == 1 { // killed, it leaves what the next run sweeps
		if diff := before.Diff(n.files()); diff != "" {
			n.t.Errorf("half done:\n%s", diff)
		}
		if now := n.engineFiles(); now != inside {
			n.t.Errorf("half done: %s, was %s", now, inside)
		}
		if now := n.MainPID(daemon); now != pid {
			n.t.Errorf("containerd's process is %d, was %d", now, pid)
		}
	}
	n.gpuadm(0, "apply")
	n.configured()
	n.working()
	if left := n.leftovers(); len(left) > 0 {
		n.t.Errorf("left behind: %v", left)
	}
	n.gpuadm(0, "status")
}

func denials() []denial {
	// unit runs a command as a unit with some properties, its output and its exit code passed on.
	unit := func(properties ...string) []string {
		argv := []string{"systemd-run", "--quiet", "--wait", "--pipe"}
		for _, p := range properties {
			argv = append(argv, "--property="+p)
		}
		return argv
	}
	const fix = "try      run it without these limits"
	notRoots := func(n node) {
		n.t.Helper()
		n.Must("chown", "-R", "daemon:daemon", "/etc/containerd")
		n.Must("chmod", "700", "/etc/containerd")
	}
	return []denial{
		{
			name: "no capability to override owners", make: notRoots,
			by:   []string{"setpriv", "--bounding-set", "-sys_admin,-dac_override,-dac_read_search", "--inh-caps", "-all"},
			exit: 1, says: []string{"/etc/containerd", "permission denied", "lacks the capabilities CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN", fix},
		},
		{
			name: "no capability to change owners", make: notRoots,
			by:   unit("CapabilityBoundingSet=~CAP_CHOWN"),
			exit: 1, says: []string{"cannot write " + config, "owner", "operation not permitted", "lacks the capabilities CAP_CHOWN (", fix},
		},
		{
			// Root's own files need none, and systemd takes root's word.
			name: "no capabilities and root's own files", by: unit("CapabilityBoundingSet=", "NoNewPrivileges=yes"),
			exit: 0, says: []string{"2 changes made"},
		},
		{
			name: "everything is read-only", by: unit("ProtectSystem=strict"),
			exit: 1, says: []string{"read-only file system", "its own mount namespace", "ProtectSystem=", fix},
		},
		{
			name: "etc is read-only for the unit", by: unit("ReadOnlyPaths=/etc", "NoNewPrivileges=yes"),
			exit: 1, says: []string{"cannot write " + config, "read-only file system", "ReadOnlyPaths=", fix},
		},
		{
			name: "no renaming", by: unit("SystemCallFilter=~rename renameat renameat2", "SystemCallErrorNumber=EPERM"),
			exit: 1, says: []string{"operation not permitted", "a seccomp filter", fix},
		},
		{
			// Without an error number the kernel ends the process at such a call, with SIGSYS: it cannot say anything.
			name: "killed for renaming", by: unit("SystemCallFilter=~rename renameat renameat2"),
			exit: 255, // systemd-run's for a signal
		},
		{
			name: "no way to systemd", by: unit("RestrictAddressFamilies=AF_INET", "NoNewPrivileges=yes"),
			exit: 1, says: []string{"systemd does not answer", "address family not supported", "a seccomp filter", fix},
		},
	}
}
