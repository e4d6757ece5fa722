// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// pairs masks the values of the secret-looking keys and flags in a line. depth is how deep it lies
// in strings of strings.
func (m *masker) pairs(s string, depth int) string {
	var out strings.Builder
	noClose := [2]bool{} // no " or ' closes any more
	at := place{depth: depth, first: depth == 0, indent: len(s) - len(strings.TrimLeft(s, " "))}
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\'' && (i == 0 || !letter(s[i-1]) && !digit(s[i-1])):
			kind, end := strings.IndexByte(`"'`, c), -1
			if !noClose[kind] {
				end = closing(s, i)
				noClose[kind] = end < 0
			}
			if end < 0 {
				out.WriteByte(c)
				i++
				continue
			}
			i = m.quoted(&out, s, i, end, at)
			at.first, at.item = false, false
		case c == '[' || c == '{':
			at.open++
			at.first = false
			out.WriteByte(c)
			i++
		case c == ']' || c == '}':
			at.open = max(0, at.open-1)
			m.named = m.named && c != '}'
			out.WriteByte(c)
			i++
		case wordByte(c):
			end := i
			for end < len(s) && wordByte(s[end]) {
				end++
			}
			out.WriteString(s[i:end])
			word := s[i:end]
			i = m.word(&out, s, i, end, at)
			at.item = at.first && word == "-"
			at.first = at.first && (strings.Trim(word, "-/") == "" || word == "export" || word == "set" || word == "env")
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.String()
}

// place says where in a line a key is.
type place struct {
	depth  int  // in strings of strings
	open   int  // brackets
	indent int  // of the line
	first  bool // no other word is before it
	item   bool // it begins the item of a list
}

func wordByte(c byte) bool {
	return letter(c) || digit(c) || c >= 0x80 || strings.IndexByte("_-./@%+~*$!^\\", c) >= 0
}

// closing is the index behind the quote that closes the one at i, -1 where none does.
func closing(s string, i int) int {
	for j := i + 1; j < len(s); j++ {
		switch {
		case s[j] == '\\' && s[i] == '"':
			j++
		case s[j] == s[i]:
			return j + 1
		}
	}
	return -1
}

// quoted writes the string s[i:end], masks what it is the key of, and returns the index behind.
func (m *masker) quoted(out *strings.Builder, s string, i, end int, at place) int {
	quote, content := s[i:i+1], s[i+1:end-1]
	if sep := separator(s[end:], true); sep > 0 && content != "" {
		out.WriteString(s[i : end+sep])
		return end + sep + m.assigned(out, content, s[end+sep:], assignment{place: at, single: true})
	}
	out.WriteString(quote + m.inner(content, at.depth) + quote)
	if !flagWaits(content) {
		return end
	}
	// A list: "--token", "x"
	rest := strings.TrimLeft(s[end:], ", \t")
	next := len(s) - len(rest)
	if rest == "" {
		m.flagged = true
	} else if rest[0] == '"' || rest[0] == '\'' {
		if close := closing(rest, 0); close > 0 && !harmless(content, rest[1:close-1]) {
			out.WriteString(s[end:next] + rest[:1] + Mark + rest[:1])
			return next + close
		}
	}
	return end
}

// inner masks within a string, which may hold a command line, JSON, or lines.
func (m *masker) inner(content string, depth int) string {
	if depth > 2 || content == "" {
		return content
	}
	in := masker{indent: -1, prose: m.prose}
	plain := content
	escaped := strings.Contains(content, `\"`)
	if escaped {
		plain = strings.ReplaceAll(content, `\"`, `"`)
	}
	masked := in.pairs(plain, depth+1)
	switch {
	case masked == plain:
		return content
	case escaped:
		return strings.ReplaceAll(masked, `"`, `\"`)
	}
	return masked
}

// separator is the length of an = or : and the blanks around it, 0 where there is none. A colon
// behind a word needs a blank, a quote or a bracket behind it, or else a header's or a login's
// value may follow.
func separator(s string, quoted bool) int {
	n := len(s) - len(strings.TrimLeft(s, " \t"))
	rest := s[n:]
	switch {
	case strings.HasPrefix(rest, "=="), strings.HasPrefix(rest, "::"), strings.HasPrefix(rest, "://"), rest == "":
		return 0
	case strings.HasPrefix(rest, ":="), strings.HasPrefix(rest, "+="), strings.HasPrefix(rest, "=>"), strings.HasPrefix(rest, "?="):
		n += 2
	case rest[0] == '=', rest[0] == ':' && (quoted || n == 0 || len(rest) == 1 || rest[1] == ' '):
		n++
	default:
		return 0
	}
	return n + len(s[n:]) - len(strings.TrimLeft(s[n:], " \t"))
}

// word deals with what follows the word s[i:end], which is written, and returns the index behind
// what it has masked.
func (m *masker) word(out *strings.Builder, s string, i, end int, at place) int {
	name := s[i:end]
	if sep := separator(s[end:], false); sep > 0 {
		out.WriteString(s[end : end+sep])
		blank := s[end+sep-1] == ' ' || s[end+sep-1] == '\t'
		a := assignment{place: at, single: at.open > 0, word: !at.first && !blank || m.prose, spaced: sep > 1}
		return end + sep + m.assigned(out, name, s[end+sep:], a)
	}
	rest := strings.TrimLeft(s[end:], " \t")
	next := len(s) - len(rest)
	switch {
	case flagWaits(name) && rest == "":
		m.flagged = !m.prose
	case flagWaits(name) && next > end && rest[0] != '-':
		n := wordEnd(rest)
		value := strings.Trim(rest[:n], `"'`)
		if harmless(name, value) || m.prose && !generated(value) {
			return end
		}
		out.WriteString(s[end:next] + Mark)
		return next + n
	case at.depth == 0 && !m.prose && next > end && strings.HasPrefix(rest, `"`) && secret(name): // apt.conf: Password "x";
		if close := closing(rest, 0); close > 0 && !harmless(name, rest[1:close-1]) {
			out.WriteString(s[end:next] + `"` + Mark + `"`)
			return next + close
		}
	}
	return end
}

// wordEnd is the length of the first word of a command line, in quotes or not.
func wordEnd(s string) int {
	if s != "" && (s[0] == '"' || s[0] == '\'') {
		if end := closing(s, 0); end > 0 {
			return end
		}
	}
	if strings.HasPrefix(s, Mark) {
		return len(Mark)
	}
	if n := strings.IndexAny(s, " \t,;|&)]}\"'"); n >= 0 {
		return max(n, 1)
	}
	return len(s)
}

// flagWaits says whether a word is a flag that takes a secret in the next word.
func flagWaits(word string) bool {
	return strings.HasPrefix(word, "-") && !strings.Contains(word, "=") && len(word) > 2 && !strings.Contains(word, " ") && secret(word)
}

// generated says whether a word in a sentence may be a secret: it has letters and digits, and is no
// path.
func generated(word string) bool {
	return len(word) >= 6 && strings.ContainsAny(word, letters) && strings.ContainsAny(word, digits) && !file(word)
}
