// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// dpkgVersion returns the version of the first of the packages that dpkg has installed and that owns the file; "" if
// none does. Source: dpkg's database in /var/lib/dpkg, see man page dpkg(1), "FILES".
func (l *look) dpkgVersion(file string, packages ...string) string {
	line := []byte("\n" + file + "\n")
	for _, p := range packages {
		// Each of these lists a file's path in a line of its own, beginning with "/.".
		list := l.read("/var/lib/dpkg/info/" + p + ".list")
		if list == nil || !bytes.Contains(list, line) && !bytes.HasPrefix(list, line[1:]) {
			continue
		}
		if e := l.dpkgEntry(p); e.installed() {
			return e["Version"]
		}
	}
	return ""
}

const (
	dpkgStatus = "/var/lib/dpkg/status"
	dpkgHead   = 64 << 10
)

// dpkgEntry finds a package's paragraph in dpkg's status file. That has 1 MB and more on most machines, and is in the order of names as
// found on Debian 12 and 13, so the beginning has the engines.
func (l *look) dpkgEntry(name string) entry {
	head := make([]byte, dpkgHead)
	if _, err := l.v.ReadAt(dpkgStatus, head, 0); err == nil { // of a shorter file zeros follow
		if paragraph := dpkgParagraph(head, name); bytes.HasSuffix(paragraph, []byte("\n\n")) {
			return dpkgEntry(paragraph, name)
		}
	}
	return dpkgEntry(l.read(dpkgStatus), name)
}

// entry is one package's paragraph in dpkg's status file, its first lines only.
type entry map[string]string

func (e entry) installed() bool {
	// "want flag status": install ok installed. Unpacked and half-configured packages have their files in place, too.
	_, status, _ := strings.Cut(e["Status"], " ")
	_, status, _ = strings.Cut(status, " ")
	return status != "" && status != "not-installed" && status != "config-files"
}

// dpkgParagraph finds a package's paragraph, with the empty line after it if the text has that.
func dpkgParagraph(status []byte, name string) []byte {
	first := []byte("Package: " + name + "\n")
	at := 0
	if !bytes.HasPrefix(status, first) {
		at = bytes.Index(status, append([]byte("\n"), first...))
		if at < 0 {
			return nil
		}
		at++
	}
	paragraph := status[at:]
	if end := bytes.Index(paragraph, []byte("\n\n")); end >= 0 {
		paragraph = paragraph[:end+2]
	}
	return paragraph
}

// dpkgEntry parses a package's paragraph; nil if there is none.
func dpkgEntry(status []byte, name string) entry {
	paragraph := dpkgParagraph(status, name)
	if paragraph == nil {
		return nil
	}
	e := entry{}
	for line := range strings.SplitSeq(string(paragraph), "\n") {
		if key, value, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
			e[key] = strings.TrimSpace(value)
		}
	}
	return e
}

// upstream returns the project's own version in a package's: without epoch, Debian revision, +dfsg and ~ds marks and
// suppliers' suffixes. Pre-releases stay so: 2.0.0~rc.1-1 is 2.0.0-rc.1. Anything else comes back as "".
func upstream(version string) string {
	if epoch, rest, _ := strings.Cut(version, ":"); pattern.Only(epoch, pattern.Digits) {
		version = rest
	}
	version = strings.TrimPrefix(version, "v")
	is := number(version)
	for n := is; n != ""; {
		if n = number(strings.TrimPrefix(version[len(is):], ".")); n != "" {
			is += "." + n
		}
	}
	if !strings.Contains(is, ".") {
		return ""
	}
	rest := without(version[len(is):], "-~.+")
	for _, stage := range []string{"alpha", "beta", "rc"} {
		after, found := strings.CutPrefix(rest, stage)
		if n := number(without(after, "-.~")); found && n != "" {
			return is + "-" + stage + "." + n
		}
	}
	return is
}

// number is the digits that a text begins with.
func number(text string) string { return text[:len(text)-len(strings.TrimLeft(text, pattern.Digits))] }

// without is a text without its first byte, where that is one of a set.
func without(text, set string) string {
	if text != "" && strings.IndexByte(set, text[0]) >= 0 {
		return text[1:]
	}
	return text
}
