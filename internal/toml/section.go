// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package toml

// sectionStyle is the indentation of headers and keys in a new section, so that it looks like the sections beside it.
type sectionStyle struct {
	header, key string
	quote       byte
}

// sectionStyle looks at the last sibling with a header, else at the table around.
func (d *Doc) sectionStyle(path []string) sectionStyle {
	like := -1
	for i, e := range d.exprs {
		sibling := len(e.path) == len(path) && HasPrefix(e.path, path[:len(path)-1])
		around := len(e.path) < len(path) && HasPrefix(path, e.path) && (like < 0 || len(e.path) >= len(d.exprs[like].path))
		if e.header && !e.array && (sibling || around) {
			like = i
		}
	}
	s := sectionStyle{key: d.keyStep(), quote: d.quote()}
	if like >= 0 {
		s.header = d.indent(d.exprs[like])
		s.key = d.keyIndent(like, s.header+s.key)
	}
	return s
}

// keyIndent is the indentation of the first key under a header.
func (d *Doc) keyIndent(header int, otherwise string) string {
	if next := header + 1; next < len(d.exprs) && !d.exprs[next].header {
		return d.indent(d.exprs[next])
	}
	return otherwise
}

// lines writes a section: the plain values first, then each table under a header of its own.
func (s sectionStyle) lines(header string, table Table) ([]string, error) {
	lines := []string{s.header + "[" + header + "]"}
	var subs Table
	for _, p := range table {
		if _, ok := p.Value.(Table); ok {
			subs = append(subs, p)
			continue
		}
		text, err := Text(p.Value, s.quote)
		if err != nil {
			return nil, err
		}
		lines = append(lines, s.key+KeyText(p.Key, s.quote)+" = "+text)
	}
	for _, p := range subs {
		more, err := s.lines(header+"."+KeyText(p.Key, s.quote), p.Value.(Table))
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}
