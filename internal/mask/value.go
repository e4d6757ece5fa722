// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// assignment says where the value of a key is.
type assignment struct {
	place
	single bool // it is one value, as JSON has it; the line goes on behind it
	word   bool // it is one word: of a command line or a sentence
	spaced bool // blanks are around the separator
}

// assigned masks the value at the start of rest if name is a secret's, and returns how much of rest
// it has written.
func (m *masker) assigned(out *strings.Builder, name, rest string, a assignment) int {
	if !secret(name) && !m.pair(name, rest) {
		return 0
	}
	probe := rest[:min(len(rest), 300)] // longer values are not examined: the next key may ask for them again
	end := valueEnd(probe)
	value := strings.Trim(probe[:end], `"'`)
	plain := strings.TrimSpace(rest)
	switch {
	case plain == "":
		if !m.prose && a.depth == 0 {
			m.indent, m.text, m.all = a.indent, false, container(name) && !descends(name)
			if a.item {
				m.indent++
			}
		}
		return 0
	case strings.HasPrefix(plain, `"""`) || strings.HasPrefix(plain, "'''"):
	case descends(name) && plain[0] == '{', harmless(name, value) && (a.single || a.word || strings.Trim(rest[end:], " \t,;") == ""):
		return 0
	case m.prose && (a.spaced || strings.EqualFold(name, "key")) && plain[0] != '"' && !generated(value):
		return 0
	case a.single:
		covered, n := m.coverTo(rest, true)
		out.WriteString(covered)
		return n
	case a.word && plain[0] != '[' && plain[0] != '{':
		end = valueEnd(rest)
		out.WriteString(quoteLike(rest[:end]))
		return end
	}
	out.WriteString(m.value(rest, a.indent))
	return len(rest)
}

// pair remembers the name in a list of names and values, and says whether this is the value of a
// secret's name. Names come first, or right behind.
func (m *masker) pair(name, rest string) bool {
	const far = 256 // bytes in which the name is looked for
	switch strings.ToLower(name) {
	case "name", "key", "variable":
		m.named = secretWord(rest[:min(len(rest), far)])
	case "value":
		if m.named {
			m.named = false
			return true
		}
		behind := rest[valueEnd(rest[:min(len(rest), far)]):]
		if behind = strings.TrimLeft(behind[:min(len(behind), far)], ", \t"); behind == "" {
			behind = strings.TrimLeft(m.below[:min(len(m.below), far)], " \t")
		}
		label, after, ok := strings.Cut(behind, ":")
		label = strings.ToLower(strings.Trim(label, `"' `))
		return ok && (label == "name" || label == "key") && secretWord(strings.TrimSpace(after))
	}
	return false
}

// secretWord says whether a text begins with a secret's name, in quotes or not.
func secretWord(s string) bool {
	word := strings.Trim(s[:valueEnd(s)], `"'`)
	return secret(word) && !strings.ContainsAny(word, " /")
}

// valueEnd is the length of the value that a text begins with: a string, or a word.
func valueEnd(s string) int {
	if s == "" {
		return 0
	}
	if s[0] == '"' || s[0] == '\'' {
		if end := closing(s, 0); end > 0 {
			for end < len(s) && strings.IndexByte(" \t,;|&)]}", s[end]) < 0 {
				end++
			}
			return end
		}
	}
	if n := strings.IndexAny(s, " \t,;|&\"'`<>)]}"); n >= 0 && !strings.HasPrefix(s, Mark) {
		return n
	} else if n >= 0 {
		return len(Mark)
	}
	return len(s)
}

// quoteLike is the mark, in the quotes that the value has.
func quoteLike(value string) string {
	if value != "" && (value[0] == '"' || value[0] == '\'') {
		return value[:1] + Mark + value[:1]
	}
	if value == "" {
		return ""
	}
	return Mark
}

// value masks the rest of a line, which is the value of a secret's key.
func (m *masker) value(rest string, indent int) string {
	plain := strings.TrimSpace(rest)
	lead := rest[:len(rest)-len(strings.TrimLeft(rest, " \t"))]
	switch {
	case plain == "":
		m.indent, m.text, m.all = indent, false, false
		return rest
	case !m.prose && (plain[0] == '|' || plain[0] == '>') && len(plain) <= 4:
		m.indent, m.text = indent, true
		return lead + Mark
	case strings.HasPrefix(plain, `"""`) || strings.HasPrefix(plain, "'''"):
		if at := strings.Index(plain[3:], plain[:3]); at < 0 {
			m.until = plain[:3]
		}
		return lead + `"` + Mark + `"`
	case plain[0] == '"' || plain[0] == '\'':
		if closing(plain, 0) < 0 {
			if !m.prose {
				m.until = plain[:1]
			}
			return lead + plain[:1] + Mark + plain[:1]
		}
		return m.cover(rest)
	case plain[0] == '[' || plain[0] == '{':
		return m.cover(rest)
	case number(plain):
		return lead + "0"
	}
	tail := ""
	if strings.HasSuffix(plain, `\`) {
		tail = ` \`
	}
	return lead + Mark + tail
}

// cover masks all values in a text to its end, and keeps keys, brackets, quotes and the types of
// values.
func (m *masker) cover(s string) string {
	covered, _ := m.coverTo(s, false)
	return covered
}

// coverTo is cover. With single it ends behind the first value, and says where.
func (m *masker) coverTo(s string, single bool) (string, int) {
	m.single = single
	var out strings.Builder
	i := 0
	for i < len(s) {
		c, at := s[i], i
		switch {
		case strings.IndexByte(" \t,:=#;", c) >= 0:
			m.wantKey = m.wantKey || c == ',' && len(m.brackets) > 0 && m.brackets[len(m.brackets)-1] == '{'
			out.WriteByte(c)
			i++
			continue
		case c == '[' || c == '{':
			m.brackets, m.wantKey = append(m.brackets, c), c == '{'
			out.WriteByte(c)
			i++
			continue
		case c == ']' || c == '}':
			m.brackets, m.wantKey = m.brackets[:max(0, len(m.brackets)-1)], false
			out.WriteByte(c)
			i++
		default:
			if i = coverEnd(s, i); m.wantKey {
				m.wantKey = false
				if separator(s[i:], c == '"' || c == '\'') > 0 {
					out.WriteString(s[at:i])
					continue
				}
			}
			out.WriteString(blank(s[at:i]))
		}
		if single && len(m.brackets) == 0 {
			for i < len(s) && strings.IndexByte(" \t,;#)]}", s[i]) < 0 { // what clings to it
				i++
			}
			return out.String(), i
		}
	}
	return out.String(), i
}

// coverEnd is the end of the string or the word at i.
func coverEnd(s string, i int) int {
	if s[i] == '"' || s[i] == '\'' {
		if end := closing(s, i); end > 0 {
			return end
		}
		return len(s)
	}
	if n := strings.IndexAny(s[i:], " \t,[]{}\"'"); n > 0 {
		end := i + n
		if c := s[end-1]; n > 1 && (c == ':' || c == '=') {
			end--
		}
		return end
	}
	return len(s)
}

// blank is what is left of one value.
func blank(value string) string {
	switch {
	case value == "true", value == "false", value == "null":
		return value
	case number(value):
		return "0"
	}
	return quoteLike(value)
}

func number(s string) bool { return s != "" && strings.Trim(s, "0123456789.+-") == "" }
