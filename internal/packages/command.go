// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// LockWait is how long gpuadm waits for another packager's lock: unattended-upgrades at boot takes
// minutes.
const LockWait = 5 * time.Minute

// RepairLimit bounds dpkg --configure -a: it may compile a driver's modules for several kernels.
const RepairLimit = 30 * time.Minute

// Quiet adds variables to argv that keep packages' scripts from questions and restarts,
// needrestart(1), apt-listchanges(1), ucf(1), and from running more compilers than the memory
// allows: see things.BuildJobs.
func Quiet(v host.View, argv ...string) []string {
	jobs := "OMP_NUM_THREADS=" + strconv.Itoa(kmod.BuildJobs(v))
	return append([]string{"env", jobs, "NEEDRESTART_SUSPEND=1", "APT_LISTCHANGES_FRONTEND=none", "UCF_FORCE_CONFFOLD=1"}, argv...)
}

// Due returns the changes that need a new version or a repair; it leaves out changes of marks
// alone.
func Due(changes []converge.Change) (list []converge.Change) {
	for _, c := range changes {
		before, after := Parse(c.Before), Parse(c.After)
		if after.Installed() != before.Installed() || after.Installed() && (after.Version != before.Version || before.Broken != "") {
			list = append(list, c)
		}
	}
	return list
}

// Named returns the names of the changes as a set.
func Named(changes []converge.Change) map[string]bool {
	named := map[string]bool{}
	for _, c := range changes {
		named[c.Name] = true
	}
	return named
}

func Lines(text string) []string {
	return strings.Split(strings.TrimSpace(text), "\n")
}

// sayEvery is how often gpuadm names the process that it waits for.
const sayEvery = 12 * time.Second

// Patiently runs a command, and again while another process holds a packager's lock, until the wait
// has ended. It names the holder at once, and then every sayEvery. explain makes an error of the
// command's output: a Locked if a lock was held.
func Patiently(ctx context.Context, h host.Host, wait time.Duration, explain func(host.View, string, error) error, run func() ([]byte, error)) (out []byte, err error) {
	err = patiently(ctx, h, wait, time.Second, func() error {
		if out, err = run(); err != nil {
			err = explain(h, string(out), err)
		}
		return err
	})
	return out, err
}

func patiently(ctx context.Context, h host.Host, wait, pause time.Duration, run func() error) error {
	var said time.Time
	for end := h.Now().Add(wait); ; {
		err := run()
		busy := (*Locked)(nil)
		now := h.Now()
		left := end.Sub(now)
		if !errors.As(err, &busy) || left <= 0 {
			return err
		}
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, deadline.Sub(now))
		}
		if said.IsZero() || now.Sub(said) >= sayEvery {
			said = now
			converge.Say(ctx, converge.Waiting, fmt.Sprintf("%s: waiting for up to %s", busy.who, max(left, 0).Round(time.Second)))
		}
		if host.Pause(ctx, pause) != nil {
			return err
		}
	}
}

// gpuadm shows the last lines of a failed apt, dpkg, dnf or rpm unchanged. It parses only these
// messages, for which there is neither an exit code nor a file: it waits for a lock, and gives
// advice of its own for a full disk and a signature. All commands run with LC_ALL=C.
var (
	// apt: GetLock in apt-pkg/contrib/fileutl.cc, and Setup in acquire.cc; dpkg: file_lock in
	// lib/dpkg/file.c; rpm: its rpmlock source. dnf has an exit code for it.
	MarkLock = pattern.Of(`E: Could not get lock|E: Unable to lock directory|is another process using it\?|dpkg: error: dpkg .*lock was locked|can't create transaction lock on`)
	// strerror(3) of ENOSPC and EDQUOT; apt: apt-private/private-download.cc; rpm: lib/rpmprob.c;
	// dnf: dnf/base.py.
	markFull = pattern.Of(`(?m)^.*(?:No space left on device|Disk quota exceeded|You don't have enough free space in|more space (?:needed )?on the|more inodes on the).*$`)
	// apt: apt-pkg/acquire-item.cc, methods/gpgv.cc; dnf: librepo's repo metadata check,
	// dnf/base.py and dnf/cli/cli.py.
	markDistrust = pattern.Of(`GPG (?:error|signature|verification|check FAILED)|signature verification failed|signatures couldn't be verified|is not signed|is expired \(|is not valid yet|Clearsigned file isn't valid`)
)

