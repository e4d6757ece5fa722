// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strconv"
	"strings"
	"unicode/utf8"
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
	for _, kv := range assignments(string(b)) {
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

// assignments reads NAME=value lines as systemd does in os-release and in EnvironmentFile=: comments from # or ; at a
// line's start, 'single' and "double" quotes, backslashes, and values that go on in the next line after a backslash.
// Nothing is expanded. Source: systemd's src/basic/env-file.c, man pages os-release(5) and systemd.exec(5).
func assignments(s string) [][2]string {
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
