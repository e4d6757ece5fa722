// SPDX-License-Identifier: Apache-2.0

package trouble

import "strings"

// mark is on both sides of a command in a text. It is INVISIBLE SEPARATOR, which no person types,
// and which is invisible where a text is read as it is.
const mark = "\u2063"

// Command is a command line of gpuadm in a text for operators: "apply mig". Only where the text is
// printed is it known how this operator types it: with sudo or --root, with -f, over ssh. There
// Commands replaces it.
func Command(words string) string { return mark + Plain(words) + mark }

// Commands replaces each Command of a text by what typed makes of its words.
func Commands(text string, typed func(words string) string) string {
	before, rest, found := strings.Cut(text, mark)
	if !found {
		return text
	}
	words, after, closed := strings.Cut(rest, mark)
	if !closed {
		return text
	}
	return before + typed(strings.TrimPrefix(words, Plain(""))) + Commands(after, typed)
}

// Plain is a Command's line where gpuadm knows nothing about its reader.
func Plain(words string) string { return "gpuadm " + words }
