// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
)

// FuzzPlain compares compilerName with the regular expression that it says the same as.
func FuzzPlain(f *testing.F) {
	compiler := regexp.MustCompile(`^(?:[a-z0-9_]+-linux-gnu-)?(gcc-[0-9]+) \((?:Debian|Ubuntu) `)
	for _, text := range []string{
		"", "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0", "gcc-12 (Debian", "gcc-12 (Fedora ", "gcc- (Debian ",
		"-linux-gnu-gcc-12 (Debian ", "gcc-12-linux-gnu-gcc-1 (Ubuntu ", "X-linux-gnu-gcc-1 (Ubuntu ", "a-linux-gnu-b-linux-gnu-gcc-1 (Debian ", "gcc-1 (x (Debian ",
	} {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		want := ""
		if m := compiler.FindStringSubmatch(text); m != nil {
			want = m[1]
		}
		if is := compilerName(text); is != want {
			t.Errorf("compiler in %q: %q, not %q", text, is, want)
		}
	})
}

func TestMachineOf(t *testing.T) {
	f := facts.Facts{
		Live: true, Arch: "amd64", OS: facts.OS{
			ID:      "ubuntu",
			Version: "24.04",
			Like:    []string{"debian"},
			Name:    "Ubuntu 24.04",
		},
		Kernel: facts.Kernel{
			Running:   "6.8.0-40",
			Installed: []string{"6.8.0-41", "6.8.0-40", "6.8.0-39"},
		},
		GPUs: []facts.PCI{
			{Address: "a", Device: "2330", Class: "030200", Model: "H100 80GB"},
			{Address: "b", Device: "22a3", Class: "068000"},
			{Address: "c", Device: "10F8", Class: "040300"},
			{Address: "d", Device: "1EB8", Class: "030000"},
		},
	}
	want := Machine{
		GPUs: []Device{{
			Address: "a",
			ID:      "2330",
			Model:   "H100 80GB",
		}, {Address: "d", ID: "1eb8"}}, Switches: []Device{{
			Address: "b",
			ID:      "22a3",
		}}, ID: "ubuntu",
		Version: "24.04", Like: []string{"debian"}, Name: "Ubuntu 24.04", Arch: "amd64", Kernels: []string{"6.8.0-41", "6.8.0-40"}, Running: "6.8.0-40", Fallback: "6.8.0-39", Instance: "p5",
	}
	check.None(t, cmp.Diff(want, MachineOf(f, "p5")), "got")
	for _, x := range []struct {
		live bool
		k    facts.Kernel
		want []string
	}{
		{false, f.Kernel, f.Kernel.Installed},
		{true, facts.Kernel{Running: "6.18"}, []string{"6.18"}},
		{true, facts.Kernel{Running: "6.18", Installed: []string{"6.1.0-41", "6.1.0-40"}}, []string{"6.1.0-41"}},
		{true, facts.Kernel{}, nil},
	} {
		f.Live, f.Kernel = x.live, x.k
		check.List(t, MachineOf(f, "").Kernels, x.want, "%+v:", x.k)
	}

	f.GPUs = nil
	check.That(t, MachineOf(f, "").GPUs == nil, "the GPUs were not read, and MachineOf says that there are none")
	f.GPUs = []facts.PCI{}
	check.That(t, MachineOf(f, "").GPUs != nil, "the GPUs were read, and MachineOf says that they were not")
}
