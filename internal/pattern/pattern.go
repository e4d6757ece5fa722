// SPDX-License-Identifier: Apache-2.0

// Package pattern says what a text looks like. It compiles regular expressions when they are first
// used: compiled at the start, all of them took longer than reading all of a run's own files. What
// a run with nothing to do asks is better said without one.
package pattern

import (
	"regexp"
	"strings"
	"sync"
)

// Of is regexp.MustCompile, put off. TestPatterns finds a text that does not compile.
func Of(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// Sets of characters for Only.
const (
	Digits = "0123456789"
	Lower  = "abcdefghijklmnopqrstuvwxyz"
)

// Only says whether a text has characters of a set and no others.
func Only(text, set string) bool { return text != "" && strings.Trim(text, set) == "" }
