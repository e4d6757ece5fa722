// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// os reads os-release: /etc/os-release, or the vendor's in /usr/lib where that is missing.
// Source: https://www.freedesktop.org/software/systemd/man/latest/os-release.html
func (l *look) os() OS {
	b := l.read("/etc/os-release")
	if b == nil {
		b = l.read("/usr/lib/os-release")
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

// Assignments reads NAME=value lines as systemd does in os-release and in EnvironmentFile=:
// comments from # or ; at a line's start, 'single' and "double" quotes, backslashes, and values
// that go on in the next line after a backslash. Nothing is expanded. Source: systemd's
// src/basic/env-file.c, man pages os-release(5) and systemd.exec(5).
func Assignments(s string) [][2]string {
	var out [][2]string
	for s != "" {
		s = strings.TrimLeft(s, " \t\r\n")
		if s == "" {
			break
		}
		end := strings.IndexByte(s, '\n')
		if end < 0 {
			end = len(s)
		}
		eq := strings.IndexByte(s[:end], '=')
		if s[0] == '#' || s[0] == ';' || eq < 0 {
			s = s[end:]
			continue
		}
		key := strings.TrimSpace(s[:eq])
		var value string
		value, s = value1(s[eq+1:])
		if key != "" {
			out = append(out, [2]string{key, value})
		}
	}
	return out
}

// value1 reads one value and returns it with what follows. Quotes count only where the value
// begins, or behind other quotes. Outside of them a backslash takes the next byte literally and
// swallows a line's end, and blanks at the end do not count.
func value1(s string) (value, rest string) {
	var b strings.Builder
	kept, quote, begins := 0, byte(0), true
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote == 0 && c == '\n':
			return b.String()[:kept], s[i:]
		case quote != '\'' && c == '\\' && i+1 < len(s):
			if i++; s[i] != '\n' {
				if quote != 0 && strings.IndexByte("\"\\`$", s[i]) < 0 {
					b.WriteByte('\\')
				}
				b.WriteByte(s[i])
				kept = b.Len()
			}
			begins = false
		case quote != 0 && c == quote:
			quote, begins = 0, true
		case quote == 0 && begins && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && begins && (c == ' ' || c == '\t'):
		default:
			b.WriteByte(c)
			begins = false
			if quote != 0 || c != ' ' && c != '\t' && c != '\r' {
				kept = b.Len()
			}
		}
	}
	return b.String()[:kept], ""
}

// dpkgVersion returns the version of the first of the packages that dpkg has installed and that
// owns the file; "" if none does. Source: dpkg's database in /var/lib/dpkg, see man page dpkg(1),
// "FILES".
func (l *look) dpkgVersion(file string, packages ...string) string {
	line := []byte("\n" + file + "\n")
	for _, p := range packages {
		// Each of these lists a file's path in a line of its own, beginning with "/.".
		list := l.read("/var/lib/dpkg/info/" + p + ".list")
		if list == nil || !bytes.Contains(list, line) && !bytes.HasPrefix(list, line[1:]) {
			continue
		}
		// Unpacked and half-configured packages have their files in place, too.
		if e := l.dpkgEntry(p); e["Version"] != "" && !strings.HasSuffix(e["Status"], " config-files") {
			return e["Version"]
		}
	}
	return ""
}

// dpkgEntry finds a package's paragraph in dpkg's status file; nil if there is none.
func (l *look) dpkgEntry(name string) map[string]string {
	status := l.read("/var/lib/dpkg/status")
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

// upstream returns the project's own version in a package's: without epoch, Debian revision, +dfsg
// and ~ds marks and suppliers' suffixes. Pre-releases stay so: 2.0.0~rc.1-1 is 2.0.0-rc.1. Anything
// else comes back as "".
func upstream(version string) string {
	is := released().FindStringSubmatch(version)
	if is == nil || is[2] == "" {
		return strings.Join(is[min(1, len(is)):min(2, len(is))], "")
	}
	return is[1] + "-" + is[2] + "." + is[3]
}

var released = pattern.Of(`^(?:\d+:)?v?(\d+(?:\.\d+)+)(?:[-~.+]?(alpha|beta|rc)[-.~]?(\d+))?`)
