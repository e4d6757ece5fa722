// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	maxFiles    = 100
	maxSize     = 1 << 20 // bytes of a file
	maxKeys     = 4000    // keys and tables of a file: the parse time grows with their square
	maxFindings = 200     // of a file: an operator needs no more, and a hostile file would take minutes
	maxText     = 200     // characters of a source line that are shown
)

// A span is a part of a file, in bytes.
type span struct{ start, end int }

// A source is one file while it is read: it has its lines and its secrets, and collects faults.
type source struct {
	name    string
	data    []byte // without the byte order mark
	lines   []int  // where each line begins
	secrets []span // sorted by start once the file is parsed; never shown
	errors  trouble.Faults
	full    bool // maxFindings was reached
}

func newSource(f File) *source {
	s := &source{
		name:  cmp.Or(f.Name, "node.toml"),
		data:  bytes.TrimPrefix(f.Data, []byte("\ufeff")),
		lines: []int{0},
	}
	for i, c := range s.data {
		if c == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}

	return s
}

// add notes a fault at an offset.
func (s *source) add(offset int, f *trouble.Error) {
	s.full = len(s.errors) == maxFindings
	if s.full {
		return
	}

	line, column := s.position(offset)
	f.At = trouble.Position{File: s.name, Line: line, Column: column} // finish adds the text of the line
	s.errors = append(s.errors, f)
}

func (s *source) addf(offset int, fix, format string, args ...any) {
	if !s.full { // formatting a message takes time
		s.add(offset, wrong(fix, format, args...))
	}
}

// finish returns the faults in order, with their source lines.
func (s *source) finish() trouble.Faults {
	if len(s.errors) == 0 {
		return nil
	}
	sorting.By(s.errors, byPlace)

	line := 0 // of the fault before
	for _, e := range s.errors {
		if e.At.Line != line {
			s.secrets = append(s.secrets, lexicalSecrets(s.data, s.lineSpan(e.At.Line-1))...)
		}
		line = e.At.Line
	}

	sorting.By(s.secrets, func(a, b span) int { return cmp.Compare(a.start, b.start) })

	if s.full {
		more := wrong("fix those above first", "too many problems; the rest is not shown")
		more.At = s.errors[len(s.errors)-1].At
		s.errors = append(s.errors, more)
	}

	scrub(s.errors)
	for _, e := range s.errors {
		e.At.Text = s.text(e.At.Line)
	}
	return s.errors
}

// byPlace orders faults by line, column and message.
func byPlace(a, b *trouble.Error) int {
	return cmp.Or(
		cmp.Compare(a.At.Line, b.At.Line),
		cmp.Compare(a.At.Column, b.At.Column),
		strings.Compare(a.What, b.What),
	)
}

// lineOf returns the number of the line of an offset, from 0.
func (s *source) lineOf(offset int) int {
	i, found := slices.BinarySearch(s.lines, offset)
	if !found {
		i--
	}
	return i
}

// position returns line and column of an offset, from 1. A column is a rune: an editor shows a tab,
// an accented letter and a broken byte as one column each.
func (s *source) position(offset int) (line, column int) {
	offset = max(0, min(offset, len(s.data)))
	i := s.lineOf(offset)
	return i + 1, utf8.RuneCount(s.data[s.lines[i]:offset]) + 1
}

// lineSpan returns the span of a line (from 0) without its line end.
func (s *source) lineSpan(i int) span {
	end := len(s.data)
	if i+1 < len(s.lines) {
		end = s.lines[i+1] - 1
	}
	if end > s.lines[i] && s.data[end-1] == '\r' {
		end--
	}
	return span{s.lines[i], end}
}

// text returns a source line (from 1) for a message: without secrets and control characters, and
// shortened. It cuts the line at the first secret instead of masking the secret: if the quotes are
// wrong, the rest of the line may belong to it.
func (s *source) text(line int) string {
	raw, hidden := s.withoutSecrets(s.lineSpan(line - 1))
	var b strings.Builder
	for shown := 0; len(raw) > 0; shown++ {
		if shown == maxText {
			b.WriteRune('…')
			return b.String()
		}
		r, size := utf8.DecodeRune(raw)
		if r != '\t' && !unicode.IsGraphic(r) {
			r = utf8.RuneError // a terminal must not interpret a file's control characters
		}
		b.WriteRune(r)
		raw = raw[size:]
	}

	if hidden {
		b.WriteString(mask)
	}
	return b.String()
}

// withoutSecrets returns a line up to its first secret, and says whether it has one.
func (s *source) withoutSecrets(line span) (text []byte, hidden bool) {
	for _, secret := range s.secrets {
		if secret.start < line.end && secret.end > line.start {
			return s.data[line.start:max(line.start, secret.start)], true
		}
	}
	return s.data[line.start:line.end], false
}