// Locked reports that another process holds a lock of the packager.
type Locked struct {
	error
	who string // process 4711 (apt-get upgrade) holds /var/lib/dpkg/lock-frontend
}

func (l *Locked) Error() string { return l.who }
func (l *Locked) Unwrap() error { return l.error }

// Distrust reports a repository or package whose signature, key or date the packager does not
// accept.
type Distrust struct{ error }

func (d Distrust) Unwrap() error { return d.error }

const Cannot = "cannot install packages: "

// Held names the process that holds a lock, if it still runs.
func Held(v host.View, pid, lock string, err error) *Locked {
	if pid == "" {
		return &Locked{err, "another process holds " + lock}
	}
	return &Locked{err, "process " + pid + commandOf(v, pid) + " holds " + lock}
}

// Busy is the error of what needs a lock that is Held.
func Busy(v host.View, pid, lock string, err error) error {
	held := Held(v, pid, lock, err)
	return &trouble.Error{What: Cannot + held.who, Try: []string{"wait until it is done, then run the same command again; never remove the lock file"}, Err: held}
}

// commandOf returns a process's command line in parentheses: " (apt-get upgrade)"; "" if it cannot
// be read.
func commandOf(v host.View, pid string) string {
	const most = 120
	argv, err := v.ReadFile("/proc/" + pid + "/cmdline")
	r := []rune(strings.Join(strings.Fields(strings.ReplaceAll(string(argv), "\x00", " ")), " "))
	if err != nil || len(r) == 0 {
		return ""
	}
	if len(r) > most {
		r = append(r[:most], '…')
	}
	return " (" + string(r) + ")"
}

// Failure describes a packager's failure with the packager's own lines. known says whether the
// cause is a full disk or a signature.
func Failure(v host.View, failed *host.CommandError, out string, err error) (t *trouble.Error, known bool) {
	said, late := failed.Stderr+"\n"+out, host.OverLimit{}
	t = &trouble.Error{Because: Tail(failed.Stderr, 6), Err: err}
	switch { // what was ended may name another cause than these: memory, a compiler that was killed
	case errors.As(err, &late):
		t.What = fmt.Sprintf("%s%s gave no answer within %s, and gpuadm ended it", Cannot, program(failed.Argv), late.Limit)
		t.Try = []string{"see what keeps the machine's processors or disks busy (top, vmstat 1), then run the same command again"}
	case errors.Is(err, context.DeadlineExceeded):
		t.What = Cannot + "they were not installed within --deadline, and " + program(failed.Argv) + " was ended"
	case markFull().MatchString(said):
		full := clean(markFull().FindString(said))
		t.What = Cannot + "the disk is full: " + full
		t.Because = slices.DeleteFunc(t.Because, func(l string) bool { return clean(l) == full })
		t.Try = []string{"make room (apt-get clean or dnf clean packages frees what was downloaded), then run the same command again"}
	case markDistrust().MatchString(said):
		t.What = Cannot + "the signature, key or date of a repository or package is not accepted"
		t.Try = []string{
			"look up the key's fingerprint at the vendor's, and give that key in the spec if it has changed",
			"if it is a mirror: mirror it again, signatures included", "see that this machine's clock is right (date), and that no proxy rewrites what passes through it",
		}
		t.Err = Distrust{err}
	default:
		own := ownLines(failed)
		t.Because = slices.DeleteFunc(t.Because, func(l string) bool { return slices.Contains(own, clean(l)) })
		t.What, t.Because, t.Try = Cannot+own[0], Short(append(own[1:], t.Because...)), tryProxy(v)
		return t, false
	}
	return t, true
}

