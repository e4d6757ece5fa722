// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
)

// locked reports that another process holds a lock of apt or dpkg.
type locked struct {
	cause error
	who   string // process 4711 (apt-get upgrade) holds /var/lib/dpkg/lock-frontend
}

func (l *locked) Error() string { return l.cause.Error() }
func (l *locked) Unwrap() error { return l.cause }

// What apt 2.x and dpkg 1.2x say, with LC_ALL=C.
var (
	sayLock    = pattern.Of(`(?m)^(?:E: Could not get lock|E: Unable to acquire|E: Unable to lock|dpkg: error: dpkg .*lock (?:was|is) locked)`)
	sayWaits   = pattern.Of(`Waiting for cache lock: Could not get lock [^\n]*\s*$`) // its last words
	sayWhich   = pattern.Of(`Could not get lock (/[^\s]*[^.\s])|lock \((/[^)]+)\)|(dpkg \S* ?lock)`)
	sayHolder  = pattern.Of(`(?:held by process|with pid) (\d+)(?: \(([^)]*)\))?`)
	sayBroken  = pattern.Of(`(?m)^dpkg: error processing (?:package|archive) (\S+)`)
	sayNoSpace = pattern.Of(`(?m)^.*(?:You don't have enough free space in|No space left on device|Disk quota exceeded).*$`)
	sayError   = pattern.Of(`(?m)^E: .*$`)
	sayLog     = pattern.Of(`Consult (/var/lib/dkms/\S+/make\.log)`)
	saySetting = pattern.Of(`(?m)^(?:Setting up|Unpacking|Preparing to unpack|Removing|Purging configuration files for|Processing triggers for) (\S+) .*$`)
)

// explain turns the words of apt or dpkg that failed into what a person can act on.
func explain(v host.View, out string, err error) error {
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	said := failed.Stderr
	t := &converge.Trouble{Err: err}
	switch {
	case sayLock().MatchString(said), sayWaits().MatchString(out) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)):
		return explainLock(v, said+"\n"+out, err)
	case sayNoSpace().MatchString(said + "\n" + out):
		t.What = "cannot install packages: the disk is full: " + clean(sayNoSpace().FindString(said+"\n"+out))
		t.Try = []string{"make room (apt-get clean frees what apt has downloaded), then run the same command again"}
	case strings.Contains(said, "dpkg was interrupted"):
		t.What = "cannot install packages: dpkg was interrupted in an earlier run"
		t.Try = []string{"run gpuadm apply again, which lets dpkg finish first", "or: dpkg --configure -a"}
	case sayBroken().MatchString(said):
		explainScript(t, out, said)
		compilerSays(v, t, said+"\n"+out)
	case strings.Contains(said, "exited unexpectedly") || strings.Contains(said, "received signal") || strings.Contains(said, "received a segmentation fault"):
		t.What = "cannot install packages: dpkg was killed in its midst"
		t.Because = sayError().FindAllString(said, 4)
		t.Try = []string{"journalctl -k, which says whether the kernel ran out of memory"}
	case sayHash().MatchString(said):
		explainMismatch(t, sayError().FindAllString(said, 4))
	default:
		t.What = "cannot run apt: " + firstWords(said, err)
		if t.Because = unmet(out); len(t.Because) > 0 {
			t.What = "cannot install packages: " + t.Because[0]
		}
		if strings.Contains(said, "Failed to fetch") {
			t.Try = []string{"apt-get update, if the repository has changed since", "see that the repository can be reached from this machine"}
			if proxy := deadProxy(said); proxy != "" {
				t.What = "cannot fetch packages: the proxy " + proxy + " does not answer"
				t.Because = sayError().FindAllString(said, 1)
				_, t.Try = unreached(said, aptSettings, "")
			}
		}
	}
	if len(t.Try) == 0 {
		t.Try = []string{"apt-get check, which says whether anything is broken", "apt-cache policy PACKAGE, which says what is to be had, and from where"}
	}
	return t
}

func clean(line string) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "E: "), ".")
}

