// SPDX-License-Identifier: Apache-2.0

// Package mig partitions GPUs: it plans what fits on a GPU (fit.go), where, so that as many
// instances as possible stay, and which steps lead there and back (steps.go). Planning is pure;
// only Run (run.go) gets a device. stage.go and thing.go connect it with the engine.
package mig

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Model is what one GPU, or every GPU of a kind, can be partitioned into.
type Model struct {
	Name     string   // H100-80GB
	Title    string   // H100 80GB, H800 80GB
	Devices  []string // PCI device ids, as host.GPU.Device writes them: 0x233010DE
	Arch     string   // ampere, hopper, blackwell
	Memory   int      // memory slices
	Compute  int      // compute slices
	Places   string   // the source of the places: dump, inferred, fractions; driver for a live GPU
	Profiles []host.Profile

	words []string
	sub   string // the PCI subsystem of the GPU to plan for; "" if not given
}

// Resets says whether a change of MIG mode needs a reset of the GPU. Only Ampere needs one
// (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "Enable MIG Mode").
func (m Model) Resets() bool { return m.Arch == "ampere" }

// noProfile is an id that no profile of a GPU has.
const noProfile = -1

// parts reports whether only the driver knows ids and memory slices: then Memory and Places count
// fractions of the memory, and ids are below noProfile.
func (m Model) parts() bool { return m.Places == "fractions" }

//go:embed profiles/gpus.json
var gpus []byte

type table struct {
	Format  string
	About   []string
	Grids   map[string]grid
	Compute map[string][]struct{ ID, Slices, Max int }
	GPUs    []gpuRow

	Unlisted []struct {
		Name, Why      string
		Words, Devices []string
	}
}

type grid struct {
	Memory, Compute int
	Rows            []struct {
		ID, Enum, Slices, Memory, Max int
		Starts                        []int
		Attributes                    string
	}
}

type gpuRow struct {
	Name, Title   string
	Words         []string
	Devices       []string
	Arch          string
	Gigabytes     int
	Grid          string
	Sizes         map[string]int
	GiB           map[string]float64
	Driver        string
	Names, Places string
	Sources       []string
	Note          string
}

// read decodes the table once, since callers look models up for each GPU.
var read = sync.OnceValue(func() table {
	var t table
	d := json.NewDecoder(bytes.NewReader(gpus))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		panic("internal error: mig/profiles/gpus.json: " + err.Error()) // embedded, and every test reads it
	}
	return t
})

// Models are all GPUs whose profiles are known without a driver, by generation.
func Models() []Model {
	t := read()
	all := make([]Model, 0, len(t.GPUs))
	for _, g := range t.GPUs {
		all = append(all, t.model(g))
	}
	return all
}

func (t table) model(g gpuRow) Model {
	m := Model{
		Name: g.Name, Title: g.Title, Arch: g.Arch, Places: g.Places, words: g.Words,
		Memory: t.Grids[g.Grid].Memory, Compute: t.Grids[g.Grid].Compute,
	}
	for _, d := range g.Devices {
		m.Devices = append(m.Devices, "0x"+d+"10DE")
	}
	for i, r := range t.Grids[g.Grid].Rows {
		if m.parts() {
			r.ID = noProfile - 1 - i // an id that no driver uses
		}
		key := strconv.Itoa(r.Memory)
		p := host.Profile{
			ID: r.ID, Enum: r.Enum, Slices: r.Slices, Max: r.Max, Compute: t.compute(r.Slices),
			Name:   fmt.Sprintf("%dg.%dgb%s", r.Slices, g.Sizes[key], r.Attributes),
			Memory: uint64(g.GiB[key] * (1 << 30)),
		}
		for _, s := range r.Starts {
			p.Places = append(p.Places, host.Span{Start: s, Size: r.Memory})
		}
		m.Profiles = append(m.Profiles, p)
	}
	return m
}

// compute is what a GPU instance of so many compute slices can hold.
func (t table) compute(slices int) []host.ComputeProfile {
	var all []host.ComputeProfile
	for _, c := range t.Compute[strconv.Itoa(slices)] {
		all = append(all, host.ComputeProfile{ID: c.ID, Enum: c.ID, Slices: c.Slices, Max: c.Max})
	}
	return all
}

// Of is the model of a GPU that answers: the driver's list of profiles, with gaps filled from the
// table.
func Of(g host.GPU) (Model, error) {
	if g.Lost != "" {
		return Model{}, fmt.Errorf("cannot partition GPU %s: %s", called(g), g.Lost)
	}
	if !g.MIG {
		return Model{}, fmt.Errorf("cannot partition GPU %s: %s has no MIG", g.Address, named(g))
	}
	t := read()
	known, found := t.byDevice(g.Device)
	if len(g.Profiles) == 0 {
		if !found {
			return Model{}, fmt.Errorf("cannot partition GPU %s: the driver does not say what it can be partitioned into, and %s is not known", g.Address, named(g))
		}
		return known, nil
	}
	m := known
	if found && g.Address == "" { // a GPU of Model.GPU, not of a driver
		return known, nil
	}
	m.Places, m.Memory, m.Compute = "driver", 0, 0
	if !found {
		m.Name, m.Title, m.Devices, m.Arch = named(g), named(g), []string{g.Device}, g.Arch
	}
	m.Profiles = nil
	for _, p := range g.Profiles {
		p.Name = strings.TrimPrefix(p.Name, "MIG ")
		p.Compute = plain(p.Compute)
		if len(p.Compute) == 0 { // NVML lists them only for existing instances
			p.Compute = t.compute(p.Slices)
		}
		// NVML's counts for the A30 are wrong; NVIDIA's mig-parted has a table for it too
		// (pkg/mig/discovery).
		if i := known.byID(p.ID); found && i >= 0 && known.Memory == 4 {
			p.Max = known.Profiles[i].Max
		}
		for _, at := range p.Places {
			m.Memory = max(m.Memory, at.Start+at.Size)
		}
		m.Compute = max(m.Compute, p.Slices)
		m.Profiles = append(m.Profiles, p)
	}
	return m, nil
}

