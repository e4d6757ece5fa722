// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// place says where in a line a key is.
type place struct {
	depth  int  // in strings within strings
	open   int  // brackets
	indent int  // of the line
	first  bool // no other word is before it
	item   bool // it begins the item of a list
}

// pairs masks the values of the secret-looking keys and flags in a line. depth counts the strings
// within strings that s is in.
func (m *masker) pairs(s string, depth int) string {
	var out strings.Builder
	at := place{
		depth:  depth,
		first:  depth == 0,
		indent: len(s) - len(strings.TrimLeft(s, " ")),
	}
	// The quotes that nothing closes any more, each searched once: else a line of quotes takes time
	// quadratic in its length.
	var unclosed [256]bool

	for i := 0; i < len(s); {
		c := s[i]
		if wordByte(c) {
			end := i
			for end < len(s) && wordByte(s[end]) {
				end++
			}
			word := s[i:end]
			out.WriteString(word)
			i = m.word(&out, s, i, end, at)
			at.item = at.first && word == "-"
			at.first = at.first && precedesKey(word)
			continue
		}

		if isQuote(s, i) && !unclosed[c] {
			end := closing(s, i)
			if end > 0 {
				i = m.quoted(&out, s, i, end, at)
				at.first = false
				at.item = false
				continue
			}

			unclosed[c] = true
		}

		switch c {
		case '[', '{':
			at.open++
			at.first = false
		case ']', '}':
			at.open = max(0, at.open-1)
			m.named = m.named && c != '}'
		}

		out.WriteByte(c)
		i++
	}

	return out.String()
}

// precedesKey reports whether the word after this one may still be the line's key.
func precedesKey(word string) bool {
	switch word {
	case "export", "set", "env":
		return true
	}
	return strings.Trim(word, "-/") == ""
}

func wordByte(c byte) bool {
	return letter(c) || digit(c) || c >= 0x80 || strings.IndexByte("_-./@%+~*$!^\\", c) >= 0
}

// isQuote reports whether a string may begin at i. A ' after a letter or a digit is an apostrophe.
func isQuote(s string, i int) bool {
	if s[i] == '\'' {
		return i == 0 || !letter(s[i-1]) && !digit(s[i-1])
	}
	return s[i] == '"'
}

// closing returns the index after the quote that closes the one at i, -1 if none does.
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

// quoted writes the string s[i:end] and masks the value whose key it is. It returns the index after
// what it has written.
func (m *masker) quoted(out *strings.Builder, s string, i, end int, at place) int {
	quote := s[i : i+1]
	content := s[i+1 : end-1]
	if sep := separator(s[end:], true); sep > 0 && content != "" {
		value := end + sep
		out.WriteString(s[i:value])
		return value + m.assigned(out, content, s[value:], assignment{place: at, single: true})
	}

	out.WriteString(quote + m.inner(content, at.depth) + quote)
	if !takesSecret(content) {
		return end
	}

	// The flag is the item of a list: "--token", "x"
	rest := strings.TrimLeft(s[end:], ", \t")
	if rest == "" {
		m.flagged = true
		return end
	}
	return maskString(out, s, end, rest, content)
}

// maskString masks the string that rest, the end of s, begins with, unless there is none or it is
// harmless as a value of name. s is written up to end. It returns the index after what it has
// written.
func maskString(out *strings.Builder, s string, end int, rest, name string) int {
	if !opensQuote(rest) {
		return end
	}
	length := closing(rest, 0)
	if length < 0 || isHarmless(name, rest[1:length-1]) {
		return end
	}

	next := len(s) - len(rest)
	out.WriteString(s[end:next])
	out.WriteString(quoteLike(rest))
	return next + length
}

// inner masks within a string, which may contain a command line, JSON, or lines.
func (m *masker) inner(content string, depth int) string {
	if depth > 2 || content == "" {
		return content
	}

	plain := content
	escaped := strings.Contains(content, `\"`)
	if escaped {
		plain = strings.ReplaceAll(content, `\"`, `"`)
	}

	in := masker{indent: -1, prose: m.prose}
	masked := in.pairs(plain, depth+1)
	switch {
	case masked == plain:
		return content
	case escaped:
		return strings.ReplaceAll(masked, `"`, `\"`)
	}

	return masked
}

// separator returns the length of an = or : with the blanks around it, 0 if there is none. A colon
// that is apart from its word, which has no quotes, needs a blank or nothing after it.
func separator(s string, quoted bool) int {
	blanks := len(s) - len(strings.TrimLeft(s, " \t"))
	rest := s[blanks:]
	if rest == "" {
		return 0
	}

	if strings.HasPrefix(rest, "://") {
		return 0
	}

	sign := 0
	switch rest[:min(2, len(rest))] {
	case "==", "::":
		return 0
	case ":=", "+=", "=>", "?=":
		sign = 2
	default:
		isColon := rest[0] == ':' && (quoted || blanks == 0 || len(rest) == 1 || rest[1] == ' ')
		if rest[0] != '=' && !isColon {
			return 0
		}
		sign = 1
	}

	after := rest[sign:]
	return blanks + sign + len(after) - len(strings.TrimLeft(after, " \t"))
}

// word masks what follows the word s[i:end], which is written. It returns the index after what it
// has written.
func (m *masker) word(out *strings.Builder, s string, i, end int, at place) int {
	name := s[i:end]
	if sep := separator(s[end:], false); sep > 0 {
		value := end + sep
		out.WriteString(s[end:value])
		blankBefore := s[value-1] == ' ' || s[value-1] == '\t'
		return value + m.assigned(out, name, s[value:], assignment{
			place:  at,
			single: at.open > 0,
			word:   m.prose || !at.first && !blankBefore,
			spaced: sep > 1,
		})
	}

	rest := strings.TrimLeft(s[end:], " \t")
	next := len(s) - len(rest)
	if takesSecret(name) {
		if rest == "" {
			m.flagged = !m.prose
			return end
		}
		if next > end && rest[0] != '-' {
			return m.flagArgument(out, s, end, rest, name)
		}
	}

	mayBeApt := at.depth == 0 && !m.prose && next > end
	if mayBeApt && strings.HasPrefix(rest, `"`) && isSecretName(name) { // apt.conf: Password "x";
		return maskString(out, s, end, rest, name)
	}
	return end
}

// flagArgument masks the word that rest, the end of s, begins with: the value of a flag. s is
// written up to end. It returns the index after what it has written.
func (m *masker) flagArgument(out *strings.Builder, s string, end int, rest, flag string) int {
	length := wordEnd(rest)
	value := strings.Trim(rest[:length], `"'`)
	if isHarmless(flag, value) || m.prose && !looksGenerated(value) {
		return end
	}

	next := len(s) - len(rest)
	out.WriteString(s[end:next] + Mark)
	return next + length
}

// wordEnd returns the length of the first word of a command line, in quotes or not.
func wordEnd(s string) int {
	if opensQuote(s) {
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

// takesSecret reports whether a word is a flag, and the next word is its secret.
func takesSecret(word string) bool {
	if len(word) <= 2 || !strings.HasPrefix(word, "-") || strings.ContainsAny(word, "= ") {
		return false
	}
	return isSecretName(word)
}
