// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"regexp"
	"strings"
	"sync"
)

// toldSecret is a sentence that tells a secret, as comments and error messages do: "password of the
// mirror is X", "secret value: X". The words between are small, so that no key is among them.
var toldSecret = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[^\w-])(?i:password|passphrase|passcode|token|secret|credentials?)(?: +[a-z]+){0,5}?(?: +is:? +| +[a-z]+: +)("[^"]+"|'[^']+'|[^\s"']+)`)
})

// told masks the secrets that sentences tell. What may be a word of the sentence stays: "the token
// is expired".
func told(s string) string {
	if !strings.Contains(s, " is") && !strings.Contains(s, ": ") {
		return s
	}
	var out strings.Builder
	from := 0
	for _, at := range toldSecret().FindAllStringSubmatchIndex(s, -1) {
		value := s[at[2]:at[3]]
		bare := strings.TrimRight(value, ".,;:!?)")
		switch quoted := opensQuote(value); {
		case quoted && isHarmless("", strings.Trim(value, `"'`)), strings.Contains(value, Mark):
			continue
		case quoted:
			bare = value
		case len(bare) < 4 || strings.Trim(bare, small+"-./_") == "" || isHarmless("", bare):
			continue
		}

		out.WriteString(s[from:at[2]])
		if opensQuote(value) {
			out.WriteString(value[:1] + Mark + value[:1])
		} else {
			out.WriteString(Mark)
		}

		from = at[2] + len(bare)
	}

	out.WriteString(s[from:])
	return out.String()
}

// namedSecret is a secret directly behind its name, as logs and comments have it, and a login of a
// command line: "with password X", "# token X", "--user NAME:X", "k3s agent -t K10…::server:X".
var namedSecret = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:(?:^|[^\w-])(?i:password|passphrase|passcode|token) +|(?:^| )(?:-u|--user)[ =][^\s:"'=]+:|::(?:server|node):)([^\s"'=,;)]+)`)
})

// named masks such secrets, if they look like no word.
func named(s string) string {
	if !strings.Contains(s, "oken") && !strings.Contains(s, "ass") && !strings.Contains(s, ":") {
		return s
	}
	var out strings.Builder
	from := 0
	for _, at := range namedSecret().FindAllStringSubmatchIndex(s, -1) {
		value := s[at[2]:at[3]]
		if !looksGenerated(value) || isHarmless("", value) {
			continue
		}
		out.WriteString(s[from:at[2]] + Mark)
		from = at[3]
	}

	out.WriteString(s[from:])
	return out.String()
}
