// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// command masks the values of flags in a command line, unless the flag is known to be harmless. If
// program is true, the first word is the program.
func (m *masker) command(s string, program bool) string {
	words, after := systemdWords(s)
	var out strings.Builder
	for _, w := range words {
		out.WriteString(w.before + w.quote)
		if program {
			program = false
			m.flag = ""
			out.WriteString(m.pairs(w.text, 1))
		} else {
			out.WriteString(m.argument(w))
		}

		out.WriteString(w.quote)
	}

	return out.String() + after
}

// argument masks one argument of a command line, in which m.flag is the argument before if
// that is a flag.
func (m *masker) argument(w quotedWord) string {
	before := m.flag
	m.flag = ""
	name, value, hasValue := strings.Cut(w.text, "=")
	isFlag := strings.HasPrefix(w.text, "-")
	switch {
	case isFlag && hasValue:
		return name + "=" + m.flagValue(name, value)
	case isFlag && len(w.text) > 1:
		flag, attached := maskAttached(w.text)
		if !attached && !takesNoValue(flag) {
			m.flag = flag
		}
		return flag
	case before != "" && w.quote != "":
		return strings.Trim(m.flagValue(before, w.text), `"'`)
	case before != "":
		return m.flagValue(before, w.text)
	case hasValue && isIdentifier(name):
		return name + "=" + m.variable(name, value, w.quote != "")
	case w.quote != "":
		return m.inner(w.text, 1)
	}

	return m.pairs(w.text, 1)
}

// flagValue returns what is left of a flag's value.
func (m *masker) flagValue(flag, value string) string {
	bare := strings.Trim(value, `"'`)
	if isHarmless(flag, bare) {
		return value
	}

	known := isHarmlessFlag(flag) && !isLogin(flag, bare)
	readable := known || !isSecretName(flag) && isHarmlessValue(bare)
	isScript := flag == "-c" && !isPath(bare) // sh -c takes a whole script
	if readable && !isScript {
		return m.pairs(value, 1)
	}
	return quoteLike(value)
}

// isLogin reports whether a flag's value is a user and a password, as curl(1) takes them. Docker's
// --user 1000:1000 is none.
func isLogin(flag, value string) bool {
	_, password, both := strings.Cut(value, ":")
	return both && strings.TrimLeft(flag, "-") == "user" && strings.Trim(password, digits) != ""
}

// maskAttached masks a value that is attached to a flag of one letter, such as -pSECRET. It reports
// whether the flag has one.
func maskAttached(flag string) (masked string, attached bool) {
	if len(flag) < 3 || flag[1] == '-' || flag == "-pid" || flag == "-port" {
		return flag, false
	}

	isWord := strings.Trim(flag[1:], small+"-") == ""
	if isWord && flag[1] != 'p' { // -p is a password's flag: mysql -pSECRET
		return flag, false
	}
	if isHarmlessValue(flag[2:]) {
		return flag, true
	}
	return flag[:2] + Mark, true
}

// variable masks the value of a variable, unless it is known to be harmless. With whole the value
// extends to the end of its text, or continues in the next line; otherwise it is a word.
func (m *masker) variable(name, value string, whole bool) string {
	plain := value
	tail := ""
	if whole {
		plain = strings.TrimRight(value, " \t")
		tail = value[len(plain):]
	}

	quote := ""
	end := ""
	switch {
	case whole && openQuote(plain) != "":
		quote = plain[:1]
		plain = plain[1:]
	case len(plain) > 1 && opensQuote(plain) && plain[len(plain)-1] == plain[0]:
		quote = plain[:1]
		end = quote
		plain = plain[1 : len(plain)-1]
	}
	backslash := ""
	if whole && end == "" && strings.HasSuffix(plain, `\`) {
		plain = plain[:len(plain)-1]
		backslash = `\`
	}
	return quote + m.variableValue(name, plain) + backslash + end + tail
}

// variableValue returns what is left of a variable's value, which has no quotes.
func (m *masker) variableValue(name, value string) string {
	if isSecretName(name) && !isHarmless(name, value) {
		return Mark
	}

	upper := strings.ToUpper(name)
	if holdsFlags(upper) {
		m.flag = ""
		return m.command(value, false)
	}
	switch {
	case strings.HasSuffix(upper, "_PROXY") && !hasLogin(value):
		return value
	case value == Mark, isHarmlessVariable(upper), isHarmlessValue(value):
		return value
	}

	return Mark
}

// holdsFlags reports whether the value of a variable is a part of a command line.
func holdsFlags(name string) bool {
	for _, end := range []string{"_ARGS", "_OPTS", "_OPTIONS", "_FLAGS"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// hasLogin reports whether a URL has a login that is not masked.
func hasLogin(url string) bool {
	return strings.Contains(strings.ReplaceAll(url, Mark+"@", ""), "@")
}
