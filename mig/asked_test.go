// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// bus is two H100, an audio function, a GPU that the table does not know, and one that is given to
// a virtual machine.
func bus() []facts.PCI {
	return []facts.PCI{
		{Address: "0000:17:00.0", Vendor: "10de", Device: "2330", Class: "030200", Subsystem: "10de:16c1"},
		{Address: "0000:17:00.1", Vendor: "10de", Device: "10f0", Class: "040300"},
		{Address: "0000:2a:00.0", Vendor: "10de", Device: "2330", Class: "030200", Subsystem: "10de:1626", Driver: "vfio-pci"},
		{Address: "0000:3d:00.0", Vendor: "10de", Device: "2330", Class: "030200", Subsystem: "10de:1626"},
		{Address: "0000:60:00.0", Vendor: "10de", Device: "9999", Class: "030200"},
		{Address: "0000:61:00.0", Vendor: "10de", Device: "2c3a", Class: "030200", Subsystem: "10de:21f4"},
		{Address: "0000:62:00.0", Vendor: "10de", Device: "232c", Class: "030200"},
	}
}

// TestImpossibleWithoutDriver: while no driver answers, the PCI ids say what the GPUs are, and a
// layout that they cannot have is refused. GPUs that the table does not know, and those of a
// virtual machine, are left to the driver.
func TestImpossibleWithoutDriver(t *testing.T) {
	for _, c := range []struct{ toml, says string }{
		{"[[mig.gpu]]\nlayout = { \"1g.18gb\" = 7 }\n", "cannot make 1g.18gb on H100-80GB"},
		{"[[mig.gpu]]\nlayout = { \"3g\" = 2, \"1g\" = 1 }\n", "it needs 9 memory slices"},
		{"[[mig.gpu]]\ndevices = [1]\nlayout = { \"1g.18gb\" = 7 }\n", "cannot make 1g.18gb on H100-80GB"},
		{"[[mig.gpu]]\nmatch = [\"0x233010DE:0x162610DE\"]\nlayout = { \"1g.18gb\" = 7 }\n", "cannot make 1g.18gb on H100-80GB"},
		{"[mig]\nlayout = \"a\"\nfile = \"/mig.yaml\"\n", "cannot make 1g.5gb on H100-80GB"},
		{"[mig]\nlayout = \"b\"\nfile = \"/mig.yaml\"\n", `cannot find layout "b"`},
		{"[[mig.gpu]]\ndevices = [2]\nlayout = { \"1g.18gb\" = 7 }\n", ""},
		{"[[mig.gpu]]\nmatch = [\"0x233010DE:0x999910DE\"]\nlayout = { \"1g.18gb\" = 7 }\n", ""},
		{"[[mig.gpu]]\ndevices = [1]\nlayout = { \"1g.10gb\" = 7 }\n", ""},
		{"[[mig.gpu]]\ndevices = [3]\nlayout = { \"1g.16gb\" = 3 }\n", "it holds at most 2 of 1g.16gb"},
		{"[[mig.gpu]]\ndevices = [3]\nlayout = { \"1g.16gb\" = 1, \"1g.16gb-me\" = 1 }\n", ""},
		{"[[mig.gpu]]\ndevices = [3]\nplacements = [{ profile = \"1g.16gb\", start = 4 }]\n", ""}, // where it can begin is not public
		{"[[mig.gpu]]\ndevices = [4]\nlayout = { \"1g.18gb\" = 7 }\n", ""},
		{"[[mig.gpu]]\ndevices = [4]\nlayout = { \"3g.71gb\" = 3 }\n", "cannot make 3 × 3g.71gb on H20-141GB"},
		{"[mig]\ntrust_driver = true\n[[mig.gpu]]\nlayout = { \"1g.18gb\" = 7 }\n", ""},
		{"[mig]\nlayout = \"b2\"\nfile = \"/mig.yaml\"\n[sharing]\nstrategy = \"single\"\n", "GPU 0 has 1g.10gb and 3g.40gb"},
		{"[mig]\nlayout = \"a\"\nfile = \"/another.yaml\"\n", ""}, // it may come before the driver does
	} {
		s := specs.Of(t, c.toml)
		f := facts.Facts{Live: true, GPUs: bus(), NoDriver: "the module is not loaded", Files: map[string][]byte{
			"/mig.yaml": []byte("version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]\n  b2: [{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 1, 3g.40gb: 1}}]\n"),
		}}
		list, err := wants(s, f)
		switch said := words(err); {
		case c.says == "" && (err != nil || len(list) != 1):
			t.Errorf("%s: %v wants, %s", c.toml, len(list), said)
		case c.says != "" && !strings.Contains(said, c.says):
			t.Errorf("%s: %s; want %s", c.toml, said, c.says)
		case strings.Contains(c.says, "cannot make") && !strings.Contains(said, "trust_driver = true in [mig]"):
			t.Errorf("%s: %s: the way round is not named", c.toml, said)
		}
	}
}

