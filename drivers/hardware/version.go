// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"slices"
	"strconv"
	"strings"
)

// Compare compares two driver versions by their numbers: below 0 if a is older. A text that is not
// a version sorts before each version. It is not for package versions, which only their packager
// can compare.
func Compare(a, b string) int {
	numbersA, numbersB := Numbers(a), Numbers(b)
	if numbersA == nil && numbersB == nil {
		return strings.Compare(a, b)
	}
	return slices.Compare(numbersA, numbersB)
}

// Numbers returns a version's numbers without zeros at the end: 580.0 is 580. It returns nil for
// any text but numbers with dots between: go-version accepts much more, and uses a regular
// expression.
func Numbers(version string) []uint64 {
	var all []uint64
	end := 1 // after the last number that is not zero
	for part := range strings.SplitSeq(version, ".") {
		number, err := strconv.ParseUint(part, 10, 63)
		if err != nil {
			return nil
		}
		all = append(all, number)
		if number > 0 {
			end = len(all)
		}
	}

	return all[:end]
}

// InBranch says whether a driver version belongs to a branch: 580.95.05 to 580, and to 580.95.
func InBranch(version, branch string) bool {
	if branch == "" {
		return false
	}
	return version == branch || strings.HasPrefix(version, branch+".")
}

// LeadingNumbers returns the numbers with dots that a text begins with, such as a kernel's release:
// 6.6.15 of 6.6.15-x64v3; "" if there are none.
func LeadingNumbers(text string) string {
	other := func(r rune) bool { return r != '.' && (r < '0' || r > '9') }
	if end := strings.IndexFunc(text, other); end >= 0 {
		text = text[:end]
	}
	return strings.TrimRight(text, ".")
}
