// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestParts: the parts of a number of touches have each of them once, also where there are fewer
// touches than parts.
func TestParts(t *testing.T) {
	for _, count := range []int{0, 1, 5, 12, 13, 31, 200} {
		var all []int
		for part := range 12 {
			all = append(all, must.Get(partOf(count, fmt.Sprintf("%d/12", part+1)))(t)...)
		}
		check.Equal(t, len(all), count, "the parts of %d touches have", count)
		isEachOnce := slices.IsSorted(all) && len(slices.Compact(all)) == count
		check.That(t, isEachOnce, "the parts of %d touches are %v", count, all)
	}

	for _, wrong := range []string{"", "0/12", "13/12", "1", "x"} {
		_, err := partOf(12, wrong)
		check.That(t, err != nil, "%q is a part", wrong)
	}
}
