// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// printf is how all text gets out. Whatever a value says stays in its line and changes nothing around it: names of processes
// and files and the words of other programs may come from a tenant, who could use them to forge gpuadm's lines.
func printf(w io.Writer, format string, values ...any) {
	for i, v := range values {
		switch v := v.(type) {
		case verbatim:
			values[i] = string(v)
		case int, int64, float64:
		default:
			values[i] = said(w, fmt.Sprint(v))
		}
	}
	fmt.Fprintf(w, format, values...)
}

// screen is a stream that an operator reads, with the command line that the operator would type.
type screen struct {
	io.Writer
	typed func(words string) string
}

// screen wraps a stream, so that printed commands carry this command line's flags.
func (c *common) screen(w io.Writer) io.Writer {
	if s, ok := w.(screen); ok {
		w = s.Writer
	}
	return screen{w, func(words string) string { return c.command(words) }}
}

// file is the open file that a stream is, or writes to.
func file(w io.Writer) (*os.File, bool) {
	if s, ok := w.(screen); ok {
		w = s.Writer
	}
	f, ok := w.(*os.File)
	return f, ok
}

// said is a text as it is printed: printable, and with commands as the reader of w types them.
func said(w io.Writer, text string) string { return printable(commandsOf(w, text)) }

func commandsOf(w io.Writer, text string) string {
	if s, ok := w.(screen); ok {
		return trouble.Commands(text, s.typed)
	}
	return trouble.Commands(text, trouble.Plain)
}

// verbatim is text of several lines, or with colours, that contains gpuadm's own words alone: printf does not escape it.
type verbatim string

// printable escapes control characters, line separators and bidirectional marks like a Go string: \n, \x1b, \u202e.
// Tabs stay, as in the lines of files.
//
// Secrets are masked first.
func printable(s string) string {
	s = mask.Message(s)
	if strings.IndexFunc(s, escaped) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case escaped(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

func escaped(r rune) bool { return !strconv.IsPrint(r) && r != '\t' }

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

// prose prints a sentence, wrapped to the terminal's width. Commands are printed unwrapped, so that they can be copied.
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
