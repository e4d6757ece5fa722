// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package trouble

import (
	"fmt"
	"slices"
	"strings"
)

// mark is on both sides of a command in a text. It is INVISIBLE SEPARATOR, which no person writes, and which shows nothing where a
// text is read as it is.
const mark = "\u2063"

// Command is a command line of gpuadm in a text for operators: "apply mig". Only where the text is printed is it known how this
// operator types it: with sudo or --root, with -f, over ssh. There Commands replaces it.
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

// Plain is a Command's line where nothing is known of who types it.
func Plain(words string) string { return "gpuadm " + words }

// Few keeps the first lines of a list, each once, and counts the others: a user may have started thousands of processes.
func Few(all []string, most int) []string {
	seen := make(map[string]bool, len(all))
	all = slices.DeleteFunc(slices.Clone(all), func(line string) bool {
		repeated := seen[line]
		seen[line] = true
		return repeated
	})
	if more := len(all) - most; more > 0 {
		return append(all[:most:most], fmt.Sprintf("and %d more", more))
	}
	return all
}

// Or is "a, b or c".
func Or(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// OneLine makes a text of others fit into a message.
func OneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
