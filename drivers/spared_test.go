// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
)

// TestSpared: a kernel that has the driver's modules needs no headers and no compiler; a kernel
// that does not run waits for headers, where another has the driver. What runs without the driver,
// and a first installation, need them.
func TestSpared(t *testing.T) {
	const old, running, next = "6.8.0-1", "6.8.0-2", "6.8.0-3"
	on := func(kernel, version string) facts.KernelModules {
		k := facts.KernelModules{Kernel: kernel}
		if version != "" {
			k.Nvidia = &modinfo.Module{
				Version:  version,
				Vermagic: kernel + " SMP",
				License:  "Dual MIT/GPL",
			}
		}

		return k
	}

	c := Choice{
		Branch:  "580",
		Version: "580.95.05",
		Flavour: FlavourOpen,
		Members: []Member{{Name: "make", Role: "compiler"}, {Name: "dkms", Role: "dkms"}},
	}
	for _, k := range []string{running, next} {
		c.Members = append(c.Members, Member{
			Name:      "headers-" + k,
			Role:      "headers",
			PerKernel: k,
		}, Member{Name: "gcc-" + k, Role: "compiler", PerKernel: k})
	}

	for name, x := range map[string]struct {
		running                   string // that runs
		headers                   string // the kernel whose headers are on the disk
		old, run, next            string // versions of the modules that the kernels have
		asFound, ifThere, waiting string
	}{
		"nothing yet":                {running: running},
		"headers on the disk":        {running: running, headers: running, asFound: "headers-" + running},
		"all have the driver":        {running: running, run: "580.95.05", next: "580.95.05", asFound: "make headers-" + running + " gcc-" + running + " headers-" + next + " gcc-" + next},
		"a newer kernel came":        {running: running, run: "580.95.05", asFound: "headers-" + running + " gcc-" + running, ifThere: "headers-" + next + " gcc-" + next, waiting: next},
		"the running one has none":   {running: running, next: "580.95.05", asFound: "headers-" + next + " gcc-" + next},
		"another version is wanted":  {running: running, run: "570.1", next: "570.1"},
		"what runs is not installed": {running: "6.5.0", old: "580.95.05", ifThere: "headers-" + next + " gcc-" + next, waiting: next},
	} {
		kernels := []string{next, running, old}
		if x.old != "" {
			kernels = []string{next, old}
		}
		f := facts.Facts{
			Live: true, Kernel: facts.Kernel{Running: x.running, Installed: kernels},
			Modules: &facts.Modules{Kernels: []facts.KernelModules{on(next, x.next), on(running, x.run), on(old, x.old)}},
		}
		for i := range f.Modules.Kernels {
			f.Modules.Kernels[i].Headers = f.Modules.Kernels[i].Kernel == x.headers
		}
		asked := c
		if x.old != "" {
			asked.Members = slices.DeleteFunc(slices.Clone(c.Members), func(m Member) bool {
				return m.PerKernel == running
			})
		}

		asFound, ifThere := asked.Spared(driver("580.95.05"), f)
		k, _ := asked.KernelSide(driver("580.95.05"), f)
		if got := [3]string{strings.Join(asFound, " "), strings.Join(ifThere, " "), strings.Join(k.Waiting, " ")}; got != [3]string{x.asFound, x.ifThere, x.waiting} {
			t.Errorf("%s: %q, want %q", name, got, [3]string{x.asFound, x.ifThere, x.waiting})
		}
	}
}
