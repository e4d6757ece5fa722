// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// files are the configurations with layouts to plan: our own, and mig-parted's where it is on this
// machine.
func files(t *testing.T) []string {
	list := []string{filepath.Join("testdata", "every-gpu.yaml")}
	if corpus := os.Getenv("GPUADM_TEST_CORPUS"); corpus != "" {
		list = append(list, filepath.Join(corpus, "mig", "config-default.yaml"))
	} else {
		t.Log("GPUADM_TEST_CORPUS is not set: mig-parted's own configuration is not read")
	}

	return list
}

// TestEveryLayout: every layout of a whole configuration is read unchanged, and is planned and made
// on each GPU that it is meant for: those that its filters name, or that offer its profiles where
// it has no filters.
func TestEveryLayout(t *testing.T) {
	for _, file := range files(t) {
		data := must.Get(os.ReadFile(file))(t)
		c := must.Get(ParseParted(file, data))(t)
		made, used := 0, map[string]int{}
		for _, l := range c.Layouts {
			for _, m := range Models() {
				for _, device := range m.Devices {
					g := m.GPU()
					g.Device, g.Address = device, "0000:17:00.0"
					n, err := makeOn(l, m, g)
					check.That(t, err == nil, "%s: layout %q on %s (%s): %v", filepath.Base(file), l.Name, m.Name, device, err)
					made += n
					used[l.Name] += n
				}
			}

			check.That(t, used[l.Name] != 0, "%s: layout %q is for no GPU", filepath.Base(file), l.Name)
		}

		t.Logf("%s: %d layouts, made %d times", filepath.Base(file), len(c.Layouts), made)
	}
}

// boards are GPUs with a driver that has other names than the table under one device id.
var boards = map[string]string{"1g.24gb": "GB200", "2g.47gb": "GB200", "3g.95gb": "GB200", "4g.95gb": "GB200", "7g.189gb": "GB200"}

func makeOn(l NamedLayout, m Model, g host.GPU) (int, error) {
	as, err := Assign(l.Entries, []host.GPU{g})
	if err != nil || len(as) == 0 {
		if err != nil && !strings.Contains(err.Error(), "no entry is for any") {
			return 0, err
		}
		return 0, nil // for other GPUs
	}

	e := as[0].Entry
	if len(e.Match) == 0 {
		for _, w := range e.Layout.Wants {
			n, err := parseName(w.Profile)
			if err != nil {
				return 0, err
			}
			if _, err := m.profile(n); err != nil {
				if boards[w.Profile] == "" || !strings.HasPrefix(m.Name, boards[w.Profile]) {
					return 0, nil // for other GPUs
				}
				m = early189(m)
			}
		}
	}

	fit, err := m.Fit(StateOf(g), e.Layout)
	if err != nil && len(e.Match) == 0 && strings.Contains(err.Error(), "holds at most") {
		return 0, nil // all-1g.24gb asks for what another GPU of the same profile name holds
	}
	if err != nil {
		return 0, err
	}
	x := newSim(m, StateOf(g))
	steps, err := m.Steps(StateOf(g), fit.Target)
	if err != nil {
		return 0, err
	}
	err = (Runner{Device: x}).Run(context.Background(), Plan{GPU: x.gpu.Address, Steps: steps})
	if err != nil {
		return 0, err
	}
	if got := StateOf(x.gpu).String(); got != fit.Target.String() {
		return 0, fmt.Errorf("state %s, want %s", got, fit.Target)
	}
	return 1, nil
}

// early189 is a GB200 of the first boards (https://github.com/NVIDIA/mig-parted/issues/227).
func early189(m Model) Model {
	g := m.GPU()
	g.Address = "0000:01:00.0"
	g.Profiles = append([]host.Profile{}, g.Profiles...)
	for i := range g.Profiles {
		g.Profiles[i].Name = strings.NewReplacer("23gb", "24gb", "93gb", "95gb", "186gb", "189gb").Replace("MIG " + g.Profiles[i].Name)
	}
	m, err := Of(g)
	if err != nil {
		panic(err)
	}
	return m
}

