// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes a foreign text fit for output: one line without control characters, of at most limit
// bytes.
func clean(s string, limit int) string {
	valid := strings.ToValidUTF8(s, " ")
	s = strings.TrimSpace(strings.Map(printable, valid))
	if len(s) <= limit {
		return s
	}

	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// printable returns a rune for output; -1, which strings.Map drops, for a control character or one
// that turns the direction of writing.
func printable(r rune) rune {
	switch {
	case r == utf8.RuneError, unicode.IsSpace(r):
		return ' '
	case !unicode.IsPrint(r):
		return -1
	}
	return r
}

// plain says whether s looks like a cloud's name: printable ASCII without blanks, quotes and
// brackets, not too long.
func plain(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}

	for i := range len(s) {
		c := s[i]
		visible := c > ' ' && c <= '~'
		if !visible || strings.IndexByte("\"'`\\<>{}$|;&", c) >= 0 {
			return false
		}
	}

	return true
}

// fitForOutput returns the entries of a table that are fit for output, at most a hundred.
func fitForOutput(table map[string]string) map[string]string {
	var kept map[string]string
	for key, value := range table {
		if len(kept) == 100 {
			break
		}
		if !plain(key) || clean(value, 512) != value {
			continue
		}

		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}

	return kept
}

// plainOrNone returns s if it is a plain word, else "".
func plainOrNone(s string) string {
	if plain(s) {
		return s
	}
	return ""
}

// address returns the text if it is an IP address, else "".
func address(text string) string {
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		return ""
	}
	return ip.String()
}
