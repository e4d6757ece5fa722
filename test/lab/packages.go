// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuadm/gpuadm/test/must"
)

// RepoDir is where a host has the folder of Options.Repos.
const RepoDir = "/srv/repo"

// AptState is the states of Debian's packages, by name, as dpkg-query and apt-mark say: "VERSION[
// held][ auto][ STATUS]", where STATUS is dpkg's word for a package that is not installed properly,
// such as half-configured. A package of which only the configuration is left is missing, as is one
// that was never there.
func (h *Host) AptState() map[string]string {
	h.t.Helper()
	marks := map[string]string{}
	for _, mark := range [][2]string{{"showhold", " held"}, {"showauto", " auto"}} {
		for name := range strings.FieldsSeq(h.Must("apt-mark", mark[0])) {
			marks[name] += mark[1]
		}
	}
	state := map[string]string{}
	out := h.Must("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Status}\n")
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 3 || f[2] == "config-files" || f[2] == "not-installed" {
			continue
		}
		state[f[0]] = f[1] + marks[f[0]]
		if f[2] != "installed" {
			state[f[0]] += " " + f[2]
		}
	}
	return state
}

// RpmState is the states of RPM packages, by name, as rpm, dnf versionlock and dnf repoquery say:
// "[EPOCH:]VERSION[ held][ auto]".
func (h *Host) RpmState() map[string]string {
	h.t.Helper()
	state := map[string]string{}
	for line := range strings.Lines(h.Must("rpm", "-qa", "--queryformat", "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\n")) {
		if name, version, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			state[name] = strings.TrimPrefix(version, "0:")
		}
	}
	reasons := h.Must("dnf", "-q", "-C", "--disablerepo=*", "repoquery", "--installed", "--queryformat", "%{name} %{reason}")
	locked := h.Must("dnf", "-q", "-C", "--disablerepo=*", "versionlock", "list")
	for name, version := range state {
		lock := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `-(\d+):` + regexp.QuoteMeta(version[strings.Index(version, ":")+1:]) + `\.`)
		if lock.MatchString(locked) {
			state[name] += " held"
		}
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (user|unknown)$`).MatchString(reasons) {
			state[name] += " auto"
		}
	}
	return state
}

// Only keeps the packages with a name that matches a pattern of path.Match.
func Only(state map[string]string, patterns ...string) map[string]string {
	some := map[string]string{}
	for name, is := range state {
		for _, pattern := range patterns {
			if ok, _ := filepath.Match(pattern, name); ok {
				some[name] = is
			}
		}
	}
	return some
}

// KillInside kills with signal 9 all processes of the host with this command name, and returns how
// many there were. It waits until they are gone.
func (h *Host) KillInside(comm string) int {
	h.t.Helper()
	pids := strings.Fields(h.Exec("pgrep", "--exact", comm).Stdout)
	if len(pids) == 0 {
		return 0
	}
	h.Exec(append([]string{"kill", "-9"}, pids...)...) // one may have ended by itself
	ended := func() bool {
		return h.Exec("ps", "--no-headers", "-o", "pid", "-p", strings.Join(pids, ",")).Exit != 0
	}
	must.That(h.t, Until(patience, ended), "cannot kill %s: %v do not go", comm, pids)
	return len(pids)
}

// WaitFor waits until the host has a file.
func (h *Host) WaitFor(name string) {
	h.t.Helper()
	must.That(h.t, Until(patience, func() bool { return h.Exec("test", "-e", name).Exit == 0 }), "cannot see %s: it does not come within %s", name, patience)
}

// Task is a command that runs in the host while the test goes on.
type Task struct {
	h      *Host
	done   chan struct{}
	result Result
	err    error
}

// Go starts a command in the host, as root. Wait is to be called before the test ends.
func (h *Host) Go(argv ...string) *Task {
	task := &Task{h: h, done: make(chan struct{})}
	go func() {
		defer close(task.done)
		task.result, task.err = h.try(nil, argv...)
	}()
	return task
}

// Wait waits for its end.
func (t *Task) Wait() Result {
	t.h.t.Helper()
	<-t.done
	must.OK(t.h.t, t.err)
	return t.result
}

// TreeOutsideCaches is the whole of /etc, /usr, /opt, /boot, /srv and /var, without logs and caches
// and without what apt, dpkg, rpm and dnf rewrite at each of their runs: for those there are
// AptState and RpmState.
func (h *Host) TreeOutsideCaches() Tree {
	h.t.Helper()
	return h.Tree([]string{"/etc", "/usr", "/opt", "/boot", "/srv", "/var"},
		"/var/lib/apt", "/var/lib/dpkg", "/var/lib/rpm", "/usr/lib/sysimage/rpm", "/var/lib/dnf", "/etc/ld.so.cache", "/var/lib/dkms/mok.key",
		"/var/lib/dkms/mok.pub", "/usr/lib/udev/hwdb.bin")
}
