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
	named := MIGGPU{
		Devices: Devices{All: true},
		Match:   []string{"H100"},
		Enabled: true,
	}
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

// TestNotByMPS: NVIDIA's plugin ends where it has to share partitions by MPS, whoever has made them: the
// spec need not ask for partitions. With strategy none it offers GPUs in MIG mode as whole ones.
func TestNotByMPS(t *testing.T) {
	whole, cut := Offers{GPU: "GPU 0"}, Offers{
		GPU:   "GPU 1",
		MIG:   true,
		Kinds: []string{"1g.10gb"},
	}
	for _, x := range []struct {
		strategy string
		mps      int
		gpus     []Offers
		want     string
	}{
		{"single", 8, []Offers{whole}, ""},
		{"single", 0, []Offers{cut}, ""},
		{"none", 8, []Offers{whole, cut}, ""},
		{"single", 8, []Offers{whole, cut}, "cannot share the GPUs by MPS: GPU 1 has MIG"},
	} {
		_, err := Spec{Sharing: Sharing{Strategy: x.strategy, MPS: x.mps}}.Resources(x.gpus)
		got := ""
		if err != nil {
			got = err.Error()
		}
		check.Equal(t, got, x.want, "mps %d", x.mps)
	}
}
