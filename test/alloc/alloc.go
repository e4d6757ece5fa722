// SPDX-License-Identifier: Apache-2.0

// Package alloc has a test fail that allocates far more than it was given: what a few bytes of a
// stranger can make a root process allocate is what takes the machine down.
package alloc

import (
	"runtime"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// fixed is what a parser may allocate for no bytes at all: tables, buffers, and what the test's own
// machinery does meanwhile.
const fixed = 1 << 20

// Most has the test fail if do allocates more than k bytes for each byte of input, and some for
// none, in all: what is freed again counts too.
func Most(t testing.TB, k, input int, do func()) {
	t.Helper()
	Beside(t, fixed, k, input, do)
}

// Beside is Most for what needs a larger buffer whatever it is given.
func Beside(t testing.TB, buffer, k, input int, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	all := after.TotalAlloc - before.TotalAlloc
	check.That(t, all <= slack*uint64(buffer+k*input), "%d bytes of input had %d bytes allocated: %d and %d for each are allowed", input, all, buffer, k)
}
