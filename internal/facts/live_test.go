// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
)

// BenchmarkHere gathers this machine's facts, whatever it is.
func BenchmarkHere(b *testing.B) {
	v, err := host.Open("/")
	if err != nil {
		b.Skip(err)
	}
	var c Cache
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Gather(b.Context(), v, Needs{}); err != nil {
			b.Log(err)
		}
	}
	f, _ := c.Gather(b.Context(), v, Needs{})
	b.Log(f)
}
