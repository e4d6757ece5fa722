// SPDX-License-Identifier: Apache-2.0

// Package mask takes secrets out of texts before they leave gpuadm: what is printed, logged,
// recorded, or sent to an API server.
//
// A secret is known by the name of its key, by its place (the login of a URL, the environment of a
// unit), or by its form (a PEM block, a token that begins with ghp_). Texts are read line by line
// and need not parse. The structure of the text stays, so that a recording still parses. Masking
// twice gives the same text as masking once.
package mask

import (
	"path"
	"strings"
)

// Mark replaces a secret. It is a plain word in YAML, and a URL may contain it.
const Mark = "(masked)"

// Text masks a configuration file, or what a command printed.
func Text(text []byte) []byte { return File("", text) }

// File masks a file. By its name it knows files of variables, in which it keeps only values that
// are known to be harmless.
func File(name string, text []byte) []byte {
	once := func(text string) string { return maskFile(name, text) }
	return []byte(untilStable(string(text), once))
}

// Message masks a sentence: an error, an event, what a failed command said. Words such as "the
// token: it has run out" stay.
func Message(text string) string {
	if len(text) < 12 && !strings.ContainsAny(text, "=:.-_\"") {
		return text
	}
	return untilStable(text, maskMessage)
}

// Args masks the arguments of a command line.
func Args(argv []string) []string {
	m := masker{indent: -1, prose: true}
	out := make([]string, len(argv))
	for i, arg := range argv {
		isValue := i > 1 && takesSecret(argv[i-1]) && !strings.HasPrefix(arg, "-")
		switch {
		case isValue && !isHarmless(argv[i-1], arg):
			out[i] = Mark
		case strings.Contains(arg, "\n"):
			out[i] = strings.TrimSuffix(string(Text([]byte(arg))), "\n")
		default:
			out[i] = m.pairs(shapes(arg), 0)
		}
	}

	return out
}

// untilStable masks until the text does not change any more: the rest of a text may look like a
// secret once the part before it is masked. It repeats at most five times.
func untilStable(text string, once func(string) string) string {
	for range 5 {
		masked := once(text)
		if masked == text {
			break
		}
		text = masked
	}
	return text
}

func maskFile(name, text string) string {
	m := masker{indent: -1, variables: holdsVariables(name)}
	lines := strings.SplitAfter(pem(text), "\n")
	var out strings.Builder
	for i, line := range lines {
		m.below = ""
		if i+1 < len(lines) {
			m.below = lines[i+1]
		}

		body := strings.TrimRight(line, "\r\n")
		out.WriteString(m.line(body))
		out.WriteString(line[len(body):])
	}

	return out.String()
}

func maskMessage(text string) string {
	m := masker{indent: -1, prose: true}
	lines := strings.SplitAfter(pem(text), "\n")
	for i, line := range lines {
		body := strings.TrimRight(line, "\r\n")
		lines[i] = m.pairs(shapes(body), 0) + line[len(body):]
	}

	return strings.Join(lines, "")
}

// holdsVariables reports whether a file sets variables for a unit or for all sessions:
// systemd.exec(5), EnvironmentFile=; pam_env(8).
func holdsVariables(name string) bool {
	switch path.Dir(name) {
	case "/etc/default", "/etc/sysconfig", "/etc/environment.d", "/etc/conf.d":
		return true
	}

	base := path.Base(name)
	switch {
	case base == "environment", path.Ext(base) == ".env":
		return true
	case strings.HasSuffix(base, "_env"), strings.HasSuffix(base, "-env"):
		return true
	}

	return false
}
