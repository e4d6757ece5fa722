// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// kubeletVar is one assignment in a file of KEY=VALUE lines: its value, and where each byte of it stands in the file.
type kubeletVar struct {
	key        string
	value      []byte
	from, to   []int // of each byte of the value: its first byte in the file, and the one after its last
	start, end int   // of the assignment in the file, without the end of the line
	first      int   // where an empty value begins
}

// kubeletEnv is a scan of such a file, as systemd reads it: the states are those of parse_env_file_internal in
// systemd's src/basic/env-file.c. A quote opens only where a value begins or another quote has closed; within a value
// that is not quoted it stands for itself. A backslash keeps the next character from meaning anything, and takes the
// end of a line away.
type kubeletEnv struct {
	data []byte
	pos  int
	vars []kubeletVar
}

func parseKubeletEnv(data []byte) ([]kubeletVar, error) {
	s := &kubeletEnv{data: data}
	for s.pos < len(data) {
		switch c := data[s.pos]; {
		case kubeletBlank(c):
			s.pos++
		case c == '#' || c == ';':
			s.toLineEnd()
			if data[s.pos-1] == '\\' && s.pos < len(data) {
				// Before v254 the next line belonged to the comment, since then it does not.
				return nil, fmt.Errorf("line %d is a comment that ends in a backslash: systemd's versions disagree on what that means", s.line())
			}
		default:
			if err := s.assignment(); err != nil {
				return nil, err
			}
		}
	}
	return s.vars, nil
}

func kubeletBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func kubeletLineEnd(c byte) bool { return c == '\n' || c == '\r' }

func (s *kubeletEnv) line() int { return 1 + bytes.Count(s.data[:s.pos], []byte("\n")) }

func (s *kubeletEnv) toLineEnd() {
	for s.pos < len(s.data) && !kubeletLineEnd(s.data[s.pos]) {
		s.pos++
	}
}

func (s *kubeletEnv) assignment() error {
	v := kubeletVar{start: s.pos}
	for s.pos < len(s.data) && s.data[s.pos] != '=' {
		if kubeletLineEnd(s.data[s.pos]) {
			return nil // no assignment: systemd passes over it
		}
		s.pos++
	}
	if s.pos == len(s.data) {
		return nil
	}
	v.key = strings.TrimRight(string(s.data[v.start:s.pos]), " \t")
	s.pos++
	v.first = s.pos
	if err := s.value(&v); err != nil {
		return err
	}
	v.end = s.pos
	s.vars = append(s.vars, v)
	return nil
}

// value reads up to the end of the line that ends the value.
func (s *kubeletEnv) value(v *kubeletVar) error {
	began := false // an unquoted stretch has begun: quotes are characters now
	solid := 0     // bytes of the value that are not blanks at the end of an unquoted one
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; {
		case kubeletLineEnd(c):
			v.cut(solid, began)
			return nil
		case c == '\\':
			began = true
			if s.pos+1 == len(s.data) {
				return errors.New("the file ends in a backslash")
			}
			s.pos++
			if !kubeletLineEnd(s.data[s.pos]) {
				v.add(s.data[s.pos], s.pos-1, s.pos+1)
			}
			solid = len(v.value)
		case !began && (c == '\'' || c == '"'):
			if err := s.quoted(v); err != nil {
				return err
			}
			solid = len(v.value)
		case !began && (c == ' ' || c == '\t'):
		default:
			began = true
			v.add(c, s.pos, s.pos+1)
			if c != ' ' && c != '\t' {
				solid = len(v.value)
			}
		}
	}
	v.cut(solid, began)
	return nil
}

// quoted reads from a quote to the one that closes it, and stays on that.
func (s *kubeletEnv) quoted(v *kubeletVar) error {
	quote, line := s.data[s.pos], s.line()
	if len(v.value) == 0 {
		v.first = s.pos + 1
	}
	for s.pos++; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; {
		case c == quote:
			return nil
		case c == '\\' && quote == '"' && s.pos+1 < len(s.data):
			next := s.data[s.pos+1]
			switch {
			case strings.IndexByte("\"\\`$", next) >= 0:
				v.add(next, s.pos, s.pos+2)
			case next != '\n': // a backslash before anything else stands for itself
				v.add(c, s.pos, s.pos+1)
				v.add(next, s.pos+1, s.pos+2)
			}
			s.pos++
		default:
			v.add(c, s.pos, s.pos+1)
		}
	}
	return fmt.Errorf("the quote in line %d is not closed", line)
}

func (v *kubeletVar) add(c byte, from, to int) {
	v.value, v.from, v.to = append(v.value, c), append(v.from, from), append(v.to, to)
}

// cut takes the blanks off an unquoted value's end.
func (v *kubeletVar) cut(solid int, began bool) {
	if began {
		v.value, v.from, v.to = v.value[:solid], v.from[:solid], v.to[:solid]
	}
}

// kubeletSplice replaces a part of a file.
type kubeletSplice struct {
	from, to int
	text     string
}

// kubeletSpliced makes all replacements. What one has taken away another may take away too.
func kubeletSpliced(data []byte, all []kubeletSplice) []byte {
	slices.SortStableFunc(all, func(a, b kubeletSplice) int { return a.from - b.from })
	var out []byte
	at := 0
	for _, s := range all {
		if s.from > at {
			out = append(out, data[at:s.from]...)
		}
		out = append(out, s.text...)
		at = max(at, s.to)
	}
	return append(out, data[at:]...)
}

// kubeletNewline is how the file ends its lines.
func kubeletNewline(data []byte) string {
	if i := bytes.IndexByte(data, '\n'); i > 0 && data[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}
