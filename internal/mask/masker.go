// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// masker masks the lines of one text from top to bottom. It remembers what it must know of the
// lines above.
type masker struct {
	prose     bool   // the text is a sentence
	variables bool   // the file sets variables
	below     string // the next line
	inTable   bool   // in a table of secrets only

	// A secret value that extends over several lines.
	brackets []byte // the open brackets in it
	single   bool   // what follows it on its last line is not a part of it
	wantKey  bool   // the next word in the brackets is a key
	until    string // the quotes that end it; "": brackets do

	// A key that has its value in the lines below, as in YAML.
	indent int  // of the key; -1: there is no such key
	text   bool // the value is a text
	all    bool // all values below the key are secrets

	named     bool    // the name in a name and value pair is a secret's
	flagged   bool    // the item of a list above is a flag that takes a secret
	going     setting // a unit's setting, or a variable, that continues below
	commented bool    // that setting is in a comment
	quote     string  // that ends a variable's value, which continues below; "": no quote is open
	flag      string  // the flag at the end of the command line so far
}

func (m *masker) line(s string) string {
	if m.until != "" {
		at := strings.Index(s, m.until)
		if at < 0 {
			return ""
		}
		rest := s[at+len(m.until):]
		m.until = ""
		return m.cover(rest)
	}

	s = shapes(s)
	if len(m.brackets) > 0 {
		covered, n := m.coverTo(s, m.single)
		return covered + m.pairs(s[n:], 1)
	}
	if m.flagged {
		m.flagged = false
		if out, done := m.flagItem(s); done {
			return out
		}
	}

	if out, done := m.lineBelow(s); done {
		return out
	}
	if out, done := m.unitLine(s); done {
		return out
	}
	if name, ok := header(s); ok {
		m.inTable = holdsSecrets(name)
		return s
	}
	if key, value, ok := strings.Cut(s, "="); ok && m.inTable {
		return key + "=" + m.value(value, 0)
	}
	if out, done := netrc(s); done {
		return out
	}
	return m.pairs(s, 0)
}

// header returns the name of a table of TOML or a section of an ini file.
func header(s string) (name string, ok bool) {
	s = strings.TrimSpace(s)
	if !strings.HasPrefix(s, "[") {
		return "", false
	}
	end := strings.LastIndexByte(s, ']')
	if end < 0 || strings.Contains(s[:end], "=") {
		return "", false
	}
	if rest := strings.TrimSpace(s[end+1:]); rest != "" && rest[0] != '#' {
		return "", false
	}

	name = strings.Trim(s[:end], "[]\"' ")
	if strings.ContainsAny(name, ",{}") {
		return "", false
	}
	return name[strings.LastIndexByte(name, '.')+1:], true
}

// lineBelow masks a line below a secret-looking key without a value, as in YAML. It reports whether
// s is such a line.
func (m *masker) lineBelow(s string) (string, bool) {
	trimmed := strings.TrimLeft(s, " \t")
	if m.indent < 0 || trimmed == "" {
		return s, false
	}

	indent := len(s) - len(trimmed)
	rest, item := strings.CutPrefix(trimmed, "- ")
	if indent < m.indent || indent == m.indent && !item {
		m.indent = -1
		return s, false
	}
	if m.text {
		return "", true
	}

	lead := s[:len(s)-len(rest)]
	key, value, keyed := strings.Cut(rest, ": ")
	switch {
	case strings.HasSuffix(rest, ":") && !strings.HasSuffix(rest, "::"):
		return s, m.all
	case keyed && !m.all:
		return s, false
	case keyed:
		return lead + key + ": " + m.value(value, indent), true
	case isHarmless("", rest):
		return s, true
	}

	return lead + m.cover(rest), true
}

// flagItem masks a line that is an item of a list, if the item above it is a flag that takes a
// secret.
func (m *masker) flagItem(s string) (string, bool) {
	rest, item := strings.CutPrefix(strings.TrimLeft(s, " \t"), "- ")
	if rest == "" || rest[0] == '-' {
		return s, false
	}
	if !item && !opensQuote(rest) {
		return s, false
	}
	if isHarmless("", strings.Trim(rest, `"', `)) {
		return s, false
	}
	return s[:len(s)-len(rest)] + m.cover(rest), true
}

// netrc masks the password in a line of .netrc or of apt's auth.conf:
// "machine x login y password z".
// Sources: apt_auth.conf(5), and the GNU manual's page on .netrc.
func netrc(s string) (string, bool) {
	words := strings.Fields(s)
	if len(words) < 2 {
		return s, false
	}
	for i := 0; i < len(words); i += 2 {
		switch words[i] {
		case "default":
			i-- // it has no value
		case "machine", "login", "account":
		case "password":
			if i+1 < len(words) {
				words[i+1] = Mark
			}
		default:
			return s, false
		}
	}

	lead := s[:len(s)-len(strings.TrimLeft(s, " \t"))]
	return lead + strings.Join(words, " "), true
}