// program is what Quiet's argv runs.
func program(argv []string) string {
	return argv[max(0, slices.IndexFunc(argv, func(a string) bool { return a != "env" && a[0] != '-' && !strings.ContainsAny(a, "=/") }))]
}

// ownLines returns the packager's errors: apt's lines that begin with E:, or the output of dnf and
// rpm from the first Error: on; else the last lines. There is at least one.
func ownLines(failed *host.CommandError) (own []string) {
	all := Lines(failed.Stderr)
	for _, l := range all {
		if strings.HasPrefix(l, "E: ") {
			own = append(own, clean(l))
		}
	}
	is := func(l string) bool { return strings.HasPrefix(l, "Error:") || strings.HasPrefix(l, "error:") }
	if i := slices.IndexFunc(all, is); i >= 0 && len(own) == 0 {
		for _, l := range all[i:] {
			own = append(own, clean(l))
		}
	}
	if len(own) == 0 {
		own = Tail(failed.Stderr, 6)
	}
	if own = Short(own); len(own) == 0 {
		own = []string{failed.Error()}
	}
	return own
}

func clean(line string) string {
	line = strings.TrimSpace(line)
	for _, prefix := range []string{"E: ", "Error:", "error:"} {
		line = strings.TrimSpace(strings.TrimPrefix(line, prefix))
	}
	return strings.TrimSuffix(line, ".")
}

// Short drops repeated and empty lines, and keeps only the first of the rest.
func Short(all []string) (some []string) {
	const most = 8
	for _, l := range all {
		if l = strings.TrimSpace(l); l != "" && !slices.Contains(some, l) && len(some) < most {
			some = append(some, l)
		}
	}
	return some
}

// Tail returns the last n lines.
func Tail(text string, n int) []string {
	all := Lines(text)
	return Short(all[max(0, len(all)-n):])
}

var proxySet = pattern.Of(`(?mi)^[^#/"\n]*\bproxy(?:::\S+)?\s*[="]\s*"?([^"\s;]+:[^"\s;]+)`)

// tryProxy advises on each proxy that a file sets for apt or dnf: apt.conf(5), dnf.conf(5).
func tryProxy(v host.View) (try []string) {
	files := append(gpuadmFiles(v, "/etc/yum.repos.d"), "/etc/apt/apt.conf", dnfConf)
	for _, name := range ListOf(v, "/etc/apt/apt.conf.d") {
		files = append(files, "/etc/apt/apt.conf.d/"+name)
	}
	for _, f := range files {
		data, _ := v.ReadFile(f)
		if m := proxySet().FindSubmatch(data); m != nil {
			by := map[bool]string{true: "[proxy] of node.toml", false: f}[strings.Contains(f, "gpuadm")]
			try = append(try, "if nothing answers at "+string(m[1])+": see that the proxy runs, and is the right one in "+by)
		}
	}
	return try
}

// gpuadmFiles lists the files in a folder that are named after gpuadm.
func gpuadmFiles(v host.View, dir string) (files []string) {
	for _, name := range ListOf(v, dir) {
		if strings.Contains(name, "gpuadm") {
			files = append(files, dir+"/"+name)
		}
	}
	return files
}

// Unread names the repository of the spec in an error about its lists.
func Unread(v host.View, err error, url, file string) error {
	t := (*trouble.Error)(nil)
	if held := (*Locked)(nil); errors.As(err, &held) || !errors.As(err, &t) {
		return err
	}
	t.What = "cannot read repository " + url + " (" + file + "): " + strings.TrimPrefix(t.What, Cannot)
	if !errors.As(err, new(Distrust)) {
		t.Try = append(tryProxy(v), "see that the address is right, and can be reached from this machine: "+url)
	}
	return t
}
