// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"regexp"
	"strings"
)

// masked stands for a value that is nobody's business.
const masked = "masked"

// masker takes secrets out of a text line by line, whatever its format: TOML, JSON, YAML, ini, a unit file, a command's output.
// The structure stays, so that what reads the text still can.
type masker struct {
	key    *regexp.Regexp // a secret-looking key and its = or :
	flag   *regexp.Regexp // --password x
	table  *regexp.Regexp // [a.b.auth]: every value in it is one
	header *regexp.Regexp // any table
	user   *regexp.Regexp // https://user:password@host
	scheme *regexp.Regexp // Basic x, Bearer x
	token  *regexp.Regexp // a string, a bracket, a word, any other character

	inTable bool
	depth   int    // brackets open in a secret value that goes on over lines
	until   string // what ends the text that goes on over lines
	indent  int    // of the YAML key whose text or list is in the lines below; -1 for none
	text    bool   // it is a text, not a list
}

func newMasker() *masker {
	const secret = `[\w.-]*(?:auth|passw|passphrase|pwd|token|secret|credential|(?:api|access|private)[_-]?key|cookie|bearer)[\w.-]*`
	return &masker{
		key:    regexp.MustCompile(`(?i)(["']?)` + secret + `(["']?)[ \t]*[:=][ \t]*`),
		flag:   regexp.MustCompile(`(?i)(--?` + secret + `["']?,?[ \t]+)(?:(")[^"]*"|(')[^']*'|[^\s"'-][^\s"']*)`),
		table:  regexp.MustCompile(`(?i)^\s*\[.*\b(?:auth|headers?|credentials?)["']?\s*\]{1,2}\s*(?:#.*)?$`),
		header: regexp.MustCompile(`^\s*\[[^=]*\]\s*(?:#.*)?$`),
		user:   regexp.MustCompile(`(://)[^/\s"'@]+@`),
		scheme: regexp.MustCompile(`(?i)\b(basic|bearer)(\s+)[\w+/=.~-]{6,}`),
		token:  regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'|[\[\]{}]|[^\s,\[\]{}:="'#]+|.`),
		indent: -1,
	}
}

// mask rather takes too much than too little: a recorded machine needs no value of a key named so.
func mask(data []byte) []byte {
	m := newMasker()
	var out bytes.Buffer
	for line := range strings.Lines(string(data)) {
		text := strings.TrimRight(line, "\r\n")
		out.WriteString(m.line(text) + line[len(text):])
	}
	return out.Bytes()
}

func (m *masker) line(text string) string {
	if text, done := m.goesOn(text); done {
		return text
	}
	switch {
	case strings.Contains(text, "-----BEGIN") && strings.Contains(text, "PRIVATE KEY"):
		m.until = "-----END"
		return masked
	case m.table.MatchString(text):
		m.inTable = true
		return text
	case m.header.MatchString(text):
		m.inTable = false
		return text
	}
	if key, value, ok := strings.Cut(text, "="); ok && m.inTable {
		return key + "=" + m.value(value, 0)
	}
	text = m.user.ReplaceAllString(text, "${1}"+masked+"@")
	text = m.scheme.ReplaceAllString(text, "${1}${2}"+masked)
	text = m.flag.ReplaceAllString(text, "${1}${2}${3}"+masked+"${2}${3}")
	return m.pairs(text)
}

// pairs covers the values of the secret-looking keys in a line.
func (m *masker) pairs(text string) string {
	at := m.key.FindStringSubmatchIndex(text)
	if at == nil {
		return text
	}
	key, value := text[:at[1]], text[at[1]:]
	indent := len(text) - len(strings.TrimLeft(text, " "))
	if at[2] != at[3] && at[4] != at[5] { // a quoted key: more may follow in this line, and if it is too much it is all the same
		return key + m.cover(value)
	}
	if strings.Count(text[:at[3]], `"`)%2 == 1 { // within a string: "--token=x", and more after it
		if end := strings.IndexByte(value, '"'); end >= 0 {
			return key + masked + value[end:end+1] + m.pairs(value[end+1:])
		}
	}
	return key + m.value(value, indent)
}

// goesOn deals with the lines of a secret value that began above.
func (m *masker) goesOn(text string) (string, bool) {
	indent := len(text) - len(strings.TrimLeft(text, " "))
	item := strings.HasPrefix(text[indent:], "- ")
	switch {
	case m.until != "":
		if strings.Contains(text, m.until) {
			m.until = ""
		}
		return "", true
	case m.depth > 0:
		return m.cover(text), true
	case m.indent < 0 || strings.TrimSpace(text) == "":
		return text, false
	case indent < m.indent || indent == m.indent && !item:
		m.indent = -1
		return text, false
	case m.text:
		return "", true
	case item && !strings.Contains(text, ": "):
		return text[:indent] + "- " + masked, true
	}
	return text, false
}

// value covers what stands after a key that is not quoted.
func (m *masker) value(value string, indent int) string {
	plain := strings.TrimSpace(value)
	switch {
	case plain == "": // YAML: what is below has keys of its own, or is a list
		m.indent, m.text = indent, false
		return value
	case strings.HasPrefix(plain, "|") || strings.HasPrefix(plain, ">"): // YAML: a text is below
		m.indent, m.text = indent, true
		return masked
	case strings.HasPrefix(plain, `"""`) || strings.HasPrefix(plain, "'''"):
		if m.until = plain[:3]; strings.Contains(plain[3:], m.until) {
			m.until = ""
		}
		return `"` + masked + `"`
	case strings.ContainsAny(plain[:1], `"'[{`):
		return m.cover(value)
	}
	if last := plain[len(plain)-1:]; strings.ContainsAny(last, `"'`) { // Environment="TOKEN=x"
		return masked + last
	}
	return masked
}

// cover masks all values in a text, and keeps keys, brackets and the types of values.
func (m *masker) cover(text string) string {
	var out strings.Builder
	for _, at := range m.token.FindAllStringIndex(text, -1) {
		token := text[at[0]:at[1]]
		after := strings.TrimLeft(text[at[1]:], " \t")
		isKey := after != "" && strings.ContainsAny(after[:1], ":=")
		switch first := token[0]; {
		case first == '[' || first == '{':
			m.depth++
		case first == ']' || first == '}':
			m.depth = max(0, m.depth-1)
		case isKey || len(token) == 1 && strings.ContainsAny(token, " \t,:=#\"'"):
		case token == "true" || token == "false" || token == "null":
		case len(token) > 1 && (first == '"' || first == '\''):
			token = token[:1] + masked + token[:1]
		case strings.Trim(token, "0123456789.+-") == "":
			token = "0"
		default:
			token = masked
		}
		out.WriteString(token)
	}
	return out.String()
}
