// SPDX-License-Identifier: Apache-2.0

package incident

import (
	"fmt"
	"strings"
)

// A part is a program of a command line with its words, and how it stands to the part before it: after
// "&&", "||", ";" or "|".
type part struct {
	after string
	argv  []string
}

// partsOf takes a command line apart as sh(1) does: words in quotes are one word, a backslash takes its
// letter as it is. Variables and substitutions are an error: doctor prints none.
func partsOf(line string) (parts []part, err error) {
	now := part{after: ";"}
	word, inWord := "", false
	end := func() {
		if inWord {
			now.argv = append(now.argv, word)
		}
		word, inWord = "", false
	}

	for i := 0; i < len(line); i++ {
		letter := line[i]
		switch {
		case letter == '\'' || letter == '"':
			length := strings.IndexByte(line[i+1:], letter)
			if length < 0 {
				return nil, fmt.Errorf("%q has a quote that does not end", line)
			}
			word += line[i+1 : i+1+length]
			inWord = true
			i += length + 1
		case letter == '\\' && i+1 < len(line):
			i++
			word += line[i : i+1]
			inWord = true
		case letter == '$' || letter == '`' || letter == '>' || letter == '<':
			return nil, fmt.Errorf("%q has %q", line, letter)
		case letter == ' ':
			end()
		case strings.ContainsRune("&|;", rune(letter)):
			end()
			operator := line[i : i+1]
			if letter != ';' && i+1 < len(line) && line[i+1] == letter {
				operator += operator
				i++
			}
			parts = append(parts, now)
			now = part{after: operator}
		default:
			word += string(letter)
			inWord = true
		}
	}

	end()
	return append(parts, now), nil
}
