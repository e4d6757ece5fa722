// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// trouble is one way in which a machine is not as it should be.
type trouble struct {
	name string
	// make brings the trouble about, fix ends it; neither where it is in the way that apply is run.
	make, fix func(node)
	// exit and says are what apply has to answer: the words shall be in its output.
	exit int
	says []string
	// never are words that it must not say.
	never []string
	// refused: it knows before it touches anything, so not even a file's time is another.
	refused bool
	// restarts: it does the job, restart included.
	restarts bool
	// apply is the command, if it is not plain gpuadm apply.
	apply []string
}

// TestLabTrouble: on a machine with a trouble gpuadm says which it is, exits as the caller must
// know, leaves nothing half done, and once the trouble is fixed the next apply does it all.
func TestLabTrouble(t *testing.T) {
	t.Parallel()
	for _, tr := range slices.Concat(troubles(), denials()) {
		t.Run(strings.ReplaceAll(tr.name, " ", "-"), func(t *testing.T) {
			either(t, func(t *testing.T, o lab.Options) {
				n := boot(t, o)
				if tr.make != nil {
					tr.make(n)
				}
				before, inside, pid := n.files(), n.engineFiles(), n.MainPID(daemon)
				if tr.apply == nil {
					tr.apply = []string{"gpuadm", "apply"}
				}
				r := n.Exec(tr.apply...)
				t.Logf("apply: %s", r)
				check.That(t, r.Exit == tr.exit, "exit %d, want %d", r.Exit, tr.exit)
				check.Says(t, r.Stdout+r.Stderr, tr.says...)
				for _, words := range tr.never {
					check.That(t, !strings.Contains(r.Stdout+r.Stderr, words), "it says %q", words)
				}
				after := n.files()
				diff := before.Diff(after)
				check.That(t, diff == "" || tr.exit != 1, "half done:\n%s", diff)
				now := n.engineFiles()
				check.That(t, now == inside || tr.exit != 1, "half done: %s, was %s", now, inside)
				diff = before.Touched(after)
				check.That(t, diff == "" || !tr.refused, "touched:\n%s", diff)
				if now := n.MainPID(daemon); now != pid && !tr.restarts {
					t.Errorf("containerd's process is %d, was %d", now, pid)
				}
				if tr.fix != nil {
					tr.fix(n)
				}
				n.gpuadm(0, "apply")
				n.configured()
				n.working()
				left := n.leftovers()
				check.That(t, len(left) == 0, "left behind: %v", left)
				n.gpuadm(0, "status")
			})
		})
	}
}

// engineFiles are containerd's files as the host sees them; Tree does not see what is mounted
// there.
func (n node) engineFiles() string {
	n.t.Helper()
	return n.Must("find", "/etc/containerd", "-type", "f", "-exec", "sha256sum", "{}", "+")
}

func troubles() []trouble {
	must := func(argv ...string) func(node) {
		return func(n node) {
			n.t.Helper()
			n.Must(argv...)
		}
	}

	all := func(steps ...func(node)) func(node) {
		return func(n node) {
			n.t.Helper()
			for _, s := range steps {
				s(n)
			}
		}
	}
	// full mounts a small file system without room for anything, holding what the folder held.
	full := func(dir string) func(node) {
		return all(must("mkdir", "-p", dir), must("cp", "-a", dir, "/run/held"), must("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", dir),
			must("cp", "-a", "/run/held/.", dir), func(n node) {
				n.Exec("dd", "if=/dev/zero", "of="+dir+"/ballast", "bs=1k")
			})
	}

	start := func(n node) { n.t.Helper(); n.Must("systemctl", "start", daemon); n.answers() }
	return []trouble{
		{
			name: "etc is read-only",
			make: all(must("mount", "--bind", "/etc", "/etc"), must("mount", "-o", "remount,ro,bind", "/etc")),
			fix:  must("umount", "/etc"),
			exit: 1, says: []string{config, "read-only file system"},
		},
		{
			name: "etc containerd is full", make: full("/etc/containerd"), fix: must("umount", "/etc/containerd"),
			exit: 1, says: []string{config, "no space left on device"},
		},
		{
			name: "var lib gpuadm is full", make: full(state), fix: must("umount", state),
			exit: 1, says: []string{state, "no space left on device"},
		},
		{
			// Root has a way to systemd itself, so the message bus may be down.
			name: "no message bus",
			make: must("systemctl", "stop", "dbus.socket", "dbus.service"), fix: must("systemctl", "start", "dbus.socket"),
			exit: 0, says: []string{"2 changes made"}, restarts: true,
		},
		{
			name: "systemd does not answer",
			exit: 75, says: []string{daemon, "systemd does not answer"}, refused: true,
			apply: []string{
				"unshare", "--mount", "sh", "-c",
				"mount --bind /dev/null /run/systemd/private; mount --bind /dev/null /run/dbus/system_bus_socket; gpuadm apply",
			},
		},
		{
			name: "containerd is masked and runs",
			make: must("systemctl", "mask", daemon), fix: must("systemctl", "unmask", daemon),
			exit: 1, says: []string{daemon, "masked", "unmask"}, never: []string{"could not be rolled back"}, refused: true,
		},
		{
			name: "containerd is masked and stopped",
			make: must("systemctl", "mask", "--now", daemon),
			fix:  all(must("systemctl", "unmask", daemon), start),
			exit: 1, says: []string{daemon, "masked", "unmask"}, refused: true,
		},
		{
			// It was stopped on purpose. It will read its file when it starts.
			name: "containerd is stopped", make: must("systemctl", "stop", daemon), fix: start,
			exit: 0, says: []string{"1 change made"},
		},
	}
}