// TestPartedRefuses: what mig-parted takes and then does nothing with, or destroys everything for,
// is refused here.
func TestPartedRefuses(t *testing.T) {
	file := must.Get(os.ReadFile(filepath.Join("testdata", "refused.txt")))(t)
	cases := strings.Split(string(file), "\n=== ")[1:]
	var got strings.Builder
	got.WriteString(strings.Split(string(file), "\n=== ")[0])
	for _, c := range cases {
		name, rest, _ := strings.Cut(c, "\n")
		input, _, _ := strings.Cut(rest, "--- says\n")
		says := "it is read\n"
		if _, err := ParseParted("mig.yaml", []byte(input)); err != nil {
			says = ""
			for _, f := range err.(trouble.Faults) {
				says += f.Error() + "\n"
				for _, fix := range f.Try {
					says += "    = " + fix + "\n"
				}
			}
		}

		got.WriteString("\n=== " + name + "\n" + input + "--- says\n" + says)
	}

	golden(t, "refused.txt", strings.TrimSuffix(got.String(), "\n")+"\n")
}

// golden compares with a file in testdata, or writes it where GPUADM_UPDATE is set.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("GPUADM_UPDATE") != "" {
		must.OK(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want := must.Get(os.ReadFile(path))(t)
	check.That(t, string(want) == got, "%s differs; got\n%s", path, got)
}

func parsed(t *testing.T, text string) []Entry {
	t.Helper()
	c := must.Get(ParseParted("mig.yaml", []byte(text)))(t)
	return c.Layouts[0].Entries
}

func TestPartedReads(t *testing.T) {
	const head = "version: v1\nmig-configs:\n  a:\n  - devices: "
	for _, c := range []struct{ text, want string }{
		{"all\n    mig-enabled: false", "off"},
		{"[0]\n    mig-enabled: off\n    mig-devices: {}", "off"},
		{"all\n    mig-enabled: true\n    mig-devices: {}", "on and empty"},
		{"all\n    mig-enabled: Yes\n    mig-devices: {}", "on and empty"},
		{"all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 0, 2g.10gb: 0}", "on and empty"},
		{"all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 0, 2g.10gb: 3}", "3 × 2g.10gb"},
		{"all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 2, 2g.10gb: 1, 3g.20gb: 1}", "3g.20gb, 2g.10gb, 2 × 1g.5gb"},
		{"all\n    mig-enabled: true\n    mig-devices: {1c.3g.20gb: 2}", "3g.20gb(1c,1c)"},
		{"all\n    mig-enabled: true\n    mig-devices: {1c.3g.20gb: 4}", "3g.20gb(1c), 3g.20gb(1c,1c,1c)"},
		{"all\n    mig-enabled: true\n    mig-devices: {1c.3g.20gb: 1, 2c.3g.20gb: 1, 3c.3g.20gb: 1}", "3g.20gb, 3g.20gb(2c,1c)"},
		{"all\n    mig-enabled: true\n    mig-devices: {2c.2g.10gb: 1}", "2g.10gb"},
		{
			"all\n    mig-enabled: true\n    mig-devices: {\"1g.5gb+me\": 1, 1g.24gb-me: 1, 1g.24gb+me.all: 1}",
			"1g.24gb+me.all, 1g.24gb-me, 1g.5gb+me",
		},
	} {
		check.Equal(t, parsed(t, head+c.text)[0].Layout.String(), c.want, "%s: got", c.text)
	}

	json := parsed(t, `{"version": "v1", "mig-configs": {"a": [{"devices": [1, 0], "device-filter": "0x20B010DE:0x134F10DE", "mig-enabled": true, "mig-devices": {"1g.5gb": 7}}]}}`)
	e := json[0]
	check.That(t, e.Layout.String() == "7 × 1g.5gb" && fmt.Sprint(e.Match, e.Devices.Index) == "[0x20B010DE:0x134F10DE] [0 1]", "JSON: %+v", e)
	_, err := ParseParted("x", make([]byte, maxFile+1))
	check.That(t, err != nil, "a file of more than a MiB is read")
}

