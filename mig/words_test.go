// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/gputable"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// words is an error with all that gpuadm prints of it.
func words(err error) string {
	var t *trouble.Error
	if err == nil {
		return "no error\n"
	}
	s := err.Error() + "\n"
	if errors.As(err, &t) {
		for _, line := range t.Because {
			s += "    " + line + "\n"
		}
		for _, line := range t.Try {
			s += "    try: " + line + "\n"
		}
	}

	return s
}

func ask(list ...string) Layout {
	l := Layout{Enabled: true}
	for _, w := range list {
		profile, at, has := strings.Cut(w, "@")
		one := Want{Profile: profile, Start: Anywhere}
		if has {
			_, _ = fmt.Sscan(at, &one.Start)
		}
		if whole, inside, ok := strings.Cut(profile, "("); ok {
			one.Profile = whole
			for _, c := range strings.Split(strings.TrimSuffix(inside, ")"), ",") {
				n, _ := parseName(c[:1] + "g")
				one.Compute = append(one.Compute, n.slices)
			}
		}

		l.Wants = append(l.Wants, one)
	}

	return l
}

// TestRefusals holds what gpuadm prints, word by word.
func TestRefusals(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		gpu  string
		want Layout
	}{
		{"A100-40", ask("1g.18gb")},
		{"A100-40", ask("1g.5gb.me")},
		{"GB200", ask("1g.24gb")},
		{"GB200", ask("7g.189gb")},
		{"GB200", ask("1g.24gb+me")},
		{"H100-80", ask("5g.60gb")},
		{"RTX PRO 6000", ask("2g.48gb+me")},
		{"A100-40", ask("1g", "1g", "1g", "2g", "2g", "3g")},
		{"A100-40", ask("3g", "3g", "1g")},
		{"A100-40", ask("3g.20gb@4", "4g", "1g+me")},
		{"A100-40", ask("1g", "1g", "2g", "2g", "2g")},
		{"A100-40", ask("1g.10gb@2", "4g")},
		{"A100-40", ask("4g", "2g.10gb@4", "1g.5gb@5")},
		{"A100-40", ask("7g", "7g")},
		{"A100-40", ask("2g.10gb@6")},
		{"A100-40", ask("3g(2c,2c)")},
		{"A100-40", ask("4g(3c,1c)")},
		{"A100-40", ask("3g(2c,1c)", "3g(4c)")},
		{"RTX PRO 6000", ask("2g.48gb+gfx", "1g.24gb-me", "1g.24gb", "1g.24gb+me")},
		{"RTX PRO 4500", ask("1g", "1g", "1g")},
		{"RTX PRO 4500", ask("1g.16gb+me.all", "1g.16gb")},
		{"RTX PRO 4500", ask("2g.32gb", "1g.16gb-me")},
		{"RTX PRO 4500", ask("1g.16gb@4")},
		{"A30", ask("2g", "2g+me", "1g")},
		{"A30", ask("2g+me", "1g+me")},
		{"RTX PRO 6000", ask("1g.24gb+me.all", "1g.24gb", "1g.24gb+me")},
	} {
		m := model(t, c.gpu)
		_, err := m.Fit(empty(), c.want)
		check.That(t, err != nil, "%s fits on %s", c.want, m.Name)
		fmt.Fprintf(&out, "=== %s: %s\n%s\n", m.Name, c.want, words(err))
	}

	golden(t, "refusals.txt", out.String())
}

// TestOffers holds what a person sees, and that no line is longer than a terminal.
func TestOffers(t *testing.T) {
	var out strings.Builder
	for _, m := range Models() {
		if m.Name == "H200-141GB" || m.Memory != 8 {
			out.WriteString(m.Offer() + "\n")
		}
	}

	for _, line := range strings.Split(out.String(), "\n") {
		check.That(t, utf8.RuneCountInString(line) <= 80, "%d columns: %s", utf8.RuneCountInString(line), line)
	}
	golden(t, "offers.txt", out.String())
}