// denials are ways in which root may not do what root does: a process that lacks a capability, may
// not make a system call, or sees a read-only file system. In a shell of root's the next apply does
// it all. SELinux cannot be shown here: the hosts share the kernel of the machine they run on. See
// TestConfined for its words.
func denials() []trouble {
	// unit applies as a unit with some properties, its output and its exit code passed on.
	unit := func(properties ...string) []string {
		argv := []string{"systemd-run", "--quiet", "--wait", "--pipe"}
		for _, p := range properties {
			argv = append(argv, "--property="+p)
		}
		return append(argv, "gpuadm", "apply")
	}

	const fix = "try      run it without these limits"
	notRoots := func(n node) {
		n.t.Helper()
		n.Must("chown", "-R", "daemon:daemon", "/etc/containerd")
		n.Must("chmod", "700", "/etc/containerd")
	}

	return []trouble{
		{
			name: "no capability to override owners", make: notRoots,
			apply: []string{"setpriv", "--bounding-set", "-sys_admin,-dac_override,-dac_read_search", "--inh-caps", "-all", "gpuadm", "apply"},
			exit:  75, says: []string{"/etc/containerd", "permission denied", "lacks capabilities: capsh --decode=", fix},
		},
		{
			name: "no capability to change owners", make: notRoots,
			apply: unit("CapabilityBoundingSet=~CAP_CHOWN"),
			exit:  1, says: []string{"cannot write " + config, "owner", "operation not permitted", "lacks capabilities: capsh --decode=", fix},
		},
		{
			// Root's own files need none, and systemd takes root's word.
			name: "no capabilities and root's own files", apply: unit("CapabilityBoundingSet=", "NoNewPrivileges=yes"),
			exit: 0, says: []string{"2 changes made"}, restarts: true,
		},
		{
			name: "everything is read-only", apply: unit("ProtectSystem=strict"),
			exit: 1, says: []string{"read-only file system", "its own mount namespace", "ProtectSystem=", fix},
		},
		{
			name: "etc is read-only for the unit", apply: unit("ReadOnlyPaths=/etc", "NoNewPrivileges=yes"),
			exit: 1, says: []string{"cannot write " + config, "read-only file system", "ReadOnlyPaths=", fix},
		},
		{
			name: "no renaming", apply: unit("SystemCallFilter=~rename renameat renameat2", "SystemCallErrorNumber=EPERM"),
			exit: 1, says: []string{"operation not permitted", "a seccomp filter", fix},
		},
		{
			// Without an error number the kernel ends the process at such a call, with SIGSYS: it
			// cannot say anything.
			name: "killed for renaming", apply: unit("SystemCallFilter=~rename renameat renameat2"),
			exit: 255, // systemd-run's for a signal; the next run sweeps what it leaves
		},
		{
			name: "no way to systemd", apply: unit("RestrictAddressFamilies=AF_INET", "NoNewPrivileges=yes"),
			exit: 75, says: []string{"systemd does not answer", "address family not supported", "a seccomp filter", fix},
		},
	}
}
