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
	data := g.read("/etc/os-release")
	if data == nil {
		data = g.read("/usr/lib/os-release")
	}
	if data == nil {
		return OS{}
	}

	// "non-printable characters should not be used", says the man page: a value with some is no
	// vendor's.
	unprintable := func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }
	o := OS{ID: "linux"} // "If not set, a default of ID=linux may be used", says the man page
	for _, setting := range Assignments(string(data)) {
		value := setting[1]
		if strings.ContainsFunc(value, unprintable) {
			continue
		}
		switch setting[0] {
		case "ID":
			o.ID = value
		case "VERSION_ID":
			o.Version = value
		case "ID_LIKE":
			o.Like = strings.Fields(value)
		case "PRETTY_NAME":
			o.Name = value
		}
	}

	return o
}
