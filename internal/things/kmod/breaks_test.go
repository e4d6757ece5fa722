// SPDX-License-Identifier: Apache-2.0

package kmod_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A module that is loaded again loses the GPUs' partitions, unless the run makes them again: then
// the operator must agree.
func TestModuleBreaks(t *testing.T) {
	const (
		two     = "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"1g.5gb\", start = 5 }, { profile = \"1g.5gb\", start = 6 }]\n[[gpu]]\nmodel = \"A100-40\"\nmode = true\n"
		none    = "[[gpu]]\nmodel = \"A100-40\"\nmode = true\n"
		unasked = "[driver]\nmodule = \"/nothing\"\n-- proc/driver/nvidia/capabilities/gpu3/mig/gi1/access --\n-- proc/driver/nvidia/capabilities/gpu3/mig/config --\n-- proc/driver/nvidia/capabilities/gpu0/mig/config --\n"
		other   = "570.1 open, on disk 580.95.05 open"
	)
	for name, c := range map[string]struct {
		machine string
		found   converge.State
		remade  bool
		lost    []string
	}{
		"another version":          {two, other, false, []string{"GPU 0000:17:00.0: 2 MIG instances"}},
		"another parameter":        {two, "580.95.05 open without NVreg_X=0x10", false, []string{"GPU 0000:17:00.0: 2 MIG instances"}},
		"a file of parameters":     {two, "the one before without " + modprobeFile, false, []string{"GPU 0000:17:00.0: 2 MIG instances"}},
		"companions alone":         {two, "580.95.05 open without nvidia-uvm", false, nil},
		"a file of companions":     {two, "the one before without " + loadFile, false, nil},
		"made again by the spec":   {two, other, true, nil},
		"no partitions":            {none, other, false, nil},
		"the library was replaced": {unasked, other, false, []string{"GPU 3: 1 MIG instance"}},
		"no driver":                {"[driver]\nmodule = \"/nothing\"\n", other, false, nil},
	} {
		n, err := simhost.New([]byte("-- sim.toml --\n" + c.machine))
		must.That(t, err == nil, "%v: %v", name, err)
		b := kmod.Module("6.8.0", []string{modprobeFile, loadFile}, onDisk, c.remade, "").Thing.(converge.Disruptor)
		what, clients, err := b.Breaks(t.Context(), n, c.found, "as on disk")
		want := []string{"stop-clients"}
		if len(c.lost) > 0 {
			want = append(want, "lose-partitions")
		}
		check.That(t, err == nil && slices.Equal(what, want) && slices.Equal(clients["lose-partitions"], c.lost) && len(clients["stop-clients"]) == 0,
			"%s: %v by %v, %v; want %v by %v", name, what, clients, err, want, c.lost)
	}

	undone := kmod.NewModule([]string{modprobeFile, loadFile}, onDisk).(converge.Disruptor)
	n := must.Get(simhost.New([]byte("-- sim.toml --\n" + two)))(t)
	what, _, _ := undone.Breaks(t.Context(), n, other, "as on disk")
	check.That(t, strings.Contains(strings.Join(what, " "), "lose-partitions"), "undo asks only for %v", what)
}
