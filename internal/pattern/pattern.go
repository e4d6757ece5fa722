// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package pattern compiles regular expressions when they are first used. Most runs have nothing to do and use hardly any;
// compiled at the start, all of them took longer than reading all of a run's own files.
package pattern

import (
	"regexp"
	"sync"
)

// Of is regexp.MustCompile, put off. TestPatterns finds a text that does not compile.
func Of(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
