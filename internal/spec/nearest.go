// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import "unicode/utf8"

// distance is how many letters must be put in, taken out, replaced or swapped with their neighbour to turn a into b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, last := []int(nil), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := range x {
		row := make([]int, len(y)+1)
		row[0] = i + 1
		for j := range y {
			cost := 1
			if x[i] == y[j] {
				cost = 0
			}
			row[j+1] = min(row[j]+1, last[j+1]+1, last[j]+cost)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(y)]
}

// Nearest is the candidate most like name, or "" where none is like it enough to be meant. The first of equals wins.
func Nearest(name string, candidates []string) string { return nearest(name, candidates) }

// nearest is the candidate most like name, or "" where none is like it enough to be meant. The first of equals wins.
func nearest(name string, candidates []string) string {
	const longest = 64 // no key is that long, and distances of long names cost
	if utf8.RuneCountInString(name) > longest {
		return ""
	}
	best, found := -1, ""
	flat := flatten(name)
	for _, c := range candidates {
		d := distance(flat, flatten(c))
		if limit := max(1, min(len(flat), len(c))/3); d <= limit && (best < 0 || d < best) {
			best, found = d, c
		}
	}
	return found
}