// TestPicksOneGPU: an entry names a GPU by its UUID or PCI address, as nvidia-smi, lspci and sysfs
// write them, and a subsystem also where GPUs are planned for that no machine has.
func TestPicksOneGPU(t *testing.T) {
	live := host.GPU{
		Address: "0000:3d:00.0",
		UUID:    "GPU-5a3c1d7e-11b0-4a66-9c2f-0d1e2f3a4b5c",
		Name:    "NVIDIA H100 PCIe",
		Device:  "0x233010DE",
		Sub:     "0x162610DE",
		MIG:     true,
	}
	bare := must.Get(Find("H100-80GB"))(t)
	other := must.Get(Find("0x233010DE:0x162610DE"))(t)
	for _, c := range []struct {
		match string
		gpu   host.GPU
		want  bool
	}{
		{"GPU-5a3c1d7e-11b0-4a66-9c2f-0d1e2f3a4b5c", live, true},
		{"gpu-5A3C1D7E-11b0-4a66-9c2f-0d1e2f3a4b5c", live, true},
		{"GPU-00000000-11b0-4a66-9c2f-0d1e2f3a4b5c", live, false},
		{"0000:3d:00.0", live, true},
		{"00000000:3D:00.0", live, true},
		{"3d:00.0", live, true},
		{"0001:3d:00.0", live, false},
		{"3e:00.0", live, false},
		{"H20-3e", live, false},
		{"H100", live, true},
		{"0x233010DE:0x162610DE", live, true},
		{"0x233010DE:0x162610DE", bare.GPU(), true}, // which subsystem is planned for was not said
		{"0x233010DE:0x162610DE", other.GPU(), true},
		{"0x233010DE:0x16C110DE", other.GPU(), false},
	} {
		e := Entry{Match: []string{c.match}, Devices: spec.Devices{All: true}}
		check.Equal(t, e.Matches(c.gpu), c.want, "%s is for %s %s:", c.match, c.gpu.Address, c.gpu.Sub)
		if err := e.refuseTypos([]host.GPU{c.gpu}); err != nil {
			t.Errorf("%s: %v", c.match, err) // one file serves many machines
		}
	}
}

// TestNoLabelYet: while no label has named a layout, gpuadm partitions nothing, so it does not say that
// pods can ask for partitions, though the file has only one layout.
func TestNoLabelYet(t *testing.T) {
	gpu := model(t, "A100-40").GPU()
	gpu.Address = "0000:17:00.0"
	layouts := "version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]\n"
	f := facts.Facts{
		Live:   true,
		Driver: &host.Driver{GPUs: []host.GPU{gpu}},
		Files:  map[string][]byte{"/mig.yaml": []byte(layouts)},
	}
	s := specs.Of(t, "[mig]\nfile = \"/mig.yaml\"\nfollow_label = true\n")
	check.List(t, Stage.Notes(nil, s, f), nil, "no label: notes")

	s.MIG.Layout = "a"
	said := strings.Join(Stage.Notes(nil, s, f), "\n")
	check.Says(t, said, "pods can ask for 7 nvidia.com/mig-1g.5gb")
}

// TestDynamicMIG: where the DRA driver makes partitions as pods ask for them, gpuadm refuses a layout,
// since the driver removes each partition that it has not made; a table without a layout asks for
// MIG mode alone, which gpuadm makes where the driver cannot. Partitions that gpuadm has made are
// released, also when [mig] is taken out.
func TestDynamicMIG(t *testing.T) {
	const (
		seven  = "[[mig.gpu]]\nlayout = { \"1g\" = 7 }\n"
		modeOn = "[[mig.gpu]]\n"
	)
	for _, c := range []struct {
		name, toml, gpu string
		mode            bool
		wants           string // kinds
		says            string
	}{
		{
			"a layout", seven, "H100-80", false, "",
			"cannot keep the partitions that node.toml asks for: NVIDIA's DRA driver makes and removes them as pods ask (DynamicMIG, process 77)",
		},
		{"whole GPUs", "[[mig.gpu]]\nenabled = false\n", "H100-80", false, "", "DynamicMIG"},
		{"a table of two", modeOn + "devices = [0]\n" + seven + "devices = [1]\n", "H100-80", false, "", "DynamicMIG"},
		{"mode alone", modeOn, "H100-80", false, "check", ""},
		{"mode alone, on", modeOn, "A100-40", true, "check", ""},
		{"mode alone, off", modeOn, "A100-40", false, "check mig paused", ""},
		{"no [mig]", "", "A100-40", true, "check", ""},
	} {
		gpu := model(t, c.gpu).GPU()
		gpu.Address = "0000:17:00.0"
		gpu.Mode = c.mode
		gpu.Pending = c.mode
		f := facts.Facts{
			Live:       true,
			Driver:     &host.Driver{GPUs: []host.GPU{gpu}},
			DynamicMIG: "process 77",
		}
		s := must.Get(spec.Parse(spec.File{
			Name: "node.toml",
			Data: []byte("format = 1\n" + c.toml),
		}))(t)

		list, err := Stage.Wants(s, f)
		check.That(t, (err != nil) == (c.says != "") && strings.Contains(words(err), c.says), "%s: says %s; want %q", c.name, words(err), c.says)
		var kinds []string
		for i, w := range list {
			kinds = append(kinds, w.Ref().Kind)
			check.Equal(t, w.Releases, i == 0, "%s: want %d releases", c.name, i)
		}

		check.Equal(t, strings.Join(kinds, " "), c.wants, "%s: wants", c.name)
	}
}
