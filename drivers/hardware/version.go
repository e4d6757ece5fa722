// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"slices"
	"strconv"
	"strings"
)

// Compare compares two driver versions by their numbers: below 0 if a is older. A text that is no
// version sorts before each version. It is not for package versions, which only their packager can
// compare.
func Compare(a, b string) int {
	as, bs := Numbers(a), Numbers(b)
	if as == nil && bs == nil {
		return strings.Compare(a, b)
	}
	return slices.Compare(as, bs)
}

// Numbers returns a version's numbers without zeros at the end: 580.0 is 580. It returns nil for
// any text but numbers with dots between: go-version accepts much more, and uses a regular
// expression.
func Numbers(version string) (all []uint64) {
	end := 1
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.ParseUint(part, 10, 63)
		if err != nil {
			return nil
		}
		if all = append(all, n); n > 0 {
			end = len(all)
		}
	}
	return all[:end]
}

// InBranch says whether a driver version belongs to a branch: 580.95.05 to 580, and to 580.95.
func InBranch(version, branch string) bool {
	return branch != "" && (version == branch || strings.HasPrefix(version, branch+"."))
}

// LeadingNumbers returns the numbers with dots that a text begins with, such as a kernel's release:
// 6.6.15 of 6.6.15-x64v3; "" if there are none.
func LeadingNumbers(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end >= 0 {
		s = s[:end]
	}
	return strings.TrimRight(s, ".")
}
