// SPDX-License-Identifier: Apache-2.0

// Package nearest finds the name that a mistyped one means.
package nearest

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Distance is how many letters must be put in, taken out, replaced or swapped with their neighbour
// to turn a into b.
func Distance(a, b string) int {
	x := []rune(a)
	y := []rune(b)

	// A row has the distances of the first letters of x to each beginning of y: last is the row of
	// one letter less, before that of two less.
	var before []int
	last := make([]int, len(y)+1)
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

			isSwapped := i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j]
			if isSwapped {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}

		before = last
		last = row
	}

	return last[len(y)]
}

// Of is the candidate most like name; "" if no candidate is like it enough to be meant. The first
// of equals wins.
func Of(name string, candidates []string) string {
	const longest = 64 // letters: no key is that long, and distances of long names cost time
	if utf8.RuneCountInString(name) > longest {
		return ""
	}

	found := ""
	best := math.MaxInt
	flat := Flatten(name)
	for _, c := range candidates {
		distance := Distance(flat, Flatten(c))
		limit := max(1, min(len(flat), len(c))/3)
		if distance <= limit && distance < best {
			best = distance
			found = c
		}
	}

	return found
}

// Flatten takes out of a name what people write in different ways.
func Flatten(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r == ' ' {
			return -1
		}
		return unicode.ToLower(r)
	}, name)
}
