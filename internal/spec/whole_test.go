// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestLeavesWhole: later tables go before earlier ones, and indexes that name all GPUs leave none whole.
func TestLeavesWhole(t *testing.T) {
	all := MIGGPU{Devices: Devices{All: true}, Enabled: true}
	off := MIGGPU{Devices: Devices{All: true}}
	first := MIGGPU{Devices: Devices{Index: []int{0}}, Enabled: true}
	named := MIGGPU{Devices: Devices{All: true}, Match: []string{"H100"}, Enabled: true}
	for name, x := range map[string]struct {
		tables []MIGGPU
		count  int
		want   bool
	}{
		"none":             {nil, 8, false},
		"all":              {[]MIGGPU{all}, 8, false},
		"the first of 8":   {[]MIGGPU{first}, 8, true},
		"the only one":     {[]MIGGPU{first}, 1, false},
		"all, then off":    {[]MIGGPU{all, off}, 8, false},
		"off, then one":    {[]MIGGPU{off, first}, 8, true},
		"one, then all":    {[]MIGGPU{first, all}, 8, false},
		"those of a model": {[]MIGGPU{named}, 8, false},
	} {
		got := Spec{MIG: MIG{GPU: x.tables}}.LeavesWhole(x.count)
		check.Equal(t, got, x.want, "%s", name)
	}
}
