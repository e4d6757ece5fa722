// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// assignment says where the value of a key is.
type assignment struct {
	place
	single bool // one value, as in JSON; the line continues after it
	word   bool // one word of a command line or a sentence
	spaced bool // the separator has blanks around it
}

// assigned masks the value at the start of rest if name is a secret's name. It returns how much of
// rest it has written.
func (m *masker) assigned(out *strings.Builder, name, rest string, a assignment) int {
	if !isSecretName(name) && !m.pairValue(name, rest) {
		return 0
	}

	plain := strings.TrimSpace(rest)
	if plain == "" {
		m.expectBelow(name, a)
		return 0
	}

	if !opensTripleQuote(plain) {
		if m.staysReadable(name, rest, a) {
			return 0
		}
		if a.single {
			covered, n := m.coverTo(rest, true)
			out.WriteString(covered)
			return n
		}

		if a.word && !opensBracket(plain) {
			end := valueEnd(rest)
			out.WriteString(quoteLike(rest[:end]))
			return end
		}
	}

	out.WriteString(m.value(rest, a.indent))
	return len(rest)
}

// expectBelow remembers that a secret-looking key has its value in the lines below, as in YAML.
func (m *masker) expectBelow(name string, a assignment) {
	if m.prose || a.depth > 0 {
		return
	}

	m.indent = a.indent
	if a.item {
		m.indent++
	}
	m.text = false
	m.all = holdsSecrets(name) && !isSection(name)
}

// staysReadable reports whether the value of a secret-looking key is not a secret. rest begins with
// the value and is not blank.
func (m *masker) staysReadable(name, rest string, a assignment) bool {
	// A longer value is not examined: the next key may examine the same text again.
	const examined = 300

	probe := rest[:min(len(rest), examined)]
	end := valueEnd(probe)
	value := strings.Trim(probe[:end], `"'`)
	first := strings.TrimSpace(rest)[0]

	if isSection(name) && first == '{' {
		return true
	}
	if isHarmless(name, value) && (a.single || a.word || strings.Trim(rest[end:], " \t,;") == "") {
		return true
	}

	inSentence := m.prose && (a.spaced || strings.EqualFold(name, "key"))
	return inSentence && first != '"' && !looksGenerated(value)
}

func opensTripleQuote(s string) bool {
	return strings.HasPrefix(s, `"""`) || strings.HasPrefix(s, "'''")
}

func opensBracket(s string) bool { return s[0] == '[' || s[0] == '{' }

func opensQuote(s string) bool { return s != "" && (s[0] == '"' || s[0] == '\'') }

// pairValue handles lists of name and value pairs. It remembers the name, and reports whether this
// is the value that belongs to a secret's name. The name comes before the value or right after it.
func (m *masker) pairValue(name, rest string) bool {
	const searched = 256 // bytes of a text in which the name is looked for

	switch strings.ToLower(name) {
	case "name", "key", "variable":
		m.named = beginsWithSecretName(rest[:min(len(rest), searched)])
	case "value":
		if m.named {
			m.named = false
			return true
		}

		after := rest[valueEnd(rest[:min(len(rest), searched)]):]
		after = strings.TrimLeft(after[:min(len(after), searched)], ", \t")
		if after == "" {
			after = strings.TrimLeft(m.below[:min(len(m.below), searched)], " \t")
		}

		label, nameAfter, ok := strings.Cut(after, ":")
		label = strings.ToLower(strings.Trim(label, `"' `))
		isName := label == "name" || label == "key"
		return ok && isName && beginsWithSecretName(strings.TrimSpace(nameAfter))
	}

	return false
}

// beginsWithSecretName reports whether a text begins with a secret's name, in quotes or not.
func beginsWithSecretName(s string) bool {
	word := strings.Trim(s[:valueEnd(s)], `"'`)
	return isSecretName(word) && !strings.ContainsAny(word, " /")
}

// valueEnd returns the length of the value that a text begins with: a string, or a word.
func valueEnd(s string) int {
	if opensQuote(s) {
		if end := closing(s, 0); end > 0 {
			return skipTo(s, end, " \t,;|&)]}")
		}
	}

	n := strings.IndexAny(s, " \t,;|&\"'`<>)]}")
	if n < 0 {
		return len(s)
	}
	if strings.HasPrefix(s, Mark) {
		return len(Mark)
	}
	return n
}

// skipTo returns the index of the first byte of a set at or after i, or the length of s.
func skipTo(s string, i int, set string) int {
	for i < len(s) && strings.IndexByte(set, s[i]) < 0 {
		i++
	}
	return i
}

// quoteLike returns the mark in the quotes that the value has.
func quoteLike(value string) string {
	if value == "" {
		return ""
	}
	if opensQuote(value) {
		return value[:1] + Mark + value[:1]
	}
	return Mark
}

// value masks the rest of a line, which is the value of a secret's key.
func (m *masker) value(rest string, indent int) string {
	plain := strings.TrimSpace(rest)
	lead := rest[:len(rest)-len(strings.TrimLeft(rest, " \t"))]
	switch {
	case plain == "":
		m.indent = indent
		m.text = false
		m.all = false
		return rest
	case !m.prose && len(plain) <= 4 && (plain[0] == '|' || plain[0] == '>'): // a block of YAML
		m.indent = indent
		m.text = true
		return lead + Mark
	case opensTripleQuote(plain):
		if !strings.Contains(plain[3:], plain[:3]) {
			m.until = plain[:3]
		}
		return lead + `"` + Mark + `"`
	case opensQuote(plain):
		if closing(plain, 0) > 0 {
			return m.cover(rest)
		}
		if !m.prose {
			m.until = plain[:1]
		}
		return lead + plain[:1] + Mark + plain[:1]
	case opensBracket(plain):
		return m.cover(rest)
	case isNumber(plain):
		return lead + "0"
	}

	tail := ""
	if strings.HasSuffix(plain, `\`) {
		tail = ` \`
	}
	return lead + Mark + tail
}
