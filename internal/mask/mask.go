// SPDX-License-Identifier: Apache-2.0

// Package mask takes secrets out of texts before they leave gpuadm: what is printed, logged,
// recorded, or sent to an API server.
//
// A secret is known by the name of its key, by its place (the login of a URL, the environment of a
// unit), or by its form (a PEM block, a token that begins with ghp_). Texts are read line by line
// and need not parse. What is left has the structure of the text, so that a recording still parses.
// Masking twice is masking once.
package mask

import (
	"path"
	"strings"
)

// Mark is left in the place of a secret. It is a plain word in YAML, and may be in a URL.
const Mark = "(masked)"

// Text masks a configuration file, or what a command printed.
func Text(text []byte) []byte { return File("", text) }

// File masks a file. By its name it knows files of variables, of which it keeps only those that are
// known to be harmless.
func File(name string, text []byte) []byte {
	return []byte(settled(string(text), func(text string) string { return once(name, text) }))
}

// settled masks until the text is stable: the rest of a text may look like a secret once the part
// before it is masked. It repeats at most five times.
func settled(text string, masked func(string) string) string {
	for range 5 {
		before := text
		if text = masked(text); text == before {
			break
		}
	}
	return text
}

func once(name, text string) string {
	m := masker{indent: -1, variables: variables(name)}
	lines := strings.SplitAfter(pem(text), "\n")
	var out strings.Builder
	for i, line := range lines {
		body := strings.TrimRight(line, "\r\n")
		m.below = ""
		if i+1 < len(lines) {
			m.below = lines[i+1]
		}
		out.WriteString(m.line(body))
		out.WriteString(line[len(body):])
	}
	return out.String()
}

// Message masks a sentence: an error, an event, what a failed command said. Words such as "the
// token: it has run out" stay.
func Message(text string) string {
	if !strings.ContainsAny(text, "=:.-_\"") && len(text) < 12 {
		return text
	}
	return settled(text, onceMessage)
}

func onceMessage(text string) string {
	m := masker{indent: -1, prose: true}
	lines := strings.SplitAfter(pem(text), "\n")
	for i, line := range lines {
		body := strings.TrimRight(line, "\r\n")
		lines[i] = m.pairs(shapes(body), 0) + line[len(body):]
	}
	return strings.Join(lines, "")
}

// Args masks the arguments of a command line.
func Args(argv []string) []string {
	m := masker{indent: -1, prose: true}
	out := make([]string, len(argv))
	for i, arg := range argv {
		switch {
		case i > 1 && flagWaits(argv[i-1]) && !strings.HasPrefix(arg, "-") && !harmless(argv[i-1], arg):
			out[i] = Mark
		default:
			out[i] = strings.TrimSuffix(string(Text([]byte(arg))), "\n")
			if !strings.Contains(arg, "\n") {
				out[i] = m.pairs(shapes(arg), 0)
			}
		}
	}
	return out
}

// variables says whether a file holds variables of a unit or of all sessions: systemd.exec(5),
// EnvironmentFile=; pam_env(8).
func variables(name string) bool {
	dir, base := path.Dir(name), path.Base(name)
	switch {
	case base == "environment", path.Ext(base) == ".env", strings.HasSuffix(base, "_env"), strings.HasSuffix(base, "-env"):
		return true
	}
	return dir == "/etc/default" || dir == "/etc/sysconfig" || dir == "/etc/environment.d" || dir == "/etc/conf.d"
}

// masker is what is known from the lines above.
type masker struct {
	prose     bool   // the text is a sentence
	variables bool   // the file is one of variables
	below     string // the next line
	inTable   bool   // in a table of nothing but secrets

	brackets []byte  // open in a secret value that goes on over lines
	single   bool    // what follows that value on its line is not a part of it
	wantKey  bool    // the next word in the brackets is a key
	until    string  // ends a secret text that goes on over lines
	indent   int     // of a key that has its value in the lines below; -1: none
	text     bool    // that value is a text
	all      bool    // all values below it are secrets
	named    bool    // the name of a name and value pair is a secret's
	flagged  bool    // the list item above is a flag that takes a secret
	going    setting // a unit's setting that goes on after a backslash
	flag     string  // the flag at the end of the command line so far
}

func (m *masker) line(s string) string {
	if m.until != "" {
		at := strings.Index(s, m.until)
		if at < 0 {
			return ""
		}
		s, m.until = s[at+len(m.until):], ""
		return m.cover(s)
	}
	s = shapes(s)
	if len(m.brackets) > 0 {
		covered, n := m.coverTo(s, m.single)
		return covered + m.pairs(s[n:], 1)
	}
	if m.flagged {
		if out, done := m.behindFlag(s); done {
			return out
		}
	}
	if out, done := m.isBelow(s); done {
		return out
	}
	if out, done := m.unit(s); done {
		return out
	}
	if name, is := header(s); is {
		m.inTable = container(name)
		return s
	}
	if key, value, ok := strings.Cut(s, "="); ok && m.inTable {
		return key + "=" + m.value(value, 0)
	}
	if out, is := netrc(s); is {
		return out
	}
	return m.pairs(s, 0)
}

// header returns the name of a table of TOML or a section of an ini file.
func header(s string) (name string, is bool) {
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
	return name[strings.LastIndexByte(name, '.')+1:], !strings.ContainsAny(name, ",{}")
}

// isBelow deals with the lines below a secret-looking key without a value, as YAML has them.
func (m *masker) isBelow(s string) (string, bool) {
	trimmed := strings.TrimLeft(s, " \t")
	indent := len(s) - len(trimmed)
	rest, item := strings.CutPrefix(trimmed, "- ")
	switch {
	case m.indent < 0 || trimmed == "":
		return s, false
	case indent < m.indent || indent == m.indent && !item:
		m.indent = -1
		return s, false
	case m.text:
		return "", true
	}
	lead := s[:indent]
	if item {
		lead += "- "
	} else {
		rest = trimmed
	}
	key, value, keyed := strings.Cut(rest, ": ")
	switch {
	case strings.HasSuffix(rest, ":") && !strings.HasSuffix(rest, "::"):
		return s, m.all
	case keyed && !m.all:
		return s, false
	case keyed:
		return lead + key + ": " + m.value(value, indent), true
	case harmless("", rest):
		return s, true
	}
	return lead + m.cover(rest), true
}

// behindFlag masks a line that is the item of a list behind a flag.
func (m *masker) behindFlag(s string) (string, bool) {
	rest := strings.TrimLeft(s, " \t")
	rest, item := strings.CutPrefix(rest, "- ")
	m.flagged = false
	if rest == "" || rest[0] == '-' || !item && rest[0] != '"' && rest[0] != '\'' || harmless("", strings.Trim(rest, `"', `)) {
		return s, false
	}
	return s[:len(s)-len(rest)] + m.cover(rest), true
}

// netrc masks the password in a line of .netrc or of apt's auth.conf: "machine x login y password
// z". Sources: apt_auth.conf(5), and the GNU manual's page on .netrc.
func netrc(s string) (string, bool) {
	words := strings.Fields(s)
	if len(words) < 2 {
		return s, false
	}
	switch words[0] {
	case "machine", "default", "login", "password", "account":
	default:
		return s, false
	}
	for i := 0; i < len(words); i += 2 {
		switch words[i] {
		case "default":
			i--
		case "machine", "login", "account":
		case "password":
			if i+1 < len(words) {
				words[i+1] = Mark
			}
		default:
			return s, false
		}
	}
	return s[:len(s)-len(strings.TrimLeft(s, " \t"))] + strings.Join(words, " "), true
}