func TestFind(t *testing.T) {
	for asked, want := range map[string]string{
		"H100-80GB": "H100-80GB", "h100-80": "H100-80GB", "H100 80GB": "H100-80GB", "NVIDIA H100 80GB HBM3": "H100-80GB",
		"0x233010DE": "H100-80GB", "0x233010de": "H100-80GB", "2330": "H100-80GB", "10de:2330": "H100-80GB", "0x2330": "H100-80GB",
		"A100-40": "A100-40GB", "NVIDIA A100-SXM4-40GB": "A100-40GB", "A800-40": "A100-40GB", "a30": "A30-24GB",
		"h200": "H200-141GB", "b200": "B200-180GB", "gb200": "GB200-186GB", "b300": "B300-269GB", "GB300": "GB300-278GB",
		"H100 NVL": "H100-94GB", "H100-96": "H100-96GB", "GH200-144": "GH200-144GB", "NVIDIA GH200 480GB": "H100-96GB",
		"rtx pro 6000": "RTX-PRO-6000-96GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-96GB",
		"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000-96GB", "2BB1": "RTX-PRO-6000-96GB",
		"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX-PRO-6000-96GB", "2BB4": "RTX-PRO-6000-96GB",
		"NVIDIA H20-3e": "H20-141GB", "232C": "H20-141GB", "NVIDIA H20 96GB": "H100-96GB",
		"RTX PRO 4500": "RTX-PRO-4500-32GB", "NVIDIA RTX PRO 4500 Blackwell Server Edition": "RTX-PRO-4500-32GB", "2C3A": "RTX-PRO-4500-32GB",
		"NVIDIA B300 SXM6 AC": "B300-269GB", "NVIDIA B300 SXM6 AC 269GB": "B300-269GB",
	} {
		m, err := Find(asked)
		check.That(t, err == nil && m.Name == want, "%q: %s, %v; want %s", asked, m.Name, err, want)
	}

	var out strings.Builder
	for _, asked := range []string{"h100", "H10-80GB", "T4", "80", "", "gpu", "0x1EB810DE", "A100-80-40", "H20", "RTX PRO 5000", "2BB3", "31C3", "2909", "230E", "2BB9", "307F"} {
		_, err := Find(asked)
		fmt.Fprintf(&out, "=== %q\n%s", asked, words(err))
	}

	golden(t, "find.txt", out.String())
}

// TestTable: the embedded table holds together.
func TestTable(t *testing.T) {
	devices := map[string]string{}
	for _, m := range Models() {
		t.Run(m.Name, func(t *testing.T) {
			isWhole := m.Arch != "" && m.Memory != 0 && m.Compute != 0 && m.Places != ""
			check.That(t, isWhole, "something is missing: %+v", m)
			check.Equal(t, m.Resets(), m.Arch == "ampere", "switching MIG mode resets the GPU:")
			found := must.Get(Find(m.Name))(t)
			check.Equal(t, found.Name, m.Name, "by its own name")
			profilesHoldTogether(t, m)

			for _, d := range m.Devices {
				check.That(t, isDeviceID(d), "%q is not a device id", d)
				check.That(t, devices[d] == "", "device %s is also %s", d, devices[d])
				devices[d] = m.Name
			}
		})
	}
}

// profilesHoldTogether checks the profiles of a model: each has a name and an id of its own, a
// compute instance of all its slices, and places within the GPU.
func profilesHoldTogether(t *testing.T, m Model) {
	t.Helper()
	ids := map[int]bool{}
	names := map[string]bool{}
	for _, p := range m.Profiles {
		n := must.Get(parseName(p.Name))(t)
		check.Equal(t, n.slices, p.Slices, "%s: slices", p.Name)
		check.That(t, !ids[p.ID] && !names[p.Name], "%s, id %d, is there twice", p.Name, p.ID)
		ids[p.ID] = true
		names[p.Name] = true

		must.That(t, len(p.Compute) > 0, "%s has no compute instance", p.Name)
		check.Equal(t, p.Compute[len(p.Compute)-1].Slices, p.Slices, "%s: the largest compute instance", p.Name)
		check.That(t, len(p.Places) > 0, "%s has no place", p.Name)
		for _, at := range p.Places {
			isWithin := at.Size == size(p) && at.Start+at.Size <= m.Memory
			check.That(t, isWithin, "%s at %+v", p.Name, at)
		}
	}
}

