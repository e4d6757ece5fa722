// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package fakenvml

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
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
			check.That(t, len(p.Name) >= len(want) && p.Name[:len(want)] == want, "%s: profile %d is called %s, its memory says %s", m.Key, p.ID, p.Name, want)
		}
	}
}
