// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"strings"
)

// dpkgVersion returns the version of the first of the packages that dpkg has installed and that
// owns the file; "" if none does. Source: dpkg's database in /var/lib/dpkg, see man page dpkg(1),
// "FILES".
func (g *gathering) dpkgVersion(file string, packages ...string) string {
	line := []byte("\n" + file + "\n")
	for _, name := range packages {
		// Each of these lists a file's path in a line of its own, beginning with "/.".
		list := g.read("/var/lib/dpkg/info/" + name + ".list")
		if !bytes.Contains(list, line) && !bytes.HasPrefix(list, line[1:]) {
			continue
		}
		// Unpacked and half-configured packages have their files in place, too.
		entry := g.dpkgEntry(name)
		if entry["Version"] != "" && !strings.HasSuffix(entry["Status"], " config-files") {
			return entry["Version"]
		}
	}

	return ""
}

// dpkgEntry finds a package's paragraph in dpkg's status file; nil if there is none.
func (g *gathering) dpkgEntry(name string) map[string]string {
	status := g.read("/var/lib/dpkg/status")
	first := []byte("Package: " + name + "\n")
	start := 0
	if !bytes.HasPrefix(status, first) {
		before := bytes.Index(status, append([]byte("\n"), first...))
		if before < 0 {
			return nil
		}
		start = before + 1
	}

	paragraph, _, _ := bytes.Cut(status[start:], []byte("\n\n"))
	entry := map[string]string{}
	for line := range strings.SplitSeq(string(paragraph), "\n") {
		key, value, ok := strings.Cut(line, ": ")
		if ok && !strings.HasPrefix(line, " ") {
			entry[key] = strings.TrimSpace(value)
		}
	}

	return entry
}
