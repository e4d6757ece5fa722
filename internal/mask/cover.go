// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// cover masks all values in a text to its end. Keys, brackets, quotes and the types of values stay.
func (m *masker) cover(s string) string {
	covered, _ := m.coverTo(s, false)
	return covered
}

// coverTo is cover; with single it ends after the first value. It returns the index where it ended.
func (m *masker) coverTo(s string, single bool) (string, int) {
	m.single = single
	var out strings.Builder
	i := 0
	for i < len(s) {
		c := s[i]
		start := i
		i++
		switch {
		case strings.IndexByte(" \t,:=#;", c) >= 0:
			if c == ',' && m.inObject() {
				m.wantKey = true
			}
			out.WriteByte(c)
			continue
		case c == '[' || c == '{':
			m.brackets = append(m.brackets, c)
			m.wantKey = c == '{'
			out.WriteByte(c)
			continue
		case c == ']' || c == '}':
			m.brackets = m.brackets[:max(0, len(m.brackets)-1)]
			m.wantKey = false
			out.WriteByte(c)
		default:
			i = coverEnd(s, start)
			quoted := c == '"' || c == '\''
			isKey := m.wantKey && separator(s[i:], quoted) > 0
			m.wantKey = false
			if isKey {
				out.WriteString(s[start:i])
				continue
			}
			out.WriteString(coverValue(s[start:i]))
		}

		if single && len(m.brackets) == 0 {
			return out.String(), skipTo(s, i, " \t,;#)]}") // what follows without a blank belongs to it
		}
	}

	return out.String(), i
}

// inObject reports whether the innermost open bracket is an object's.
func (m *masker) inObject() bool {
	return len(m.brackets) > 0 && m.brackets[len(m.brackets)-1] == '{'
}

// coverEnd returns the end of the string or the word at i.
func coverEnd(s string, i int) int {
	if opensQuote(s[i:]) {
		if end := closing(s, i); end > 0 {
			return end
		}
		return len(s)
	}

	n := strings.IndexAny(s[i:], " \t,[]{}\"'")
	if n <= 0 {
		return len(s)
	}
	end := i + n
	if last := s[end-1]; n > 1 && (last == ':' || last == '=') {
		end--
	}
	return end
}

// coverValue returns what is left of one value.
func coverValue(value string) string {
	switch {
	case value == "true", value == "false", value == "null":
		return value
	case isNumber(value):
		return "0"
	}
	return quoteLike(value)
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789.+-") == "" }
