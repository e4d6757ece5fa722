// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

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
	s := &source{name: f.Name, data: bytes.TrimPrefix(f.Data, []byte("\ufeff"))}
	if s.name == "" {
		s.name = "node.toml"
	}
	s.lines = []int{0}
	for i, c := range s.data {
		if c == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	return s
}

// add notes a fault at an offset.
func (s *source) add(offset int, f *trouble.Error) {
	if s.full = len(s.errors) == maxFindings; s.full {
		return
	}
	// finish adds the line's text, once all secrets are known.
	line, column := s.position(offset)
	f.At = trouble.Position{File: s.name, Line: line, Column: column}
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
	slices.SortFunc(s.errors, func(a, b *trouble.Error) int {
		return cmp.Or(cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column), strings.Compare(a.What, b.What))
	})
	last := 0
	for _, e := range s.errors {
		if e.At.Line != last {
			s.secrets = append(s.secrets, lexicalSecrets(s.data, s.lineSpan(e.At.Line-1))...)
		}
		last = e.At.Line
	}
	slices.SortFunc(s.secrets, func(a, b span) int { return cmp.Compare(a.start, b.start) })
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

// lineOf is the number of the line of an offset, from 0.
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
	at := s.lineSpan(line - 1)
	raw, hidden := s.data[at.start:at.end], false
	for _, secret := range s.secrets {
		if secret.start >= at.end {
			break
		}
		if secret.end <= at.start {
			continue
		}
		raw, hidden = s.data[at.start:max(at.start, secret.start)], true
		break
	}
	var b strings.Builder
	n := 0
	for len(raw) > 0 {
		if n == maxText {
			b.WriteRune('…')
			return b.String()
		}
		r, size := utf8.DecodeRune(raw)
		if r != '\t' && !unicode.IsGraphic(r) {
			r = utf8.RuneError // a terminal must not interpret a file's control characters
		}
		b.WriteRune(r)
		raw = raw[size:]
		n++
	}
	if hidden {
		b.WriteString(mask)
	}
	return b.String()
}
