// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package trouble

import (
	"fmt"
	"slices"
	"strings"
)

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
