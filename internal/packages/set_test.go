// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"testing"
)

func BenchmarkSplit(b *testing.B) {
	s := NewSet().Of(nvidia())
	all := map[string]State{}
	for i := range 2500 {
		all[fmt.Sprintf("package-number-%d", i)] = State{Version: fmt.Sprintf("1:%d.4.7-2ubuntu1.%d", i%700, i)}
	}
	for i := range 15 {
		name := fmt.Sprintf("libnvidia-part%d-580", i)
		all[name] = State{Version: "580.95.05-0ubuntu1", Held: true}
		s.wanted[name] = State{Version: "driver=580.95.05", Held: true}
	}
	s.found = all
	for b.Loop() {
		s.split("driver")
	}
}
