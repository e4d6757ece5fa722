// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Cannot begins the errors about packages.
const Cannot = "cannot install packages: "

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
	markDistrust = pattern.Of(`GPG (?:error|signature|verification|check FAILED)|signature verification failed|signatures couldn't be verified|is not signed|Clearsigned file isn't valid`)
	// apt: VerifyDone in apt-pkg/acquire-item.cc.
	markExpired = pattern.Of(`(?m)^E: (?:Release file for (\S+) is expired \(invalid since ([^)]*)\)|Release file for (\S+) is not valid yet \(invalid for another ([^)]*)\))`)
	// apt: apt-pkg/acquire-item.cc and methods/ of its tree, and
	// https://github.com/NVIDIA/cuda-repo-management/issues/24; dnf: librepo/downloader.c, and
	// dnf/repo.py of https://github.com/rpm-software-management/dnf.
	// dnf notes it for each mirror, and goes on to the next.
	markMismatch = pattern.Of(`(?m)^.*(?:Hash Sum mismatch|File has unexpected size|checksum doesn't match|does not match checksum).*$`)
)

// Distrust reports a repository or package whose signature, key or date the packager does not
// accept.
type Distrust struct{ error }

func (d Distrust) Unwrap() error { return d.error }

// Mismatch reports a repository whose files are of several dates.
type Mismatch struct{ error }

func (m Mismatch) Unwrap() error { return m.error }

// mismatched returns the line about a file that is not what the list says, if that was the failure.
func mismatched(output string) string {
	line := markMismatch().FindString(output)
	isDnfs := strings.Contains(output, "Error: Error downloading packages") ||
		strings.Contains(output, "Error: Failed to download metadata")
	if strings.HasPrefix(line, "E: ") || isDnfs {
		return line
	}
	return ""
}

// expired describes a list whose dates exclude this machine's time.
func expired(t *trouble.Error, output string) {
	m := markExpired().FindStringSubmatch(output)
	if m[1] != "" {
		t.What = fmt.Sprintf("%sthe list %s has expired, %s ago", Cannot, m[1], m[2])
		t.Try = []string{
			"check that this machine's clock is right (date): a clock that is fast finds a good list expired",
			"if it is a mirror: mirror it again; its copy is older than the repository allows",
			"if a proxy caches: have it drop what it has of the repository",
		}
		return
	}

	t.What = fmt.Sprintf("%sthe list %s is not valid for another %s: this machine's clock is slow, or the repository's was fast", Cannot, m[3], m[4])
	t.Try = []string{"check that this machine's clock is right (date), and that it is synchronised (timedatectl)"}
}

// Failure describes a packager's failure with the packager's own lines. known reports whether
// gpuadm knows the cause: a time limit, a full disk or a signature.
func Failure(v host.View, failed *host.CommandError, out string, err error) (t *trouble.Error, known bool) {
	var late host.OverLimit
	output := failed.Stderr + "\n" + out
	t = &trouble.Error{Because: Tail(failed.Stderr, 6), Err: err}

	// The time limits come first: a program that gpuadm ended may name another cause, such as
	// memory or a compiler that was killed.
	switch {
	case errors.As(err, &late):
		what := Cannot + program(failed.Argv)
		t.What = fmt.Sprintf("%s gave no answer within %s, and gpuadm ended it", what, late.Limit)
		t.Try = []string{"see what keeps the machine's processors or disks busy (top, vmstat 1), then run the same command again"}

	case errors.Is(err, context.DeadlineExceeded):
		t.What = Cannot + "they were not installed within --deadline, and " + program(failed.Argv) + " was ended"

	case markFull().MatchString(output):
		full := clean(markFull().FindString(output))
		t.What = Cannot + "the disk is full: " + full
		t.Because = slices.DeleteFunc(t.Because, func(line string) bool {
			return clean(line) == full
		})
		t.Try = []string{"make room (apt-get clean or dnf clean packages frees what was downloaded), then run the same command again"}

	case markExpired().MatchString(output):
		expired(t, output)
		t.Err = Distrust{err}

	case mismatched(output) != "":
		t.What = Cannot + "a file is not what the repository's list says of it: " + clean(mismatched(output))
		t.Try = []string{
			"run the same command again in some minutes: a repository or mirror that is being synchronised has files of two dates",
			"if it is a mirror of your own: mirror it again, as a whole",
			"if a proxy caches: have it drop what it has of the repository, since it may give old files with a new list",
		}
		t.Err = Mismatch{err}

	case markDistrust().MatchString(output):
		t.What = Cannot + "the signature, key or date of a repository or package is not accepted"
		t.Try = []string{
			"look up the key's fingerprint at the vendor's, and give that key in the spec if it has changed",
			"if it is a mirror: mirror it again, signatures included",
			"check that this machine's clock is right (date), and that no proxy rewrites what passes through it",
		}
		t.Err = Distrust{err}

	default:
		errs := errorLines(failed)
		isError := func(line string) bool { return slices.Contains(errs, clean(line)) }
		others := slices.DeleteFunc(t.Because, isError)
		t.What = Cannot + errs[0]
		t.Because = Short(append(errs[1:], others...))
		t.Try = tryProxy(v)
		return t, false
	}

	return t, true
}

