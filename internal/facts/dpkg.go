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
		if e := dpkgEntry(l.read("/var/lib/dpkg/status"), p); e.installed() {
			return e["Version"]
		}
	}
	return ""
}

// entry is one package's paragraph in dpkg's status file, its first lines only.
type entry map[string]string

func (e entry) installed() bool {
	// "want flag status": install ok installed. Unpacked and half-configured packages have their files in place, too.
	_, status, _ := strings.Cut(e["Status"], " ")
	_, status, _ = strings.Cut(status, " ")
	return status != "" && status != "not-installed" && status != "config-files"
}

// dpkgEntry finds a package's paragraph. The file is large (1 MB and more), so it is searched, not parsed.
func dpkgEntry(status []byte, name string) entry {
	head := []byte("Package: " + name + "\n")
	at := 0
	if !bytes.HasPrefix(status, head) {
		at = bytes.Index(status, append([]byte("\n"), head...))
		if at < 0 {
			return nil
		}
		at++
	}
	paragraph := status[at:]
	if end := bytes.Index(paragraph, []byte("\n\n")); end >= 0 {
		paragraph = paragraph[:end]
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
	m := upstreamPattern().FindStringSubmatch(version)
	if m == nil {
		return ""
	}
	if m[2] != "" {
		return m[1] + "-" + m[2] + "." + m[3]
	}
	return m[1]
}

var upstreamPattern = pattern.Of(`^(?:\d+:)?v?(\d+(?:\.\d+)+)(?:[-~.+]?(alpha|beta|rc)[-.~]?(\d+))?`)
