// SPDX-License-Identifier: Apache-2.0

// Package sorting sorts lists by what their elements hold.
package sorting

import "sort"

// By sorts list by compare, whose answer is below 0 where a comes before b. Equal elements keep
// their order.
//
// It is slices.SortStableFunc at a smaller price: the compiler makes all of that function again for
// each type of element, about 10 kB of program a type, and sort.Stable only once.
func By[T any](list []T, compare func(a, b T) int) {
	sort.Stable(&byCompare[T]{list, compare})
}

// byCompare is a list as package sort asks for it.
type byCompare[T any] struct {
	list    []T
	compare func(a, b T) int
}

func (s *byCompare[T]) Len() int           { return len(s.list) }
func (s *byCompare[T]) Less(i, j int) bool { return s.compare(s.list[i], s.list[j]) < 0 }
func (s *byCompare[T]) Swap(i, j int)      { s.list[i], s.list[j] = s.list[j], s.list[i] }
