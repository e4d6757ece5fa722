// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A parser says where it stumbled. A person wants to know where the fault is, and what they meant to write:
// most of what is no TOML in practice is text without quotes.

// syntax turns the parser's error at an offset, in the expression that begins at start, into a finding with its place.
func (b *builder) syntax(start, at int, message string) (int, *finding) {
	data := b.src.data
	line := restOfLine(data, start)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(message, w) })
	}
	if byteAt(data, start) == '[' {
		if has("expected newline") {
			message = "nothing may follow the section's name on its line"
		}
		return at, wrong("write the section's name in brackets, on a line of its own: [driver]", "invalid TOML: %s", message)
	}
	if at >= len(data)-1 && has("incomplete", "terminated", "end of input") {
		at := b.valueAfter(start)
		what := map[byte]string{'[': "list", '{': "table"}[byteAt(data, at)]
		if what != "" {
			return at, wrong("write the missing bracket", "invalid TOML: the %s that begins here is not closed", what)
		}
		if c := byteAt(data, at); c == '"' || c == '\'' {
			return at, wrong("write the missing quote", "invalid TOML: the text that begins here is not closed")
		}
		return at, wrong("write a value, text in \"quotes\"", "invalid TOML: the value is missing")
	}
	if at <= line.end {
		if at, f := b.bareText(line); f != nil {
			return at, f
		}
	}
	fix := b.syntaxFix(start, at, message)
	switch {
	case has("cannot have new lines"):
		message = "the text is not closed on its line"
	case has("expected newline"):
		message = "nothing may follow the value on its line"
	case has("unexpected character") && strings.IndexByte("\r\n#", byteAt(data, at)) >= 0:
		message, fix = "the value is missing", "write one, text in \"quotes\""
	case has("unexpected character"):
		message = "text needs quotes"
	}
	return at, wrong(fix, "invalid TOML: %s", message)
}

func byteAt(data []byte, at int) byte {
	if at < len(data) {
		return data[at]
	}
	return 0
}

func (b *builder) syntaxFix(start, at int, message string) string {
	has := func(word string) bool { return strings.Contains(message, word) }
	switch {
	case has("cannot have new lines"):
		return "close the quotes on the same line"
	case has("escape"):
		return `write \\ for a backslash, or put the text in 'single quotes'`
	case has("after array value"), has("after inline table key-value"):
		line, _ := b.src.position(start)
		if here, _ := b.src.position(at); here == line {
			return "put a comma between the elements, or write the missing bracket"
		}
		return "put a comma between the elements, or close the bracket opened on line " + itoa(line)
	case has("expected '='") && byteAt(b.src.data, at) == ':':
		return "write = in place of the colon"
	case has("leading zeroes"):
		return "put quotes around text; write a number without leading zeroes"
	case has("control character"), has("carriage return"):
		return "take the invisible character out"
	}
	return `write key = value, with text in "quotes"`
}

// bareText recognises a value that lacks its quotes: engine = containerd, version = 580.95.05, cdi = True.
func (b *builder) bareText(line span) (int, *finding) {
	text := b.src.data[line.start:line.end]
	m := regexp.MustCompile(`^([\w.-]+)[ \t]*=[ \t]*([^\s"'\[{#=][^"'#=]*?)[ \t\r]*(?:#.*)?$`).FindSubmatchIndex(text)
	if m == nil || len(b.src.secrets) > 0 && b.src.secrets[len(b.src.secrets)-1].end > line.start {
		return 0, nil
	}
	key, raw := string(text[m[2]:m[3]]), string(text[m[4]:m[5]])
	at := line.start + m[4]
	switch low := strings.ToLower(raw); b.typeOf(key) {
	case TypeBool:
		fix := key + " = true or " + key + " = false"
		if slices.Contains([]string{"true", "yes", "on", "false", "no", "off"}, low) {
			fix = key + " = " + boolText(low)
		}
		return at, wrong("write "+fix, "invalid TOML: %s is no value", show(raw))
	case TypeInt:
		fix := "a whole number, such as 8"
		if n, err := strconv.Atoi(raw); err == nil {
			fix = key + " = " + itoa(n)
		}
		return at, wrong("write "+fix, "invalid TOML: %s is no number", show(raw))
	}
	return at, wrong("write "+key+" = "+show(raw), "invalid TOML: text needs quotes")
}

func boolText(word string) string {
	switch strings.ToLower(word) {
	case "true", "yes", "on", "1":
		return "true"
	}
	return "false"
}

// typeOf is the type of a key under the current header, "" if there is no such key.
func (b *builder) typeOf(key string) string {
	full := dotted(b.header) + "." + key
	for _, r := range b.rows {
		if r.Section+"."+r.Name == full {
			return r.Type
		}
	}
	return ""
}

// valueAfter is where the value of the key = value begins that starts at an offset.
func (b *builder) valueAfter(start int) int {
	data := b.src.data
	quote := byte(0)
	for i := start; i < len(data) && data[i] != '\n'; i++ {
		switch c := data[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && c == '=':
			return min(b.valueStart(i), len(data))
		}
	}
	return start
}
