// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A parser says where it stopped. A user wants to know where the fault is and what to write: most invalid TOML in practice is text
// without quotes.

// syntax turns the parser's error at an offset, in the expression that begins at start, into a finding with its place.
func (b *builder) syntax(start, at int, message string) (int, *trouble.Error) {
	data := b.src.data
	line := span{start, b.src.lineSpan(b.src.lineOf(start)).end}
	opened := b.valueStart(start)
	byteAt := func(at int) byte { return append(data[at:len(data):len(data)], 0)[0] }
	fix := `write key = value, with text in "quotes"`
	switch header := byteAt(start) == '['; {
	case header:
		fix = "write the section's name in brackets, on a line of its own: [driver]"
	case at >= len(data)-1 && regexp.MustCompile("incomplete|terminated|end of input").MatchString(message):
		switch byteAt(opened) {
		case '[':
			return opened, wrong("write the missing bracket", "invalid TOML: the list that begins here is not closed")
		case '{':
			return opened, wrong("write the missing bracket", "invalid TOML: the table that begins here is not closed")
		case '"', '\'':
			return opened, wrong("write the missing quote", "invalid TOML: the text that begins here is not closed")
		}
		return opened, wrong(`write one, text in "quotes"`, "invalid TOML: the value is missing")
	case at <= line.end:
		if at, f := b.bareText(line); f != nil {
			return at, f
		}
		if strings.HasPrefix(message, "expected '='") && byteAt(at) == ':' {
			fix = "write = in place of the colon"
		}
	}
	bracket := "put a comma between the elements, or write the missing bracket"
	if first := b.src.lineOf(opened); first != b.src.lineOf(at) {
		bracket = "put a comma between the elements, or close the bracket opened on line " + strconv.Itoa(first+1)
	}
	for _, known := range []struct{ words, says, fix string }{
		{"cannot have new lines", "the text is not closed on its line", "close the quotes on the same line"},
		{"escape", message, `write \\ for a backslash, or put the text in 'single quotes'`},
		{"after (array value|inline table key-value)", message, bracket},
		{"leading zeroes", message, "put quotes around text; write a number without leading zeroes"},
		{"control character|carriage return", message, "take the invisible character out"},
		{"expected newline", "nothing may follow on this line", fix},
		{`unexpected character U\+00(0A|0D|23)`, "the value is missing", `write one, text in "quotes"`},
		{"unexpected character", "text needs quotes", fix},
	} {
		if regexp.MustCompile(known.words).MatchString(message) {
			message, fix = known.says, known.fix
			break
		}
	}
	return at, wrong(fix, "invalid TOML: %s", message)
}

// bareText recognises a value that lacks its quotes: engine = containerd, version = 580.95.05, cdi = True.
func (b *builder) bareText(line span) (int, *trouble.Error) {
	text := b.src.data[line.start:line.end]
	m := regexp.MustCompile(`^([\w.-]+)[ \t]*=[ \t]*([^\s"'\[{#=][^"'#=]*?)[ \t\r]*(?:#.*)?$`).FindSubmatchIndex(text)
	if m == nil || len(b.src.secrets) > 0 && b.src.secrets[len(b.src.secrets)-1].end > line.start {
		return 0, nil
	}
	key, raw := string(text[m[2]:m[3]]), string(text[m[4]:m[5]])
	at := line.start + m[4]
	if r := b.row(key); r != nil && (r.Type == TypeBool || r.Type == TypeInt) {
		return at, wrong("write "+suggestion(*r, &value{text: raw}), "invalid TOML: %s is no %s", show(raw), r.Type)
	}
	return at, wrong("write "+key+" = "+show(raw), "invalid TOML: text needs quotes")
}

// row is the row of a key under the current header, nil if there is none.
func (b *builder) row(key string) *row {
	section := ""
	for _, p := range b.header {
		section = strings.TrimPrefix(section+"."+p.name, ".")
	}
	return (&decoder{rows: b.rows}).row(section, key)
}
