// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"regexp"
	"strings"
)

const masked = "(masked)"

// Mask replaces what looks like a secret: the values of keys that are called so, over as many lines as they take;
// passwords in URLs; PEM blocks. It reads any text line by line, since what is masked need not parse.
func Mask(text []byte) []byte {
	secret := regexp.MustCompile(`(?i)((?:auth|passw|passphrase|token|secret|credential|private|api[-_]?key|cookie|signature)[\w."'-]*\s*[=:]\s*)(\S.*)$`)
	inURL := regexp.MustCompile(`(://)[^/@\s"']*@`)
	lines := strings.Split(string(text), "\n")
	until := "" // what ends the secret that goes on over lines
	for i, line := range lines {
		switch {
		case until != "":
			if strings.Contains(line, until) {
				until = ""
			}
			lines[i] = masked
			continue
		case strings.Contains(line, "-----BEGIN "):
			until = "-----END "
			lines[i] = masked
			continue
		}
		if m := secret.FindStringSubmatchIndex(line); m != nil {
			until = goesOn(line[m[4]:])
			line = line[:m[4]] + masked
		}
		lines[i] = inURL.ReplaceAllString(line, "${1}"+masked+"@")
	}
	return []byte(strings.Join(lines, "\n"))
}

// goesOn returns what ends a value that does not end on its line, "" if it does.
func goesOn(value string) string {
	for _, pair := range [][2]string{{`"""`, `"""`}, {"'''", "'''"}, {"[", "]"}, {"{", "}"}} {
		if rest, ok := strings.CutPrefix(value, pair[0]); ok {
			if strings.Contains(rest, pair[1]) {
				return ""
			}
			return pair[1]
		}
	}
	return ""
}
