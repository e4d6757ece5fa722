// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// setting is a kind of setting in a unit's file.
type setting int

const (
	other       setting = iota
	commandLine         // ExecStart= and its like: systemd.service(5)
	environment         // Environment=: systemd.exec(5)
	credential          // SetCredential=: systemd.exec(5)
)

func settingOf(key string) setting {
	switch key {
	case "Environment":
		return environment
	case "SetCredential", "SetCredentialEncrypted":
		return credential
	case "ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost",
		"ExecReload", "ExecStop", "ExecStopPost":
		return commandLine
	}
	return other
}

// unitLine masks a line of a unit's file that holds a command or variables, and a line of a file of
// variables. Of variables it keeps only values that are known to be harmless. It reports whether s
// is such a line.
func (m *masker) unitLine(s string) (string, bool) {
	if m.going != other {
		return m.furtherLine(s), true
	}

	key, value, ok := strings.Cut(s, "=")
	if !ok {
		return s, false
	}
	lead := s[:len(key)+1]
	key = strings.TrimLeft(strings.TrimSpace(key), "#; ")
	kind := settingOf(key)
	if kind != other {
		m.flag = ""
		m.commented = commentSign(s) >= 0
		return lead + m.setting(kind, value, true), true
	}

	name := strings.TrimPrefix(key, "export ")
	if m.variables && isIdentifier(name) {
		masked := lead + m.variable(name, value, true)
		if commentSign(s) < 0 {
			m.continues(name, value)
		}
		return masked, true
	}
	return s, false
}

// continues remembers that a variable's value continues in the lines below: behind a backslash, or
// in quotes that its line does not close. Source: EnvironmentFile= in systemd.exec(5).
func (m *masker) continues(name, value string) {
	value = strings.TrimLeft(value, " \t")
	m.quote = openQuote(value)
	if m.quote == "" && !strings.HasSuffix(value, `\`) {
		return
	}

	m.commented = false
	m.going = environment
	if holdsFlags(strings.ToUpper(name)) && !isSecretName(name) {
		m.going = commandLine
	}
}

// openQuote returns the quote that a value begins with and does not close; "" if there is none.
func openQuote(value string) string {
	if opensQuote(value) && closing(value, 0) < 0 {
		return value[:1]
	}
	return ""
}

// furtherLine masks a further line of a setting or of a variable's value. A comment between the
// lines of a unit's setting does not end it: systemd.syntax(7).
func (m *masker) furtherLine(s string) string {
	if m.quote != "" {
		return m.quotedLine(s)
	}
	sign := commentSign(s)
	if sign < 0 || m.commented || m.variables {
		return m.setting(m.going, s, false)
	}

	kind := m.going
	flag := m.flag
	masked := s[:sign+1] + m.setting(kind, s[sign+1:], false)
	m.going = kind
	m.flag = flag
	return masked
}

// quotedLine masks a further line of a value in quotes, up to the quote that ends the value.
func (m *masker) quotedLine(s string) string {
	kind := m.going
	end := closing(m.quote+s, 0) - len(`""`)
	if end < 0 {
		masked := m.setting(kind, s, false)
		m.going = kind
		return masked
	}

	masked := m.setting(kind, s[:end], false) + m.quote
	m.going = other
	m.quote = ""
	return masked + m.cover(s[end+1:])
}

// commentSign returns the index of the sign that makes a unit's line a comment; -1: there is none.
func commentSign(s string) int {
	i := len(s) - len(strings.TrimLeft(s, " \t"))
	if i < len(s) && (s[i] == '#' || s[i] == ';') {
		return i
	}
	return -1
}

// setting masks the value of a unit's setting, or a further line of it.
func (m *masker) setting(kind setting, value string, first bool) string {
	body, goesOn := strings.CutSuffix(value, `\`)
	m.going = other
	if goesOn {
		m.going = kind
	}

	switch kind {
	case credential:
		body = maskCredential(body, first)
	case environment:
		body = m.assignments(body)
	case commandLine:
		body = m.command(body, first)
	}

	if goesOn {
		body += `\`
	}
	return body
}

// maskCredential masks the value of SetCredential=, which begins with the credential's name.
func maskCredential(body string, first bool) string {
	if !first {
		return "  " + Mark
	}
	name, value, ok := strings.Cut(body, ":")
	if !ok || strings.TrimSpace(value) == "" {
		return body
	}
	return name + ":" + Mark
}

// quotedWord is a word of a command line, as systemd splits it.
type quotedWord struct {
	before string // blanks
	quote  string
	text   string
}

// systemdWords splits a line at blanks; blanks in quotes are a part of a word.
func systemdWords(s string) (words []quotedWord, after string) {
	for {
		rest := strings.TrimLeft(s, " \t")
		before := s[:len(s)-len(rest)]
		if rest == "" {
			return words, before
		}

		word := quotedWord{before: before}
		end := wholeString(rest)
		if end > 0 {
			word.quote = rest[:1]
			word.text = rest[1 : end-1]
		} else {
			end = systemdWordEnd(rest)
			word.text = rest[:end]
		}

		words = append(words, word)
		s = rest[end:]
	}
}

// wholeString returns the length of the string that s begins with, 0 if its first word is not
// just a string.
func wholeString(s string) int {
	if !opensQuote(s) {
		return 0
	}
	end := closing(s, 0)
	if end < 0 {
		return 0
	}
	if end < len(s) && s[end] != ' ' && s[end] != '\t' {
		return 0
	}
	return end
}

// systemdWordEnd returns the length of the word that s begins with. Quotes may begin within a word:
// --flag="a b". If they do not close, the word extends to the end of the line.
func systemdWordEnd(s string) int {
	end := 0
	for end < len(s) && s[end] != ' ' && s[end] != '\t' {
		if !opensQuote(s[end:]) {
			end++
			continue
		}
		end = closing(s, end)
		if end < 0 {
			return len(s)
		}
	}

	return end
}

// assignments masks the values of NAME=value words.
func (m *masker) assignments(s string) string {
	words, after := systemdWords(s)
	var out strings.Builder
	for _, w := range words {
		out.WriteString(w.before + w.quote)
		name, value, ok := strings.Cut(w.text, "=")
		bare := strings.Trim(name, `"'`)
		if ok && isIdentifier(bare) {
			out.WriteString(name + "=" + m.variable(bare, value, w.quote != ""))
		} else { // the rest of a value that contains a blank
			out.WriteString(Mark)
		}

		out.WriteString(w.quote)
	}

	return out.String() + after
}
