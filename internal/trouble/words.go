// SPDX-License-Identifier: Apache-2.0

package trouble

import (
	"fmt"
	"slices"
	"strings"
)

// Count is a number of things: "1 GPU", "8 GPUs".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Few keeps the first lines of a list, each once, and counts the others: a user may have started
// thousands of processes.
func Few(all []string, most int) []string {
	seen := make(map[string]bool, len(all))
	isRepeated := func(line string) bool {
		repeated := seen[line]
		seen[line] = true
		return repeated
	}

	all = slices.DeleteFunc(slices.Clone(all), isRepeated)

	more := len(all) - most
	if more > 0 {
		return append(all[:most:most], fmt.Sprintf("and %d more", more))
	}
	return all
}

// Or is "a, b or c".
func Or(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Either is "a; or b" of ways out, each of which may begin with "or" itself.
func Either(ways []string) string {
	var bare []string
	for i, way := range ways {
		if i > 0 {
			way = strings.TrimPrefix(way, "or ")
		}
		bare = append(bare, way)
	}

	return strings.Join(bare, "; or ")
}

// OneLine makes another program's text fit into a message.
func OneLine(text string) string {
	const most = 300 // bytes
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
