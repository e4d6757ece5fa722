// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// width is how many columns a terminal has; 0 where w is none, and nothing is wrapped.
func (e env) width(w io.Writer) int {
	f, ok := file(w)
	if !ok || !e.tty(w) {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// prose prints a line of words, wrapped to a terminal's width. What is to be typed is not printed by it.
func (c *common) prose(w io.Writer, indent int, text string) {
	printf(w, "%s%s\n", verbatim(strings.Repeat(" ", indent)), verbatim(wrap(said(w, text), indent, c.width(w)-indent)))
}

// wrap breaks text into lines of at most width characters, those after the first indented. A width of 0 or less does not.
func wrap(text string, indent, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	var b strings.Builder
	n := 0 // characters of the line
	for i, word := range strings.Split(text, " ") {
		long := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case n+1+long > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += long
	}
	return b.String()
}
