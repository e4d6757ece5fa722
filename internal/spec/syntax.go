// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/content"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A parser reports where it stopped. A user needs the place of the fault and the fix: in practice
// most invalid TOML is text without quotes.

// syntax turns the parser's error at an offset, in the expression that begins at start, into a
// finding and its place.
func (b *builder) syntax(start, at int, message string) (int, *trouble.Error) {
	data := b.src.data
	if fault := otherFormat(data, start); fault != nil {
		return start, fault
	}

	line := span{start, b.src.lineSpan(b.src.lineOf(start)).end}
	opened := b.valueStart(start)
	isHeader := byteAt(data, start) == '['
	fix := `write key = value, with text in "quotes"`
	switch {
	case isHeader:
		fix = "write the section's name in brackets, on a line of its own: [driver]"
	case at >= len(data)-1 && matches("incomplete|terminated|end of input", message):
		return opened, unclosed(byteAt(data, opened))
	case at <= line.end && byteAt(data, at) == '=' && byteAt(data, at-1) == '=':
		return at, wrong("write a single =", "invalid TOML: there is a second =")
	case bytes.Contains(data[line.start:line.end], []byte("\r")):
		return line.start, wrong("save the file with the line ends of Linux", "the lines end in a carriage return alone")
	case at <= line.end:
		if at, fault := b.bareText(line); fault != nil {
			return at, fault
		}
		if fault := otherLine(data[line.start:line.end]); fault != nil {
			return line.start, fault
		}
		fix = cmp.Or(fixOfCharacter(data[at:], message), fix)
	}

	bracket := "write the missing bracket"
	if first := b.src.lineOf(opened); first != b.src.lineOf(at) {
		bracket = "close the bracket opened on line " + strconv.Itoa(first+1)
	}
	bracket = "put a comma between the elements, or " + bracket
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
		if matches(known.words, message) {
			return at, wrong(known.fix, "invalid TOML: %s", known.says)
		}
	}

	return at, wrong(fix, "invalid TOML: %s", message)
}

// fixOfCharacter says what to write in place of the character at which the parser stopped; "" if
// the character is not at fault.
func fixOfCharacter(rest []byte, message string) string {
	noEquals := strings.HasPrefix(message, "expected '='")
	first := byteAt(rest, 0)
	switch {
	case bytes.HasPrefix(rest, []byte("\u00a0")):
		return "write a plain space: there is a NO-BREAK SPACE"
	case !noEquals:
		return ""
	case first >= utf8.RuneSelf:
		char, _ := utf8.DecodeRune(rest)
		return fmt.Sprintf("write the key in plain letters: %q is U+%04X", char, char)
	case first == ':':
		return "write = in place of the colon"
	case first == '/':
		return "put the whole name in quotes: \"example.com/pool\" = \"gpu\""
	}

	return ""
}

// otherLine recognises a line that is no TOML at all; nil if it may be TOML.
func otherLine(line []byte) *trouble.Error {
	text := bytes.TrimSpace(line)
	isComment := false
	for _, mark := range []string{";", "//", "/*", "-- "} {
		isComment = isComment || bytes.HasPrefix(text, []byte(mark))
	}
	isPrompt := bytes.HasPrefix(text, []byte("$ "))
	isPair := bytes.ContainsAny(text, "=:[]{} \t")
	isStray := isPrompt || !isPair
	switch {
	case isComment:
		return wrong("begin the comment with #", "invalid TOML: this is no comment")
	case isStray:
		return wrong("take this line out", "invalid TOML: this line is neither a [section] nor key = value")
	}

	return nil
}

// byteAt returns the byte at an offset; 0 at the end.
func byteAt(data []byte, at int) byte {
	if at >= len(data) {
		return 0
	}
	return data[at]
}

const specIs = "a spec is TOML, with key = value below a [section]; gpuadm help spec lists them"