// TestTables: each MIG table has its source and a GPU of gpus.tsv, and the other way round.
func TestTables(t *testing.T) {
	tables := map[string]bool{}
	for _, g := range read().GPUs {
		check.That(t, len(g.Sources) > 0 && g.Names != "", "%s: its source is missing: %+v", g.Name, g)
		check.That(t, len(g.Devices) > 0, "no GPU of gpus.tsv has the MIG table %s", g.Name)
		tables[g.Name] = true
	}

	for _, u := range read().Unlisted {
		check.That(t, len(u.Devices) > 0, "no GPU of gpus.tsv has the reason %s", u.Name)
		tables[u.Name] = true
	}

	for _, g := range gputable.All() {
		check.That(t, g.MIG == "" || tables[g.MIG], "%s names the MIG table %s, which is not there", g.ID, g.MIG)
	}
}

// TestOf: what the driver says comes first, but for what NVML is known to get wrong.
func TestOf(t *testing.T) {
	a30 := model(t, "A30").GPU()
	a30.Address = "0000:31:00.0"
	a30.Profiles = append([]host.Profile{}, a30.Profiles...)
	a30.Profiles[0].Max = 2
	if m, err := Of(a30); err != nil || m.Profiles[0].Max != 4 {
		t.Errorf("A30: %+v, %v", m, err)
	}
	early := early189(model(t, "GB200"))
	if fit, err := early.Fit(empty(), ask("1g.24gb", "3g.95gb")); err != nil || fit.Target.String() != "on 1g.24gb@0 3g.95gb@4" {
		t.Errorf("GB200: %s, %v", fit.Target, err)
	}
	odd := host.GPU{Name: "NVIDIA X1", Device: "0x999910DE", Arch: "rubin", MIG: true, Profiles: []host.Profile{
		{
			ID: 1, Name: "MIG 2g.50gb", Slices: 2, Max: 3, Places: []host.Span{{
				Start: 0,
				Size:  2,
			}, {Start: 2, Size: 2}, {Start: 4, Size: 2}},
			Compute: []host.ComputeProfile{{
				ID:     9,
				Enum:   7,
				Slices: 1,
				Max:    2,
			}, {ID: 1, Enum: 0, Slices: 1, Max: 2}, {ID: 2, Enum: 1, Slices: 2, Max: 1}},
		},
	}}
	m, err := Of(odd)
	check.That(t, err == nil && m.Memory == 6 && !m.Resets() && m.Profiles[0].Name == "2g.50gb" && m.Profiles[0].Compute[0].ID == 1, "unknown GPU: %+v, %v", m, err)
	// A driver's ids and places come first, also where the table has none; and no table claims to
	// be a driver's.
	pro := model(t, "RTX PRO 4500")
	if m, err := Of(pro.GPU()); err != nil || m.Places != "fractions" || m.Profiles[0].ID >= 0 {
		t.Errorf("RTX PRO 4500 without a driver: %+v, %v", m, err)
	}
	live := pro.GPU()
	live.Address = "0000:31:00.0"
	live.Profiles = []host.Profile{{
		ID:     14,
		Name:   "MIG 1g.16gb",
		Slices: 1,
		Max:    2,
		Places: []host.Span{{Start: 0, Size: 4}, {Start: 4, Size: 4}},
	}}
	m, err = Of(live)
	check.That(t, err == nil && m.Places == "driver" && m.Memory == 8 && m.Profiles[0].ID == 14, "RTX PRO 4500 with a driver: %+v, %v", m, err)
	fit, err := m.Fit(empty(), Layout{
		Enabled: true,
		Wants:   []Want{{Profile: "1g.16gb", Start: 4}},
	})
	check.That(t, err == nil && fit.Target.String() == "on 1g.16gb@4", "RTX PRO 4500 with a driver: %s, %v", fit.Target, err)
	for _, g := range []host.GPU{{Address: "a", Name: "Tesla T4"}, {Address: "a", Lost: "gone"}, {Address: "a", MIG: true, Name: "X2"}} {
		_, err := Of(g)
		check.That(t, err != nil, "%+v has a model", g)
	}
}

