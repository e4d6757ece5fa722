// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package pattern compiles regular expressions when they are first used. Most runs have nothing to do and use hardly any;
// the words of package managers alone are some forty, which took longer to compile than all of a run's own files to read.
package pattern

import (
	"regexp"
	"sync"
)

// Of is regexp.MustCompile, put off. TestPatterns finds a text that does not compile.
func Of(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