// otherFormat recognises a file that is not TOML; nil if it may be TOML.
func otherFormat(data []byte, start int) *trouble.Error {
	for _, other := range []struct{ begins, has, is, fix string }{
		{"<<<<<<<", "", "the mark of a merge conflict", "keep one of the two sides, and take the marks out"},
		{"{", "", "this is JSON", specIs},
		{"", "mig-configs:", "this is YAML, of mig-parted", `name this file in node.toml: file = "…" in [mig]`},
	} {
		if bytes.HasPrefix(data[start:], []byte(other.begins)) && bytes.Contains(data, []byte(other.has)) {
			return wrong(other.fix, "%s", other.is)
		}
	}

	what := content.Of(data)
	isOneLine := what == "YAML" && len(yamlLine().FindAll(data, 2)) < 2
	switch {
	case isOneLine, what == "", what == "empty", what == "TOML": // the place of the first fault says more
		return nil
	}

	return wrong(specIs, "this is %s", what)
}

// yamlLine is a line as YAML has it: one alone may be a mistake in TOML.
var yamlLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\s*(?:- )?[\w.-]+:(?:\s|$)`)
})

// unclosed says what is missing at the end of the file, after a value that begins with this byte.
func unclosed(begins byte) *trouble.Error {
	switch begins {
	case '[':
		return wrong("write the missing bracket", "invalid TOML: the list that begins here is not closed")
	case '{':
		return wrong("write the missing bracket", "invalid TOML: the table that begins here is not closed")
	case '"', '\'':
		return wrong("write the missing quote", "invalid TOML: the text that begins here is not closed")
	}
	return wrong(`write one, text in "quotes"`, "invalid TOML: the value is missing")
}

// bareText recognises a value that lacks its quotes: engine = containerd, version = 580.95.05, cdi
// = True.
func (b *builder) bareText(line span) (int, *trouble.Error) {
	text := b.src.data[line.start:line.end]
	const bare = `^([\w.-]+)[ \t]*=[ \t]*([^\s"'\[{#=][^"'#=]*?)[ \t\r]*(?:#.*)?$`
	m := regexp.MustCompile(bare).FindSubmatchIndex(text)
	if m == nil || b.src.hidesAfter(line.start) {
		return 0, nil
	}

	key := string(text[m[2]:m[3]])
	raw := string(text[m[4]:m[5]])
	at := line.start + m[4]
	r := b.row(key)
	if r != nil && (r.Type == TypeBool || r.Type == TypeInt) {
		fix := "write " + suggestion(*r, &value{text: raw})
		_, _, comments := strings.Cut(raw, "//")
		switch {
		case comments:
			fix = "a comment begins with #"
		case r.String() == "format":
			fix = "write format = " + strconv.Itoa(format)
		}

		return at, wrong(fix, "invalid TOML: %s is not %s", show(raw), withArticle(r.Type))
	}

	says := "text needs quotes"
	if plain := strings.Trim(raw, "“”„‟‘’‚«»"); plain != raw {
		raw = plain
		says = "text needs straight quotes"
	}
	return at, wrong("write "+key+" = "+show(raw), "invalid TOML: %s", says)
}

// hidesAfter says whether the last secret found so far ends after an offset.
func (s *source) hidesAfter(offset int) bool {
	last := len(s.secrets) - 1
	return last >= 0 && s.secrets[last].end > offset
}

// row returns the row of a key under the current header, nil if there is none.
func (b *builder) row(key string) *row {
	section := ""
	for _, p := range b.header {
		section = strings.TrimPrefix(section+"."+p.name, ".")
	}
	return (&decoder{rows: b.rows}).row(section, key)
}

// sectionNames returns the sections without a dot in their names.
func sectionNames(rows []row) []string {
	var names []string
	for _, r := range rows {
		if r.Section != "" && !strings.Contains(r.Section, ".") && !slices.Contains(names, r.Section) {
			names = append(names, r.Section)
		}
	}

	return names
}