// firstWords is what apt names as the error, or the command's own words.
func firstWords(said string, err error) string {
	if all := sayError().FindAllString(said, 3); len(all) > 0 {
		for i := range all {
			all[i] = clean(all[i])
		}
		return strings.Join(all, "; ")
	}
	return err.Error()
}

// explainLock names who holds the lock, as far as the process is still there.
func explainLock(v host.View, said string, err error) error {
	lock := ""
	if m := sayWhich().FindStringSubmatch(said); m != nil {
		lock = cmp.Or(m[1], m[2], m[3])
	}
	who := "another process"
	if m := sayHolder().FindStringSubmatch(said); m != nil {
		who = "process " + m[1]
		command := m[2]
		who += commandOf(v, m[1], command)
	}
	if lock != "" {
		who += " holds " + lock
	}
	return &converge.Trouble{
		What: "cannot install packages: " + who,
		Try:  []string{"wait until it is done, then run the same command again; never remove the lock file"},
		Err:  &locked{err, who},
	}
}

// commandOf says in parentheses what a process was called with, or its name where that cannot be read: " (apt-get upgrade)".
func commandOf(v host.View, pid, name string) string {
	const most = 120
	if argv, err := v.ReadFile("/proc/" + pid + "/cmdline"); err == nil && len(argv) > 0 {
		name = strings.Join(strings.Fields(strings.ReplaceAll(string(argv), "\x00", " ")), " ")
	}
	if r := []rune(name); len(r) > most {
		name = string(r[:most]) + "…"
	}
	if name == "" {
		return ""
	}
	return " (" + name + ")"
}

// explainScript names the packages that failed, with the last words of their scripts.
func explainScript(t *converge.Trouble, out, said string) {
	var names []string
	for _, m := range sayBroken().FindAllStringSubmatch(said, -1) {
		names = append(names, m[1])
	}
	names = slices.Compact(names)
	t.What = fmt.Sprintf("cannot install package %s: its script failed", names[0])
	if len(names) > 1 {
		t.What += fmt.Sprintf(", and %s cannot be configured without it", strings.Join(names[1:], ", "))
	}
	// What scripts say goes to either stream. On standard output it stands between dpkg's own lines.
	last := ""
	for _, at := range saySetting().FindAllStringSubmatchIndex(out, -1) {
		if out[at[2]:at[3]] == names[0] {
			last = out[at[1]:]
			if next := saySetting().FindStringIndex(last); next != nil {
				last = last[:next[0]]
			}
		}
	}
	words := tail(last, 6)
	at := sayBroken().FindStringIndex(said)
	words = append(words, tail(said[:at[0]], 6)...)
	words = append(words, lines(said[at[0]:])[:min(2, strings.Count(said[at[0]:], "\n")+1)]...)
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	t.Because = slices.DeleteFunc(words, func(l string) bool { return l == "" || strings.HasPrefix(l, "E: ") })
	t.Try = []string{"/var/log/apt/term.log, which has all that it said"}
}

// compilerSays adds what stopped a build by DKMS: its log goes with the package when that is put back.
func compilerSays(v host.View, t *converge.Trouble, said string) {
	m := sayLog().FindStringSubmatch(said)
	if m == nil {
		return
	}
	if log, err := v.ReadFile(m[1]); err == nil {
		if first := things.FirstError(string(log)); first != "" {
			t.Because = append([]string{first}, t.Because...)
		}
	}
}

// tail returns the last n lines.
func tail(text string, n int) []string {
	all := lines(text)
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all[max(0, len(all)-n):]
}

// unmet returns what apt says about dependencies that cannot be met.
func unmet(out string) []string {
	_, after, ok := strings.Cut(out, "The following packages have unmet dependencies:\n")
	if !ok {
		return nil
	}
	var because []string
	for line := range strings.Lines(after) {
		if !strings.HasPrefix(line, " ") || len(because) == 10 {
			break
		}
		because = append(because, strings.Join(strings.Fields(line), " "))
	}
	return because
}
