// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"slices"
	"strings"
)

// top is the offset of the first byte that is not the byte order mark.
func (d *Doc) top() int {
	if bytes.HasPrefix(d.src, []byte(BOM)) {
		return len(BOM)
	}
	return 0
}

// eol is the line break most lines end in.
func (d *Doc) eol() string {
	crlf := bytes.Count(d.src, []byte("\r\n"))
	if crlf > 0 && crlf*2 >= bytes.Count(d.src, []byte("\n")) {
		return "\r\n"
	}
	return "\n"
}

// quote is the quotation mark around most strings and keys.
func (d *Doc) quote() byte {
	single := 0
	double := 0
	count := func(off int) {
		switch d.src[off] {
		case '\'':
			single++
		case '"':
			double++
		}
	}

	for _, e := range d.exprs {
		for _, key := range e.keys {
			count(key.start)
		}
		if !e.header {
			count(e.value.start)
		}
	}

	if single > double {
		return '\''
	}
	return '"'
}

func (d *Doc) quoteOf(n *node) byte {
	if d.src[n.value.start] == '\'' {
		return '\''
	}
	return '"'
}

// keyStep is how much further a key is indented than its header, in the first section that shows
// it.
func (d *Doc) keyStep() string {
	for _, e := range d.exprs {
		if e.header || e.section < 0 {
			continue
		}
		header := d.exprs[e.section]
		if step, ok := strings.CutPrefix(d.indent(e), d.indent(header)); ok {
			return step
		}
	}
	return "  "
}

func (d *Doc) blankBefore(at int) bool {
	start := d.lineBefore(at)
	return start >= 0 && len(bytes.TrimSpace(d.src[start:at])) == 0
}

// lineBefore is the start of the line that ends at offset at, -1 when there is none.
func (d *Doc) lineBefore(at int) int {
	if at <= d.top() {
		return -1
	}
	return max(d.top(), bytes.LastIndexByte(d.src[:at-1], '\n')+1)
}

func (d *Doc) isComment(start int) bool {
	return bytes.HasPrefix(bytes.TrimLeft(d.src[start:], " \t"), []byte("#"))
}

// aboveComments is the start of the comment lines that are right above a line and belong to it.
func (d *Doc) aboveComments(at int) int {
	for {
		start := d.lineBefore(at)
		if start < 0 || !d.isComment(start) || !d.onlyComment(start) {
			return at
		}
		at = start
	}
}

// onlyComment reports that no value reaches into the line: a # at its start is then a comment, not
// part of a string.
func (d *Doc) onlyComment(start int) bool {
	i, _ := slices.BinarySearchFunc(d.exprs, start, func(e expr, off int) int {
		return e.end - off
	})
	for ; i < len(d.exprs) && d.exprs[i].start <= start; i++ {
		if d.exprs[i].end > start {
			return false
		}
	}

	return true
}

// belowComments is the end of the comment lines that go with the line ending at at:
// those right below, unless they lead up to the next header.
func (d *Doc) belowComments(at int) int {
	end := at
	for end < len(d.src) && d.isComment(end) {
		end = lineEnd(d.src, end)
	}
	if end < len(d.src) && len(bytes.TrimSpace(d.src[end:lineEnd(d.src, end)])) > 0 {
		return at
	}
	return end
}

// addSection writes a table with its own header, next to its siblings.
func (d *Doc) addSection(path []string, table Table) (splice, error) {
	s := d.sectionStyle(path)
	lines, err := s.lines(d.headerText(path, s.quote), table)
	if err != nil {
		return splice{}, err
	}

	if d.lookup(path) != nil { // only its sub-tables have headers so far: it goes above them
		for _, e := range d.exprs {
			if e.header && HasPrefix(e.path, path) {
				at := d.aboveComments(e.start)
				return d.spliceLines(at, append(lines, "")), nil
			}
		}
	}

	at := d.sectionEnd(path)
	if len(bytes.TrimSpace(d.src[d.top():at])) > 0 && !d.blankBefore(at) {
		lines = slices.Insert(lines, 0, "")
	}
	return d.spliceLines(at, lines), nil
}

// sectionEnd is the offset after the last line of the nearest sibling of a table, or the end of the
// file.
func (d *Doc) sectionEnd(path []string) int {
	around := d.deepest(path).path
	if len(around) < 2 {
		return len(d.src)
	}
	at := len(d.src)
	for _, e := range d.exprs {
		if HasPrefix(e.path, around) {
			at = e.end
		}
	}

	return d.belowComments(at)
}

// headerText writes the path of a header, its first parts spelled as in the nearest header.
func (d *Doc) headerText(path []string, quote byte) string {
	text := ""
	spelled := 0 // how many parts text has
	for _, e := range d.exprs {
		if !e.header {
			continue
		}
		same := 0
		for same < len(path) && same < len(e.path) && path[same] == e.path[same] {
			same++
		}
		if same > 0 && same >= spelled {
			spelled = same
			text = string(d.src[e.keys[0].start:e.keys[same-1].end])
		}
	}

	for i, name := range path[spelled:] {
		if spelled+i > 0 {
			text += "."
		}
		text += KeyText(name, quote)
	}

	return text
}
