// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package toml

// sectionStyle is how a new section is to be written so that it looks like those beside it.
type sectionStyle struct {
	header, key       string // indentation
	subHeader, subKey string // of a table inside
	subAiry           bool
	airy              bool
	quote             byte
}

// sectionStyle looks at the last sibling with a header, else at the table around.
func (d *Doc) sectionStyle(path []string) sectionStyle {
	s := sectionStyle{airy: d.airy(), quote: d.quote()}
	step, keyStep := d.tableStep(), d.keyStep()
	sibling, parent := -1, -1
	for i, e := range d.exprs {
		switch {
		case !e.header || e.array:
		case len(e.path) == len(path) && HasPrefix(e.path, path[:len(path)-1]):
			sibling = i
		case len(e.path) < len(path) && HasPrefix(path, e.path) && (parent < 0 || len(e.path) >= len(d.exprs[parent].path)):
			parent = i
		}
	}
	switch {
	case sibling >= 0:
		s.header = d.indent(d.exprs[sibling])
		s.key = d.keyIndent(sibling, s.header+keyStep)
	case parent >= 0:
		s.header = d.indent(d.exprs[parent]) + step
		s.key = s.header + keyStep
	default:
		s.key = keyStep
	}
	s.subHeader, s.subKey, s.subAiry = s.header+step, s.header+step+keyStep, s.airy && step == ""
	if sibling >= 0 {
		d.subStyle(&s, sibling, keyStep)
	}
	return s
}

// subStyle takes the manner of a table inside from the sibling's own.
func (d *Doc) subStyle(s *sectionStyle, sibling int, keyStep string) {
	above := d.exprs[sibling].path
	for i, e := range d.exprs {
		if e.header && !e.array && len(e.path) == len(above)+1 && HasPrefix(e.path, above) {
			s.subHeader = d.indent(e)
			s.subKey = d.keyIndent(i, s.subHeader+keyStep)
			s.subAiry = d.blankBefore(d.aboveComments(e.start))
			return
		}
	}
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
		if s.subAiry {
			lines = append(lines, "")
		}
		inner := s
		inner.header, inner.key = s.subHeader, s.subKey
		more, err := inner.lines(header+"."+KeyText(p.Key, s.quote), p.Value.(Table))
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}
