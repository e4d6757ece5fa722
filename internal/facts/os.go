// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// OS is what os-release says.
type OS struct {
	ID      string   `json:"id"`             // debian, ubuntu, rhel, amzn, …
	Version string   `json:"version"`        // VERSION_ID: 12, 24.04, 9.5
	Like    []string `json:"like,omitempty"` // ID_LIKE
	Name    string   `json:"name"`           // PRETTY_NAME
}

// os reads os-release: /etc/os-release, or the vendor's in /usr/lib where that is missing.
// Source: https://www.freedesktop.org/software/systemd/man/latest/os-release.html
func (g *gathering) os() OS {
	b := g.read("/etc/os-release")
	if b == nil {
		b = g.read("/usr/lib/os-release")
	}
	if b == nil {
		return OS{}
	}
	o := OS{ID: "linux"} // "If not set, a default of ID=linux may be used", says the man page
	for _, kv := range Assignments(string(b)) {
		// "non-printable characters should not be used", says the man page: what has some is no
		// vendor's value.
		if strings.ContainsFunc(kv[1], func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }) {
			continue
		}
		switch kv[0] {
		case "ID":
			o.ID = kv[1]
		case "VERSION_ID":
			o.Version = kv[1]
		case "ID_LIKE":
			o.Like = strings.Fields(kv[1])
		case "PRETTY_NAME":
			o.Name = kv[1]
		}
	}
	return o
}
