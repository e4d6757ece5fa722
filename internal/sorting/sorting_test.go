// SPDX-License-Identifier: Apache-2.0

package sorting_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestBy: the library's stable sort has the same answer, for lists of all lengths up to 100 in which
// many elements are equal.
func TestBy(t *testing.T) {
	type element struct{ key, at int }
	byKey := func(a, b element) int { return cmp.Compare(a.key, b.key) }

	random := rand.New(rand.NewPCG(1, 2))
	for length := range 100 {
		list := make([]element, length)
		for i := range list {
			list[i] = element{random.IntN(10), i}
		}
		want := slices.Clone(list)
		slices.SortStableFunc(want, byKey)

		sorting.By(list, byKey)

		check.That(t, slices.Equal(list, want), "%d elements: got %v, want %v", length, list, want)
	}
}
