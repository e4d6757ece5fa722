// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"iter"
)

// paragraphs goes through text in the form of deb822(5).
func paragraphs(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			paragraph, rest, _ := bytes.Cut(text, []byte("\n\n"))
			text = rest
			if len(bytes.TrimSpace(paragraph)) > 0 && !yield(paragraph) {
				return
			}
		}
	}
}

// fields goes through the fields of a paragraph, with the lines that continue a value.
func fields(paragraph []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for len(paragraph) > 0 {
			end := endOfField(paragraph)
			key, value, ok := bytes.Cut(paragraph[:end], []byte(":"))
			if ok && beginsField(paragraph[0]) && !yield(key, bytes.TrimSpace(value)) {
				return
			}
			paragraph = paragraph[end:]
		}
	}
}

// endOfField returns where the field ends: at the first line that neither continues it nor is a
// comment.
func endOfField(text []byte) int {
	at := 0
	for {
		line := bytes.IndexByte(text[at:], '\n') + 1
		at += line
		if line == 0 || at == len(text) {
			return len(text)
		}
		if beginsField(text[at]) {
			return at
		}
	}
}

// beginsField reports whether a line that begins with c is neither a continuation nor a comment.
func beginsField(c byte) bool { return c != ' ' && c != '\t' && c != '#' }
