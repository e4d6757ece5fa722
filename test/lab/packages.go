// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"path/filepath"
	"regexp"
	"strings"
)

// RepoDir is where a host has the folder of Options.Repos.
const RepoDir = "/srv/repo"

// AptState is the states of Debian's packages, by name, as dpkg-query and apt-mark say: "VERSION[
// held][ auto][ STATUS]", where STATUS is dpkg's word for a package that is not installed properly,
// such as half-configured. A package of which only the configuration is left is missing, as is one
// that was never installed.
func (h *Host) AptState() map[string]string {
	h.t.Helper()
	marks := map[string]string{}
	for name := range strings.FieldsSeq(h.Must("apt-mark", "showhold")) {
		marks[name] += " held"
	}
	for name := range strings.FieldsSeq(h.Must("apt-mark", "showauto")) {
		marks[name] += " auto"
	}

	states := map[string]string{}
	out := h.Must("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Status}\n")
	for line := range strings.Lines(out) {
		field := strings.Split(strings.TrimSpace(line), "\t")
		if len(field) != 3 {
			continue
		}
		name, version, status := field[0], field[1], field[2]
		switch status {
		case "config-files", "not-installed":
		case "installed":
			states[name] = version + marks[name]
		default:
			states[name] = version + marks[name] + " " + status
		}
	}

	return states
}

// RpmState is the states of RPM packages, by name, as rpm, dnf versionlock and dnf repoquery say:
// "[EPOCH:]VERSION[ held][ auto]".
func (h *Host) RpmState() map[string]string {
	h.t.Helper()
	states := map[string]string{}
	installed := h.Must("rpm", "-qa", "--queryformat", "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\n")
	for line := range strings.Lines(installed) {
		name, version, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if ok {
			states[name] = strings.TrimPrefix(version, "0:")
		}
	}

	dnf := []string{"dnf", "-q", "-C", "--disablerepo=*"}
	reasons := h.Must(append(dnf, "repoquery", "--installed", "--queryformat", "%{name} %{reason}")...)
	locks := h.Must(append(dnf, "versionlock", "list")...)
	for name, version := range states {
		if isLocked(locks, name, version) {
			states[name] += " held"
		}
		asked := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (user|unknown)$`)
		if !asked.MatchString(reasons) {
			states[name] += " auto"
		}
	}

	return states
}

// isLocked says whether dnf's list of locks has a version of a package.
func isLocked(locks, name, version string) bool {
	bare := version[strings.Index(version, ":")+1:] // without the epoch
	lock := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `-(\d+):` + regexp.QuoteMeta(bare) + `\.`)
	return lock.MatchString(locks)
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

// TreeOutsideCaches is the whole of /etc, /usr, /opt, /boot, /srv and /var, without logs and caches
// and without what apt, dpkg, rpm and dnf rewrite at each of their runs: AptState and RpmState
// compare that.
func (h *Host) TreeOutsideCaches() Tree {
	h.t.Helper()
	return h.Tree([]string{"/etc", "/usr", "/opt", "/boot", "/srv", "/var"},
		"/var/lib/apt", "/var/lib/dpkg",
		"/var/lib/rpm", "/usr/lib/sysimage/rpm", "/var/lib/dnf",
		"/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub",
		"/etc/ld.so.cache", "/usr/lib/udev/hwdb.bin")
}
