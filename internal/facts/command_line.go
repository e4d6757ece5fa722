// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Words splits a line at blanks as systemd does: 'x y' and "x y" are one word, backslash escapes
// are C's, %% is %. An open quote ends with the line. Source: "Quoting" in
// https://www.freedesktop.org/software/systemd/man/latest/systemd.syntax.html
func Words(line string) []string {
	var out []string
	var b strings.Builder
	var quote byte  // the open quote; 0 = none
	inWord := false // a word has begun, which may be empty: ""

	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line):
			inWord = true
			i += unescape(&b, line[i:])

		case quote != 0 && c == quote:
			quote = 0

		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
			inWord = true

		case quote == 0 && strings.IndexByte(" \t\n\r", c) >= 0:
			if inWord {
				out = append(out, b.String())
				b.Reset()
				inWord = false
			}

		case c == '%' && i+1 < len(line) && line[i+1] == '%':
			inWord = true
			b.WriteByte('%')
			i++

		default:
			inWord = true
			b.WriteByte(c)
		}
	}

	if inWord {
		out = append(out, b.String())
	}
	return out
}

// unescape writes what the escape at the text's start means and returns how many bytes follow its
// backslash. Go's escapes are C's, but for systemd's own \\s; what neither knows is taken
// literally.
func unescape(b *strings.Builder, s string) int {
	r, wide, tail, err := strconv.UnquoteChar(s, 0)
	switch {
	case s[1] == 's':
		b.WriteByte(' ')
	case err != nil || r == 0:
		b.WriteByte(s[1])
	case wide:
		b.WriteRune(r)
		return len(s) - len(tail) - 1
	default:
		b.WriteByte(byte(r))
		return len(s) - len(tail) - 1
	}

	return 1
}

// option returns the value of the last of the command line's options with one of the names (given
// without dashes), written --name value, --name=value or with one dash; "" if there is none.
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
		given, isOption := strings.CutPrefix(argv[i], "-")
		if !isOption {
			continue
		}
		given = strings.TrimPrefix(given, "-")

		for _, name := range names {
			if value, ok := strings.CutPrefix(given, name+"="); ok {
				values = append(values, value)
			} else if given == name && i+1 < len(argv) {
				i++
				values = append(values, argv[i])
				break
			}
		}
	}

	return values
}

// commandLine splits an ExecStart= value into arguments. The environment is asked for only where it
// is needed.
// Source: "Command lines" in
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html
func commandLine(line string, environment func() map[string]string) []string {
	args, _ := traced(line, environment)
	return args
}

// traced is commandLine; the second list says of each argument which variable, alone, it came from:
// "" = none.
func traced(line string, environment func() map[string]string) (args, from []string) {
	args = Words(line)
	if i := slices.Index(args, ";"); i >= 0 {
		args = args[:i] // a second command
	}
	if len(args) == 0 {
		return nil, nil
	}

	program := strings.TrimLeft(args[0], "@-:+!|")
	prefixes := args[0][:len(args[0])-len(program)]
	args[0] = program
	if strings.Contains(prefixes, "@") && len(args) > 1 {
		args = slices.Delete(args, 1, 2) // what the process shall be called
	}
	if strings.Contains(prefixes, ":") || strings.IndexByte(line, '$') < 0 {
		return args, make([]string, len(args)) // nothing to replace
	}

	env := environment()
	var replaced []string
	for _, arg := range args {
		if !alone().MatchString(arg) {
			replaced = append(replaced, replaceBraced(arg, env))
			from = append(from, "")
			continue
		}

		variable := arg[1:]
		for _, word := range Words(env[variable]) { // split at blanks into none or more arguments
			replaced = append(replaced, word)
			from = append(from, variable)
		}
	}

	return replaced, from
}

// The forms of a variable: $FOO as a whole argument, and ${FOO} anywhere.
var (
	alone  = pattern.Of(`^\$[A-Za-z_][A-Za-z0-9_]*$`)
	braced = pattern.Of(`\$\$|\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
)

// replaceBraced replaces ${FOO} anywhere in an argument, and $$ by $.
func replaceBraced(s string, env map[string]string) string {
	return braced().ReplaceAllStringFunc(s, func(found string) string {
		if found == "$$" {
			return "$"
		}
		return env[found[2:len(found)-1]]
	})
}
