// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strconv"
	"strings"
)

// Words splits a line at blanks as systemd does: 'x y' and "x y" are one word, backslash escapes are C's, %% is %.
// An open quote ends with the line. Source: "Quoting" in
// https://www.freedesktop.org/software/systemd/man/latest/systemd.syntax.html
func Words(line string) []string {
	var out []string
	var b strings.Builder
	var quote byte
	in := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line):
			in = true
			i += unescape(&b, line[i+1:])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, in = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if in {
				out = append(out, b.String())
				b.Reset()
				in = false
			}
		case c == '%' && i+1 < len(line) && line[i+1] == '%':
			in = true
			b.WriteByte('%')
			i++
		default:
			in = true
			b.WriteByte(c)
		}
	}
	if in {
		out = append(out, b.String())
	}
	return out
}

// unescape writes what the escape after a backslash means and returns how many bytes it took.
func unescape(b *strings.Builder, s string) int {
	const letters, values = `abfnrtvs`, "\a\b\f\n\r\t\v "
	if i := strings.IndexByte(letters, s[0]); i >= 0 {
		b.WriteByte(values[i])
		return 1
	}
	for _, form := range [...]struct {
		lead         string
		digits, base int
	}{{"x", 2, 16}, {"u", 4, 16}, {"U", 8, 16}, {"", 3, 8}} {
		digits, ok := strings.CutPrefix(s, form.lead)
		if !ok || len(digits) < form.digits {
			continue
		}
		n, err := strconv.ParseUint(digits[:form.digits], form.base, 32)
		if err != nil || n == 0 || n > 0x10ffff {
			continue
		}
		if form.lead == "x" || form.lead == "" {
			b.WriteByte(byte(n))
		} else {
			b.WriteRune(rune(n))
		}
		return len(form.lead) + form.digits
	}
	b.WriteByte(s[0]) // \\ \" \' and what systemd does not know
	return 1
}

// option returns the value of the last of the command line's options with one of the names (given without dashes),
// written --name value, --name=value or with one dash; "" if there is none.
func option(argv []string, names ...string) string {
	values := Options(argv, names...)
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// Options returns all such values, in order.
func Options(argv []string, names ...string) []string {
	var values []string
	for i := 1; i < len(argv); i++ {
		a, ok := strings.CutPrefix(argv[i], "-")
		if !ok {
			continue
		}
		a = strings.TrimPrefix(a, "-")
		for _, name := range names {
			if rest, ok := strings.CutPrefix(a, name+"="); ok {
				values = append(values, rest)
			} else if a == name && i+1 < len(argv) {
				i++
				values = append(values, argv[i])
				break
			}
		}
	}
	return values
}
