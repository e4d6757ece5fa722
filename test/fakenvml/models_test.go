// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package fakenvml

import (
	"fmt"
	"math"
	"testing"
)

func models(t testing.TB) []Model {
	t.Helper()
	all, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNamesFollowFromMemory computes profile names as those must who read version 1 of NVML's profile info, which has no
// name: eighths of the memory, rounded up, of the whole GiB.
func TestNamesFollowFromMemory(t *testing.T) {
	for _, m := range models(t) {
		for _, p := range m.Profiles {
			eighths := math.Ceil(8 * float64(p.MemoryMB) / float64(m.MemoryMB))
			whole := math.Ceil(float64(m.MemoryMB) / 1024)
			want := fmt.Sprintf("%dg.%dgb", p.Slices, int(math.Round(eighths/8*whole)))
			if len(p.Name) < len(want) || p.Name[:len(want)] != want {
				t.Errorf("%s: profile %d is called %s, its memory says %s", m.Key, p.ID, p.Name, want)
			}
		}
	}
}

// TestGrids counts the sets of instances that fit, by exhaustive search over our table, and compares with the counts that
// were found over the published tables (places and numbers only).
func TestGrids(t *testing.T) {
	want := map[string][2]int{"A30": {21, 9}}
	for _, key := range []string{"A100-40", "A100-80", "H100-80", "H100-94", "H200", "B200", "GB200"} {
		want[key] = [2]int{127, 44}
	}
	for _, m := range models(t) {
		if want[m.Key][0] == 0 {
			continue
		}
		feasible := map[string]bool{}
		search(m, make([]int, len(m.Profiles)), 0, feasible)
		delete(feasible, fmt.Sprint(make([]int, len(m.Profiles))))
		maximal := 0
		for set := range feasible {
			if !extends(m, set, feasible) {
				maximal++
			}
		}
		if got := [2]int{len(feasible), maximal}; got != want[m.Key] {
			t.Errorf("%s: %v sets fit and are maximal, want %v", m.Key, got, want[m.Key])
		}
	}
}

func search(m Model, counts []int, taken uint, feasible map[string]bool) {
	key := fmt.Sprint(counts, taken)
	if feasible[key] {
		return
	}
	feasible[key] = true
	defer delete(feasible, key)
	feasible[fmt.Sprint(counts)] = true
	for i, p := range m.Profiles {
		if counts[i] == p.Max {
			continue
		}
		for _, start := range p.Starts {
			if at := (uint(1)<<p.Size - 1) << start; taken&at == 0 {
				counts[i]++
				search(m, counts, taken|at, feasible)
				counts[i]--
			}
		}
	}
}

func extends(m Model, set string, feasible map[string]bool) bool {
	counts := make([]int, len(m.Profiles))
	var list []any
	for i := range counts {
		list = append(list, &counts[i])
	}
	_, _ = fmt.Sscan(set[1:len(set)-1], list...)
	for i := range counts {
		counts[i]++
		if feasible[fmt.Sprint(counts)] {
			return true
		}
		counts[i]--
	}
	return false
}

func TestTableIsSane(t *testing.T) {
	keys := map[string]bool{}
	for _, m := range models(t) {
		keys[m.Key] = true
		ids, kinds := map[int]bool{}, map[int]bool{}
		for _, p := range m.Profiles {
			if ids[p.ID] || kinds[p.Kind] {
				t.Errorf("%s: profile %d or kind %d twice", m.Key, p.ID, p.Kind)
			}
			ids[p.ID], kinds[p.Kind] = true, true
			for _, start := range p.Starts {
				if start < 0 || start+p.Size > m.Slices {
					t.Errorf("%s: profile %d at %d:%d leaves the GPU", m.Key, p.ID, start, p.Size)
				}
			}
		}
	}
	for _, key := range []string{"A30", "A100-40", "A100-80", "H100-80", "H100-94", "H200", "B200", "GB200", "RTX-PRO-6000", "T4", "L40S"} {
		if !keys[key] {
			t.Errorf("no model %s", key)
		}
	}
}