// TestExport: the state of GPUs is written in both formats, and reading it plans nothing to do.
func TestExport(t *testing.T) {
	gpuStates := []struct{ gpu, state string }{
		{"A100-40", "on 1g.5gb+me@0 2g.10gb@2 3g.20gb@4"},
		{"A100-40", "off"},
		{"A100-40", "on 1g.5gb+me@0 2g.10gb@2 3g.20gb@4"},
		{"H100-80", "on"},
		{"H100-80", "on 4g.40gb@0 3g.40gb@4(1c,1c)"},
		{"H100-80", "on 4g.40gb@0 3g.40gb@4(2c,1c)"},
		{"H200", "on 3g.71gb@0() 1g.18gb@4"},
		{"RTX PRO 6000", "on 1g.24gb-me@0 1g.24gb-me@3 2g.48gb+me.all@6"},
	}
	var gpus []host.GPU
	for i, s := range gpuStates {
		g := newSim(model(t, s.gpu), state(t, s.state)).gpu
		g.Index, g.Address = i, fmt.Sprintf("0000:%02x:00.0", i+1)
		gpus = append(gpus, g)
	}

	gpus = append(gpus, host.GPU{
		Index:  8,
		Name:   "Tesla T4",
		Device: "0x1EB810DE",
	})
	parted, toml := Parted("current", gpus), Tables(gpus)
	golden(t, "export.yaml", parted)
	golden(t, "export.toml", toml)
	s := specs.Of(t, toml)
	tables := must.Get(Entries(s.MIG))(t)
	for name, entries := range map[string][]Entry{"YAML": parsed(t, parted), "TOML": tables} {
		as := must.Get(Assign(entries, gpus))(t)
		check.That(t, len(as) == len(gpuStates), "%s: %d GPUs, want %d", name, len(as), len(gpuStates))
		for i, a := range as {
			m := must.Get(Of(a.GPU))(t)
			fit := must.Get(m.Fit(StateOf(a.GPU), a.Entry.Layout))(t)
			want := strings.Replace(gpuStates[i].state, "()", "", 1)
			check.That(t, fit.Target.String() == want && fit.Destroys+fit.Creates <= 0, "%s: GPU %d: %+v, want %s", name, i, fit, want)
		}
	}

	check.Equal(t, Parted("current", nil), "version: v1\nmig-configs:\n  current: []\n", "none:")
}

// TestExportLost: an export says which GPU did not answer: it is not complete.
func TestExportLost(t *testing.T) {
	gpu := newSim(model(t, "H100-80"), state(t, "on 7g.80gb@0")).gpu
	gpu.Index = 1
	lost := host.GPU{
		Address: "0000:2a:00.0",
		Device:  gpu.Device,
		Lost:    "it has fallen off the bus",
	}
	const says = "# GPU 0 does not answer: it has fallen off the bus\n"
	for _, gpus := range [][]host.GPU{{lost, gpu}, {lost}} {
		text := Tables(gpus)
		check.Says(t, text, says)
		tables := must.Get(Entries(specs.Of(t, text).MIG))(t)
		check.Equal(t, len(tables), len(gpus)-1, "tables of\n%s", text)

		text = Parted("now", gpus)
		check.Says(t, text, "    "+says)
		var file partedFile
		must.OK(t, yaml.Unmarshal([]byte(text), &file))
		check.Equal(t, len(file.Configs["now"]), len(gpus)-1, "entries of\n%s", text)
	}

	_, err := Generate([]host.GPU{lost, gpu}) // of one kind
	must.OK(t, err)
	lost.Device = ""
	_, err = Generate([]host.GPU{lost, gpu})
	const cannot = "cannot generate layouts: GPU 0 does not answer: it has fallen off the bus"
	check.That(t, err != nil && err.Error() == cannot, "%v; want %s", err, cannot)
}

// TestAskedListsFaults: each fault in a file is a reason of its own, of one line.
func TestAskedListsFaults(t *testing.T) {
	_, err := Asked(spec.MIG{
		File:   "mig.yaml",
		Layout: "x",
	}, []byte("version: v2\nmig-configs:\n  x: [{devices: all, mig-enabled: maybe}]\n"), false)
	told := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &told) && len(told.Because) >= 2 && !strings.Contains(told.What+strings.Join(told.Because, "")+strings.Join(told.Try, ""), "\n"), "%+v", err)
}