// errorLines returns the packager's errors: apt's lines that begin with E:, or the output of dnf
// and rpm from the first Error: on; else the last lines. There is at least one.
func errorLines(failed *host.CommandError) []string {
	var errs []string
	all := Lines(failed.Stderr)
	for _, line := range all {
		if strings.HasPrefix(line, "E: ") {
			errs = append(errs, clean(line))
		}
	}

	first := slices.IndexFunc(all, func(line string) bool {
		return strings.HasPrefix(line, "Error:") || strings.HasPrefix(line, "error:")
	})
	if first >= 0 && len(errs) == 0 {
		for _, line := range all[first:] {
			errs = append(errs, clean(line))
		}
	}

	if len(errs) == 0 {
		errs = Tail(failed.Stderr, 6)
	}
	errs = Short(errs)
	if len(errs) == 0 {
		errs = []string{failed.Error()}
	}
	return errs
}

// clean returns a line without the packager's prefix for errors, and without its full stop.
func clean(line string) string {
	line = strings.TrimSpace(line)
	for _, prefix := range []string{"E: ", "Error:", "error:"} {
		line = strings.TrimSpace(strings.TrimPrefix(line, prefix))
	}
	return strings.TrimSuffix(line, ".")
}

// Unread names the repository of the spec in an error about its lists.
func Unread(v host.View, err error, url, file string) error {
	var locked *Locked
	var t *trouble.Error
	if errors.As(err, &locked) || !errors.As(err, &t) {
		return err
	}

	t.What = "cannot read repository " + url + " (" + file + "): " + strings.TrimPrefix(t.What, Cannot)
	if !errors.As(err, new(Distrust)) && !errors.As(err, new(Mismatch)) {
		t.Try = append(tryProxy(v), "check that the address is right, and can be reached from this machine: "+url)
	}
	return t
}

var proxySet = pattern.Of(`(?mi)^[^#/"\n]*\bproxy(?:::\S+)?\s*[="]\s*"?([^"\s;]+:[^"\s;]+)`)

// tryProxy advises on each proxy that a file sets for apt or dnf: apt.conf(5), dnf.conf(5).
func tryProxy(v host.View) (try []string) {
	files := append(gpuadmFiles(v, "/etc/yum.repos.d"), "/etc/apt/apt.conf", dnfConf)
	for _, name := range ListOf(v, "/etc/apt/apt.conf.d") {
		files = append(files, "/etc/apt/apt.conf.d/"+name)
	}

	for _, file := range files {
		data, _ := v.ReadFile(file)
		m := proxySet().FindSubmatch(data)
		if m == nil {
			continue
		}
		setIn := file
		if strings.Contains(file, "gpuadm") {
			setIn = "[proxy] of node.toml"
		}
		try = append(try, "if nothing answers at "+string(m[1])+": check that the proxy runs, and is the right one in "+setIn)
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
