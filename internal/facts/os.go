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
		// "non-printable characters should not be used", says the man page: what has some is no vendor's value.
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

// Assignments reads NAME=value lines as systemd does in os-release and in EnvironmentFile=: comments from # or ; at a
// line's start, 'single' and "double" quotes, backslashes, and values that go on in the next line after a backslash.
// Nothing is expanded. Source: systemd's src/basic/env-file.c, man pages os-release(5) and systemd.exec(5).
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

// value1 reads one value and returns it with what follows.
func value1(s string) (value, rest string) {
	var b strings.Builder
	s = strings.TrimLeft(s, " \t")
	for s != "" && (s[0] == '\'' || s[0] == '"') {
		if s[0] == '\'' {
			in, after, ok := strings.Cut(s[1:], "'")
			b.WriteString(in)
			if !ok {
				return b.String(), ""
			}
			s = after
		} else {
			s = doubleQuoted(&b, s[1:])
		}
		s = strings.TrimLeft(s, " \t")
	}
	// Outside quotes a backslash takes the next byte literally and swallows a line's end; blanks at the end do not count.
	kept := b.Len()
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\n':
			return b.String()[:kept], s[i:]
		case c == '\\' && i+1 < len(s):
			i++
			if s[i] != '\n' {
				b.WriteByte(s[i])
				kept = b.Len()
			}
		default:
			b.WriteByte(c)
			if c != ' ' && c != '\t' && c != '\r' {
				kept = b.Len()
			}
		}
	}
	return b.String()[:kept], ""
}

// doubleQuoted writes what precedes the closing quote and returns what follows.
func doubleQuoted(b *strings.Builder, s string) string {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[i+1:]
		case c == '\\' && i+1 < len(s):
			i++
			switch s[i] {
			case '"', '\\', '`', '$':
				b.WriteByte(s[i])
			case '\n':
			default:
				b.WriteByte('\\')
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return ""
}

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
