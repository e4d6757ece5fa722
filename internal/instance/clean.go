// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean is the text of another program or service, fit for output: one line without control characters, no longer than so many bytes.
func clean(s string, most int) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError, unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r): // control characters, and those that turn the writing's direction
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, " ")))
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// plain says whether s is a word as clouds give names: printable ASCII without blanks, quotes and brackets, not too long.
func plain(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte("\"'`\\<>{}$|;&", c) >= 0 {
			return false
		}
	}
	return true
}

// keep takes over those entries of a table that are fit to be shown, and no more than a hundred.
func keep(table map[string]string) map[string]string {
	var kept map[string]string
	for k, v := range table {
		if !plain(k) || len(kept) == 100 || len(v) > 512 || clean(v, 512) != v {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[k] = v
	}
	return kept
}