// plain keeps one compute profile of each size: NVML has two names for one slice and for seven, and
// the usual ones have the lower numbers (7_SLICE is 4 and 7_SLICE_NVL is 8; 1_SLICE is 0 and
// 1_SLICE_REV1 is 7).
func plain(all []host.ComputeProfile) []host.ComputeProfile {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b host.ComputeProfile) int {
		return cmp.Or(a.Slices-b.Slices, a.Enum-b.Enum)
	})
	return slices.CompactFunc(sorted, func(a, b host.ComputeProfile) bool { return a.Slices == b.Slices })
}

// called is a GPU's address, or its index if it has fallen off the bus and has no known address.
func called(g host.GPU) string {
	if g.Address == "" {
		return strconv.Itoa(g.Index)
	}
	return g.Address
}

func named(g host.GPU) string {
	if g.Name != "" {
		return g.Name
	}
	return g.Device
}

func (t table) byDevice(device string) (Model, bool) {
	for _, g := range t.GPUs {
		for _, d := range g.Devices {
			if strings.EqualFold("0x"+d+"10DE", device) {
				return t.model(g), true
			}
		}
	}
	return Model{}, false
}

func (m Model) byID(id int) int {
	return slices.IndexFunc(m.Profiles, func(p host.Profile) bool { return p.ID == id })
}

// GPU is a GPU of this model that was never changed, for planning without a driver: MIG is off and
// nothing is on it.
func (m Model) GPU() host.GPU {
	g := host.GPU{Name: m.Title, Arch: m.Arch, MIG: true, Profiles: m.Profiles, Sub: m.sub}
	if len(m.Devices) > 0 {
		g.Device = m.Devices[0]
	}
	return g
}

// errKnown is the cause of an error of Find about a known GPU: the name fits several, or the GPU
// has no table.
var errKnown = errors.New("the GPU is known")

// Find returns the model that a user names: by PCI device id (0x233010DE, 2330, 10de:2330, with
// :0x16C110DE the subsystem too) or by name (H100-80GB, h200, "NVIDIA A100-SXM4-40GB"). The error
// is a *trouble.Error that lists similar names.
func Find(name string) (Model, error) {
	if device, sub, _ := strings.Cut(name, ":"); isID(device) && isID(sub) {
		m, err := Find(device)
		m.sub = sub
		return m, err
	}
	all := Models()
	var fit []Model
	tokens := tokens(name)
	for _, m := range all {
		if slices.ContainsFunc(m.Devices, func(d string) bool { return sameDevice(d, name) }) {
			return m, nil
		}
		if letters(tokens) && !slices.ContainsFunc(tokens, func(t string) bool { return !slices.Contains(m.words, t) }) {
			fit = append(fit, m)
		}
	}
	if len(fit) == 1 {
		return fit[0], nil
	}
	names := func(of []Model) (list []string) {
		for _, m := range of {
			list = append(list, m.Name)
		}
		return list
	}
	if len(fit) > 1 {
		return Model{}, &trouble.Error{
			What: fmt.Sprintf("cannot tell which GPU %q is: there are %s", name, strings.Join(names(fit), ", ")),
			Try:  []string{"write the memory too: " + strconv.Quote(fit[0].Name)},
			Err:  errKnown,
		}
	}
	for _, u := range read().Unlisted {
		named := letters(tokens) && !slices.ContainsFunc(tokens, func(t string) bool { return !slices.Contains(u.Words, t) })
		if named || slices.ContainsFunc(u.Devices, func(d string) bool { return sameDevice("0x"+d+"10DE", name) }) {
			return Model{}, &trouble.Error{
				What: fmt.Sprintf("cannot plan for %s without its driver: %s", u.Name, u.Why),
				Try:  []string{"run the same command without --gpu on the machine, where the driver says what it can be partitioned into"},
				Err:  errKnown,
			}
		}
	}
	try := "write one of " + strings.Join(names(all), ", ") + ", or a PCI device id"
	if near := nearest.Of(name, names(all)); near != "" {
		try = "did you mean " + strconv.Quote(near) + "?"
	}
	return Model{}, &trouble.Error{What: fmt.Sprintf("cannot find GPU %q: no GPU of this name with MIG is known", name), Try: []string{try}}
}

func letters(tokens []string) bool {
	return slices.ContainsFunc(tokens, func(t string) bool { return strings.ContainsFunc(t, func(r rune) bool { return r >= 'a' && r <= 'z' }) })
}

// sameDevice compares 0x233010DE with any spelling of it.
func sameDevice(device, s string) bool {
	s = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "0x")
	short := strings.ToLower(device[2:6])
	return s == short || s == short+"10de" || s == "10de:"+short || s == "10de:0x"+short
}

// tokens are the distinctive words of a GPU's name: "NVIDIA H100-80GB HBM3" has h100, 80, hbm3.
func tokens(name string) []string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') })
	var kept []string
	for _, w := range words {
		if number := strings.TrimSuffix(w, "gb"); number != w && !strings.ContainsFunc(number, func(r rune) bool { return r < '0' || r > '9' }) {
			w = number
		}
		if w != "" && w != "nvidia" && w != "gpu" {
			kept = append(kept, w)
		}
	}
	return kept
}
