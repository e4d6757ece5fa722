// SPDX-License-Identifier: Apache-2.0

package facts

import "strings"

// An Assignment is a NAME=value of a text, and the offsets between which its lines are.
type Assignment struct {
	Name, Value string
	Start, End  int
}

// Assignments returns the names and values that AssignmentsIn reads.
func Assignments(s string) (pairs [][2]string) {
	for _, a := range AssignmentsIn(s) {
		pairs = append(pairs, [2]string{a.Name, a.Value})
	}
	return pairs
}

// AssignmentsIn reads NAME=value lines as systemd does in os-release and in EnvironmentFile=:
// comments from # or ; at a line's start, 'single' and "double" quotes, backslashes, and values
// that go on in the next line after a backslash. Nothing is expanded.
// Source: systemd's src/basic/env-file.c, man pages os-release(5) and systemd.exec(5).
func AssignmentsIn(text string) (all []Assignment) {
	s := text
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

		a := Assignment{Name: strings.TrimSpace(s[:eq]), Start: len(text) - len(s)}
		a.Value, s = firstValue(s[eq+1:])
		a.End = len(text) - len(s)
		if a.Name != "" {
			all = append(all, a)
		}
	}

	return all
}

// firstValue reads one value and returns it with what follows, from the line's end on.
func firstValue(s string) (value, rest string) {
	r := valueReader{begins: true}
	for r.at < len(s) {
		c := s[r.at]
		if c == '\n' && r.quote == 0 {
			break
		}

		hasNext := r.at+1 < len(s)
		switch {
		case c == '\\' && hasNext && r.quote != '\'':
			r.escaped(s[r.at+1])
			r.at++
		case r.quote != 0:
			r.quoted(c)
		default:
			r.plain(c)
		}

		r.at++
	}

	return r.value.String()[:r.kept], s[r.at:]
}

// valueReader reads the bytes of one value.
type valueReader struct {
	at     int
	value  strings.Builder
	kept   int  // bytes of value up to the last one that is not a blank at the end
	quote  byte // the open quote; 0 = none
	begins bool // only blanks and quotes were read so far
}

// escaped reads the byte behind a backslash, which it takes literally. A line's end means that the
// value goes on in the next line. In double quotes the backslash stays, unless the byte is special
// there.
func (r *valueReader) escaped(c byte) {
	r.begins = false
	if c == '\n' {
		return
	}

	special := strings.IndexByte("\"\\`$", c) >= 0
	if r.quote != 0 && !special {
		r.value.WriteByte('\\')
	}
	r.value.WriteByte(c)
	r.kept = r.value.Len()
}

// quoted reads a byte within quotes. Other quotes may open directly behind them.
func (r *valueReader) quoted(c byte) {
	if c == r.quote {
		r.quote = 0
		r.begins = true
		return
	}

	r.value.WriteByte(c)
	r.begins = false
	r.kept = r.value.Len()
}

// plain reads a byte outside of quotes. Quotes count only where the value begins, and blanks count
// neither there nor at the end.
func (r *valueReader) plain(c byte) {
	blank := c == ' ' || c == '\t'
	if r.begins && blank {
		return
	}
	if r.begins && (c == '\'' || c == '"') {
		r.quote = c
		return
	}

	r.value.WriteByte(c)
	r.begins = false
	if !blank && c != '\r' {
		r.kept = r.value.Len()
	}
}
