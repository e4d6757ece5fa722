// SPDX-License-Identifier: Apache-2.0

package converge

import "slices"

// subset says whether all words of a are in b.
func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

// overlap says whether a and b share a word.
func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// appendUnique adds lines, each of them once.
func appendUnique(all []string, lines ...string) []string {
	for _, line := range lines {
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
