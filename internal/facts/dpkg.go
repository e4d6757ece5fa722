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
	for _, p := range packages {
		// Each of these lists a file's path in a line of its own, beginning with "/.".
		list := g.read("/var/lib/dpkg/info/" + p + ".list")
		if list == nil || !bytes.Contains(list, line) && !bytes.HasPrefix(list, line[1:]) {
			continue
		}
		// Unpacked and half-configured packages have their files in place, too.
		if e := g.dpkgEntry(p); e["Version"] != "" && !strings.HasSuffix(e["Status"], " config-files") {
			return e["Version"]
		}
	}
	return ""
}

// dpkgEntry finds a package's paragraph in dpkg's status file; nil if there is none.
func (g *gathering) dpkgEntry(name string) map[string]string {
	status := g.read("/var/lib/dpkg/status")
	first := []byte("Package: " + name + "\n")
	at := 0
	if !bytes.HasPrefix(status, first) {
		if at = bytes.Index(status, append([]byte("\n"), first...)) + 1; at == 0 {
			return nil
		}
	}
	paragraph, _, _ := bytes.Cut(status[at:], []byte("\n\n"))
	e := map[string]string{}
	for line := range strings.SplitSeq(string(paragraph), "\n") {
		if key, value, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
			e[key] = strings.TrimSpace(value)
		}
	}
	return e
}
