// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strings"
)

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
		value, s = firstValue(s[eq+1:])
		if key != "" {
			out = append(out, [2]string{key, value})
		}
	}
	return out
}

// firstValue reads one value and returns it with what follows. Quotes count only where the value
// begins, or behind other quotes. Outside of them a backslash takes the next byte literally and
// swallows a line's end, and blanks at the end do not count.
func firstValue(s string) (value, rest string) {
	var b strings.Builder
	kept := 0        // bytes of b up to the last one that is not a blank at the end
	quote := byte(0) // the open quote; 0 = none
	begins := true   // only blanks and quotes were read so far

	for i := 0; i < len(s); i++ {
		c := s[i]
		blank := c == ' ' || c == '\t'
		switch {
		case quote == 0 && c == '\n':
			return b.String()[:kept], s[i:]

		case quote != '\'' && c == '\\' && i+1 < len(s):
			begins = false
			i++
			if s[i] == '\n' {
				continue
			}
			if quote != 0 && strings.IndexByte("\"\\`$", s[i]) < 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(s[i])
			kept = b.Len()

		case quote != 0 && c == quote:
			quote = 0
			begins = true

		case quote == 0 && begins && (c == '\'' || c == '"'):
			quote = c

		case quote == 0 && begins && blank:

		default:
			b.WriteByte(c)
			begins = false
			if quote != 0 || !blank && c != '\r' {
				kept = b.Len()
			}
		}
	}
	return b.String()[:kept], ""
}
