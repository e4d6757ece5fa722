// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// What dnf 4 and rpm 4 say, with LC_ALL=C.
var (
	sayDnfLock   = pattern.Of(`(?m)(\S+) already locked by (\d+)|can't create transaction lock on (\S+)`)
	sayDnfError  = pattern.Of(`(?m)^Error: .*$|^error: .*$`)
	sayUnmatched = pattern.Of(`(?m)^(?:No match for argument: (\S+)|Unable to find a match|All matches were filtered out by (\w+) filtering for argument: (\S+)|Package (\S+) not available.*|Installed package (\S+) .*not available.*|Error: Unable to find a match.*|Error: No packages? marked.*)`)
	sayDnfSpace  = pattern.Of(`(?m)At least (\S+) more space needed on the (\S+) filesystem|No space left on device`)
	sayDnfKey    = pattern.Of(`(?m)^.*(?:GPG check FAILED|Public key for .* is not installed|Failing package is:.*|didn't help, wrong key.*|GPG key at .* is already installed.*|not signed).*$`)
	sayProblem   = pattern.Of(`(?m)^\s+(?:Problem(?: \d+)?: |- ).*$`)
	sayRunning   = pattern.Of(`(?m)^  (?:Preparing|Running scriptlet|Installing|Upgrading|Downgrading|Reinstalling|Obsoleting|Erasing|Cleanup|Verifying) *: .*$`)
)

// dnfSettings is where dnf is told of a proxy.
const dnfSettings = "proxy in /etc/dnf/dnf.conf"

// explainDnf turns the words of dnf or rpm that failed into what a person can act on.
func explainDnf(v host.View, out string, err error) error {
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	said := failed.Stderr + "\n" + out
	if m := sayDnfLock().FindStringSubmatch(said); m != nil {
		return dnfBusy(v, m, err)
	}
	if broken := scriptsRan(said, nil); broken != nil {
		return broken
	}
	t := &converge.Trouble{Err: err}
	switch {
	case sayDnfSpace().MatchString(said):
		t.What = "cannot install packages: the disk is full: " + strings.TrimSpace(sayDnfSpace().FindString(said))
		t.Try = []string{"make room (dnf clean packages frees what dnf has downloaded), then run the same command again"}
	case sayDnfKey().MatchString(said):
		t.What = "cannot install packages: a package is not signed with its repository's key"
		for _, l := range sayDnfKey().FindAllString(said, 5) {
			t.Because = append(t.Because, strings.TrimSpace(l))
		}
		t.Try = []string{"see that nobody has changed the repository", "if it is a mirror: mirror it again"}
	case sayDnfHash().MatchString(said):
		explainMismatch(t, tail(failed.Stderr, 6))
	case sayUnmatched().MatchString(said):
		t.What = "cannot install packages: " + strings.TrimPrefix(sayUnmatched().FindString(said), "Error: ")
		t.Try = []string{"dnf makecache --refresh, if the repository has changed since"}
	case sayProblem().MatchString(said):
		for _, l := range sayProblem().FindAllString(said, 10) {
			t.Because = append(t.Because, strings.Join(strings.Fields(l), " "))
		}
		t.What = "cannot install packages: " + t.Because[0]
	default:
		t.What = "cannot run dnf: " + dnfWords(said, err)
		if strings.Contains(said, "Failed to download") || strings.Contains(said, "Error downloading packages") {
			t.Because = tail(failed.Stderr, 6)
			t.Try = []string{"see that the repository can be reached from this machine", "dnf makecache --refresh, if the repository has changed since"}
			if proxy := deadProxy(said); proxy != "" {
				t.What = "cannot fetch packages: the proxy " + proxy + " does not answer"
				_, t.Try = unreached(said, dnfSettings, "")
			}
		}
	}
	if len(t.Try) == 0 {
		t.Try = []string{"dnf check, which says whether anything is broken", "dnf repoquery --showduplicates PACKAGE, which says what is to be had"}
	}
	return t
}

// dnfWords is what dnf names as the error, or the command's own words.
func dnfWords(said string, err error) string {
	all := sayDnfError().FindAllString(said, 3)
	if len(all) == 0 {
		return err.Error()
	}
	for i, l := range all {
		all[i] = strings.TrimSuffix(strings.TrimSpace(l[len("Error: "):]), ".")
	}
	return strings.Join(slices.Compact(all), "; ")
}

// dnfBusy names who holds a lock, as far as the process is still there.
func dnfBusy(v host.View, m []string, err error) error {
	who := "another process"
	if pid := m[2]; pid != "" {
		who = "process " + pid + commandOf(v, pid, "") + " holds dnf's lock"
	} else {
		who += " holds " + m[3]
	}
	return &converge.Trouble{
		What: "cannot install packages: " + who,
		Try:  []string{"wait until it is done, then run the same command again; never remove the lock file"},
		Err:  &locked{err, who},
	}
}

// scriptsRan returns an error if a script failed of a package that is installed: dnf goes on and exits with 0. changes
// say which are; nil means all that fail. A script of what goes away is not counted: it is gone all the same.
func scriptsRan(out string, changes []converge.Change) error {
	all := sayScript().FindAllStringSubmatchIndex(out, -1)
	for _, m := range all {
		script, what, how := out[m[2]:m[3]], out[m[4]:m[5]], out[m[6]:m[7]]
		if changes != nil && !slices.ContainsFunc(changes, func(c converge.Change) bool {
			st := Parse(c.After)
			return st.Installed() && strings.HasPrefix(withoutEpoch(what), withoutEpoch(named(c.Name, st.Version)))
		}) {
			continue
		}
		t := &converge.Trouble{What: fmt.Sprintf("cannot install package %s: its script %%%s failed, %s", what, script, how)}
		before := out[:m[0]]
		if running := sayRunning().FindAllStringIndex(before, -1); len(running) > 0 {
			before = before[running[len(running)-1][1]:]
		}
		for _, l := range tail(before, 6) {
			if l != "" {
				t.Because = append(t.Because, l)
			}
		}
		t.Because = append(t.Because, "dnf itself goes on after such a failure")
		t.Try = []string{"dnf history info last, which has all that it said"}
		return t
	}
	return nil
}
