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
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// printf prints all text. It escapes each value, so that the value stays in its line: names of
// processes and files, and other programs' output, may come from a tenant, who could use them to
// forge gpuadm's lines. On a terminal it breaks lines between words.
func printf(w io.Writer, format string, values ...any) {
	columns := 0
	if s, ok := w.(screen); ok {
		columns = s.columns()
	}
	for i, v := range values {
		switch v := v.(type) {
		case verbatim:
			values[i] = string(v)
		case whole:
			values[i] = safe(w, string(v))
			columns = 0
		case int, int64, float64:
		default:
			values[i] = safe(w, fmt.Sprint(v))
		}
	}

	text := fold(fmt.Sprintf(format, values...), columns)
	fmt.Fprint(w, strings.ReplaceAll(text, glue, " "))
}

// screen is a stream that an operator reads, with its width, and the command line that the operator
// would type.
type screen struct {
	io.Writer
	typed   func(words string) string
	columns func() int
}

// screen wraps a stream, so that printed commands carry this command line's flags.
func (c *common) screen(w io.Writer) io.Writer {
	if s, ok := w.(screen); ok {
		w = s.Writer
	}
	if s, ok := w.(spoken); ok {
		w = s.Writer
	}
	stream := w
	if c.silence != nil {
		stream = spoken{w, c.silence}
	}
	return screen{
		Writer:  stream,
		typed:   func(words string) string { return c.command(words) },
		columns: func() int { return c.width(w) },
	}
}

// file returns the open file behind a stream.
func file(w io.Writer) (*os.File, bool) {
	if s, ok := w.(screen); ok {
		w = s.Writer
	}
	if s, ok := w.(spoken); ok {
		w = s.Writer
	}
	if a, ok := w.(*stdout); ok {
		w = a.Writer
	}
	f, ok := w.(*os.File)
	return f, ok
}

// safe returns a text as it is printed: escaped, and with commands as the reader of w types them.
func safe(w io.Writer, text string) string { return printable(commandsOf(w, text)) }

func commandsOf(w io.Writer, text string) string {
	if s, ok := w.(screen); ok {
		return trouble.Commands(text, s.typed)
	}
	return trouble.Commands(text, trouble.Plain)
}

// verbatim is gpuadm's own text with several lines or colours, which printf does not escape.
type verbatim string

// whole is text that is copied from a terminal, or has its own form: its lines are not broken.
type whole string

// glue joins the words of a command, which is copied in one piece: no line breaks at a NO-BREAK
// SPACE, and none is printed.
const glue = "\u00a0"

// printable escapes control characters, line separators and bidirectional marks like a Go string:
// \n, \x1b, \u202e. Tabs stay, as in the lines of files.
//
// Secrets are masked first.
func printable(s string) string {
	s = mask.Message(s)
	if strings.IndexFunc(s, isEscaped) < 0 && utf8.ValidString(s) {
		return s
	}

	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case isEscaped(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteString(s[:size])
		}

		s = s[size:]
	}

	return b.String()
}

func isEscaped(r rune) bool {
	return !strconv.IsPrint(r) && r != '\t' && string(r) != glue
}

// width returns the columns of a terminal; 0 if w is not a terminal, which means no wrapping.
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

// fold breaks the lines of a text between words, so that they have at most width columns; 0 does
// not. What continues a line begins below its text: after its blanks, its label and its sign.
func fold(text string, width int) string {
	if width <= 0 {
		return text
	}

	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if columns(line) > width {
			lines[i] = foldLine(line, textColumn(line, width/2), width)
		}
	}

	return strings.Join(lines, "\n")
}

// foldLine breaks one line; indent is the column of its text.
func foldLine(line string, indent, width int) string {
	var b strings.Builder
	column := 0
	gap := ""
	for i, word := range strings.Split(line, " ") {
		if i > 0 {
			gap += " "
		}
		if word == "" {
			continue
		}

		size := columns(word)
		isFull := column > indent && column+len(gap)+size > width
		if isFull {
			gap = "\n" + strings.Repeat(" ", indent)
			column = -1 // the newline takes no column
		}
		b.WriteString(gap + word)
		column += len(gap) + size
		gap = ""
	}

	return b.String()
}

// textColumn is the column below which a line's text continues: the last one before most that
// begins after two blanks, past its sign.
func textColumn(line string, most int) (at int) {
	runes := []rune(colours().ReplaceAllString(line, ""))
	isBlank := func(i int) bool { return i >= 0 && runes[i] == ' ' }
	for i := 1; i < min(len(runes), most); i++ {
		afterBlank := !isBlank(i) && isBlank(i-1)
		afterTwo := isBlank(i - 2)
		afterSign := at > 0 && i == at+2
		if afterBlank && (afterTwo || afterSign) {
			at = i
		}
	}

	return at
}

// columns is how many columns a text takes.
func columns(text string) int {
	return utf8.RuneCountInString(colours().ReplaceAllString(text, ""))
}

var colours = pattern.Of("\x1b\\[[0-9;]*m")