func TestAssign(t *testing.T) {
	gpu := func(i int, name string) host.GPU {
		g := model(t, name).GPU()
		g.Index, g.Address = i, fmt.Sprintf("0000:%02x:00.0", i)
		return g
	}

	t4 := host.GPU{Index: 2, Name: "Tesla T4", Device: "0x1EB810DE"}
	gpus := []host.GPU{gpu(0, "A100-40"), gpu(1, "H100-80"), t4, gpu(3, "A100-40")}
	gpus[0].Sub, gpus[3].Sub = "0x134F10DE", "0x134F0000"
	all := spec.Devices{All: true}
	on := Layout{Enabled: true}
	var out strings.Builder
	for _, entries := range [][]Entry{
		{{Devices: all, Layout: on}},
		{{Devices: all}},
		{{Devices: spec.Devices{Index: []int{1}}, Layout: on}, {Devices: spec.Devices{Index: []int{0, 3}}}},
		{{Match: []string{"0x20B010DE:0x134F10DE"}, Devices: all}},
		{{Match: []string{"0x20b010de"}, Devices: all}, {Match: []string{"H100"}, Devices: all}},
		{{Match: []string{"A100-40GB", "H200"}, Devices: all}},
		{{Match: []string{"0x20B010DE"}, Devices: all, Where: "entry 1"}, {Devices: spec.Devices{Index: []int{3}}, Where: "entry 2"}},
		{{Devices: spec.Devices{Index: []int{9}}, Where: "entry 1"}},
		{{Devices: spec.Devices{Index: []int{2}}, Layout: on, Where: "entry 1"}},
		{{Devices: spec.Devices{Index: []int{2}}, Where: "entry 1"}},
		{{Match: []string{"H300"}, Devices: all, Where: "entry 1"}},
		{{Match: []string{"0x233510DE"}, Devices: all, Layout: on}},
		{},
	} {
		fmt.Fprintf(&out, "=== %v\n", entries)
		as, err := Assign(entries, gpus)
		if err != nil {
			out.WriteString(words(err))
		}
		for _, a := range as {
			fmt.Fprintf(&out, "GPU %d: %s\n", a.GPU.Index, a.Entry.Layout)
		}
	}

	golden(t, "assign.txt", out.String())
}

// TestAssignLost: a GPU that does not even say what it is may be one that an entry is for, and is
// not passed over.
func TestAssignLost(t *testing.T) {
	ok := model(t, "H100-80").GPU()
	ok.Address = "0000:17:00.0"
	lost := host.GPU{
		Index:   1,
		Address: "0000:1f:00.0",
		Lost:    "it has fallen off the bus",
	}
	for _, c := range []struct {
		devices spec.Devices
		want    int
	}{{spec.Devices{All: true}, 2}, {spec.Devices{Index: []int{0}}, 1}} {
		e := Entry{
			Match:   []string{"H100-80GB"},
			Devices: c.devices,
			Layout:  Layout{Enabled: true},
		}
		as, err := Assign([]Entry{e}, []host.GPU{ok, lost})
		check.That(t, err == nil && len(as) == c.want, "%v: %d GPUs, want %d: %v", c.devices, len(as), c.want, err)
	}
}

// TestAssignNone: where no entry is for any GPU, the fix names a GPU that can have partitions, and a GPU
// that does not answer is not called one without MIG.
func TestAssignNone(t *testing.T) {
	a100 := model(t, "A100-40").GPU()
	a100.Index = 1
	t4 := host.GPU{Index: 0, Name: "Tesla T4", Device: "0x1EB810DE"}
	lost := host.GPU{Index: 0, Address: "0000:17:00.0", Lost: "it has fallen off the bus"}
	const (
		ofA100    = `write match = ["0x20B010DE"], or leave match out for all GPUs`
		isA100    = "GPU 1 is A100 40GB, A800 40GB (0x20B010DE)"
		isT4      = "GPU 0 is Tesla T4 (0x1EB810DE), without MIG"
		elsewhere = "remove [mig] from node.toml, or write it for machines whose GPUs have MIG"
	)
	index := func(i int) spec.Devices { return spec.Devices{Index: []int{i}} }
	for _, c := range []struct {
		gpus    []host.GPU
		devices spec.Devices
		because []string
		try     string
	}{
		{[]host.GPU{t4, a100}, spec.Devices{All: true}, []string{isT4, isA100}, ofA100},
		{[]host.GPU{t4, a100}, index(0), []string{isT4, isA100}, "check the filters and the devices"},
		{[]host.GPU{lost, a100}, index(1), []string{"GPU 0 does not answer: it has fallen off the bus", isA100}, ofA100},
		{[]host.GPU{t4}, spec.Devices{All: true}, []string{isT4}, elsewhere},
	} {
		e := Entry{
			Match:   []string{"H200"},
			Devices: c.devices,
			Layout:  Layout{Enabled: true},
		}
		_, err := Assign([]Entry{e}, c.gpus)
		want := "cannot partition the GPUs: no entry is for any of them\n    " +
			strings.Join(c.because, "\n    ") + "\n    try: " + c.try + "\n"
		check.Equal(t, words(err), want, "%v", c.devices)
	}
}

func TestEntries(t *testing.T) {
	got, err := Entries(spec.MIG{GPU: []spec.MIGGPU{
		{Match: []string{"A100"}, Devices: spec.Devices{All: true}, Enabled: true, Layout: map[string]int{"1g.5gb": 2, "1c.3g.20gb": 3}},
		{Devices: spec.Devices{Index: []int{1}}, Enabled: true, Placements: []spec.Placement{{
			Profile: "1c.3g.20gb",
			Start:   4,
		}, {Profile: "2c.3g.20gb", Start: 4}, {Profile: "4g.20gb"}}},
		{Devices: spec.Devices{Index: []int{2}}},
	}})
	must.OK(t, err)
	var list []string
	for _, e := range got {
		list = append(list, e.Layout.String())
	}
	check.Equal(t, strings.Join(list, "; "), "3g.20gb(1c,1c,1c), 2 × 1g.5gb; 4g.20gb at 0, 3g.20gb(2c,1c) at 4; off", "got")
	if _, err := Entries(spec.MIG{GPU: []spec.MIGGPU{{Enabled: true, Layout: map[string]int{"1g.5gb": 65}}}}); err == nil {
		t.Error("65 partitions are taken")
	}
	c, err := ParseParted("mig.yaml", []byte("version: v1\nmig-configs: {all-1g.5gb: [{devices: all, mig-enabled: false}], all-2g.10gb: [{devices: all, mig-enabled: false}]}"))
	must.OK(t, err)
	_, err = c.Layout("")
	check.Says(t, words(err), "try: layout = \"all-1g.5gb\" in [mig], or --layout all-1g.5gb, which mig fit takes\n")
	blank := Config{File: "mig.yaml", Layouts: []NamedLayout{{Name: "all of it"}, {Name: "b"}}}
	_, err = blank.Layout("")
	check.Says(t, words(err), "try: layout = \"all of it\" in [mig], or --layout 'all of it', which mig fit takes\n")
	_, err = c.Layout("all-1g.6gb")
	check.Equal(t, words(err), "cannot find layout \"all-1g.6gb\" in mig.yaml\n    it has all-1g.5gb, all-2g.10gb\n    try: did you mean \"all-1g.5gb\"?\n", "got")
}
