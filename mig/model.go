// SPDX-License-Identifier: Apache-2.0

// Package mig partitions GPUs: it plans what fits on a GPU (fit.go), where, so that as many
// instances as possible stay (search.go), and which steps lead there and back (steps.go). Planning
// is pure; only Run (run.go) gets a device. stage.go and thing.go connect it with the engine.
package mig

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/gputable"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
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

	words  []string // the distinctive words of its names, as tokens returns them
	device string   // the PCI device of the GPU to plan for; "" if a name was given
	sub    string   // its subsystem; "" if not given
}

// Resets reports whether a change of MIG mode needs a reset of the GPU. Only Ampere needs one
// (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "Enable MIG Mode").
func (m Model) Resets() bool { return m.Arch == "ampere" }

// noProfile is an id that no profile of a GPU has.
const noProfile = -1

// inFractions reports whether only the driver knows ids and memory slices: then Memory and Places
// count fractions of the memory, and ids are below noProfile.
func (m Model) inFractions() bool { return m.Places == "fractions" }

//go:embed profiles/gpus.json
var gpus []byte

// table is profiles/gpus.json.
type table struct {
	Format  string
	About   []string
	Grids   map[string]grid
	Compute map[string][]struct{ ID, Slices, Max int }
	GPUs    []gpuRow

	// Unlisted are GPUs whose profiles are not public.
	Unlisted []struct {
		Name, Why string
		Words     []string
		Devices   []string `json:"-"`
	}
}

// grid is the profiles of GPUs that have the same slices, whatever the size of their memory.
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
	Devices       []string `json:"-"` // as Model has them; of internal/gputable, as Arch is
	Arch          string   `json:"-"`
	Gigabytes     int
	Grid          string
	Sizes         map[string]int     // gigabytes in the profile's name, by memory slices
	GiB           map[string]float64 // memory of the profile, by memory slices
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

	for i := range t.GPUs {
		row := &t.GPUs[i]
		row.Devices, row.Arch = devicesOf(row.Name)
	}

	for i := range t.Unlisted {
		row := &t.Unlisted[i]
		row.Devices, _ = devicesOf(row.Name)
	}

	return t
})

// devicesOf returns the PCI device ids and the architecture of the GPUs with a MIG table.
func devicesOf(name string) (devices []string, arch string) {
	for _, g := range gputable.All() {
		if g.MIG == name {
			devices = append(devices, g.Device())
			arch = g.NVMLArch()
		}
	}
	return devices, arch
}

// Models are all GPUs whose profiles are known without a driver, by generation.
func Models() []Model {
	t := read()
	all := make([]Model, 0, len(t.GPUs))
	for _, row := range t.GPUs {
		all = append(all, t.model(row))
	}

	return all
}

func (t table) model(row gpuRow) Model {
	grid := t.Grids[row.Grid]
	m := Model{
		Name:    row.Name,
		Title:   row.Title,
		Arch:    row.Arch,
		Memory:  grid.Memory,
		Compute: grid.Compute,
		Places:  row.Places,
		words:   row.Words,
		Devices: slices.Clone(row.Devices),
	}

	for i, r := range grid.Rows {
		if m.inFractions() {
			r.ID = noProfile - 1 - i // an id that no driver uses
		}
		size := strconv.Itoa(r.Memory)
		p := host.Profile{
			ID:      r.ID,
			Enum:    r.Enum,
			Name:    fmt.Sprintf("%dg.%dgb%s", r.Slices, row.Sizes[size], r.Attributes),
			Slices:  r.Slices,
			Memory:  uint64(row.GiB[size] * (1 << 30)),
			Max:     r.Max,
			Compute: t.compute(r.Slices),
		}
		for _, start := range r.Starts {
			p.Places = append(p.Places, host.Span{Start: start, Size: r.Memory})
		}
		m.Profiles = append(m.Profiles, p)
	}

	return m
}

// compute is what a GPU instance of so many compute slices can hold.
func (t table) compute(slices int) []host.ComputeProfile {
	var all []host.ComputeProfile
	for _, c := range t.Compute[strconv.Itoa(slices)] {
		all = append(all, host.ComputeProfile{
			ID:     c.ID,
			Enum:   c.ID,
			Slices: c.Slices,
			Max:    c.Max,
		})
	}

	return all
}

// byDevice finds the model of a PCI device id as host.GPU.Device writes it.
func (t table) byDevice(device string) (Model, bool) {
	for _, row := range t.GPUs {
		for _, d := range row.Devices {
			if strings.EqualFold(d, device) {
				return t.model(row), true
			}
		}
	}

	return Model{}, false
}

// Of is the model of a GPU that answers: the driver's list of profiles, with gaps filled from the
// table.
func Of(g host.GPU) (Model, error) {
	if g.Lost != "" {
		return Model{}, fmt.Errorf("cannot partition GPU %s: %s", addressOrIndex(g), g.Lost)
	}
	if !g.MIG {
		return Model{}, fmt.Errorf("cannot partition GPU %s: %s has no MIG", g.Address, nameOrDevice(g))
	}

	t := read()
	known, found := t.byDevice(g.Device)
	if len(g.Profiles) == 0 {
		if !found {
			return Model{}, fmt.Errorf("cannot partition GPU %s: the driver does not say what it can be partitioned into, and %s is not known", g.Address, nameOrDevice(g))
		}
		return known, nil
	}

	if found && g.Address == "" { // a GPU of Model.GPU, not of a driver
		return known, nil
	}

	m := known
	m.Places = "driver"
	m.Memory = 0
	m.Compute = 0
	m.Profiles = nil
	if !found {
		m.Name = nameOrDevice(g)
		m.Title = nameOrDevice(g)
		m.Devices = []string{g.Device}
		m.Arch = g.Arch
	}

	for _, p := range g.Profiles {
		p.Name = strings.TrimPrefix(p.Name, "MIG ")
		p.Compute = onePerSize(p.Compute)
		if len(p.Compute) == 0 { // NVML lists them only for existing instances
			p.Compute = t.compute(p.Slices)
		}

		// NVML's counts for the A30, alone with four slices, are wrong; NVIDIA's mig-parted has a
		// table for it too (pkg/mig/discovery).
		listed := known.byID(p.ID)
		if known.Memory == 4 && listed >= 0 {
			p.Max = known.Profiles[listed].Max
		}

		for _, at := range p.Places {
			m.Memory = max(m.Memory, at.Start+at.Size)
		}
		m.Compute = max(m.Compute, p.Slices)
		m.Profiles = append(m.Profiles, p)
	}

	return m, nil
}

// onePerSize keeps one compute profile of each size: NVML has two names for one slice and for
// seven, and the usual ones have the lower numbers (7_SLICE is 4 and 7_SLICE_NVL is 8; 1_SLICE is 0
// and 1_SLICE_REV1 is 7).
func onePerSize(all []host.ComputeProfile) []host.ComputeProfile {
	sorted := slices.Clone(all)
	sorting.By(sorted, func(a, b host.ComputeProfile) int {
		return cmp.Or(a.Slices-b.Slices, a.Enum-b.Enum)
	})

	return slices.CompactFunc(sorted, func(a, b host.ComputeProfile) bool {
		return a.Slices == b.Slices
	})
}

// byID returns the index of a profile; -1 if the model has no profile with this id.
func (m Model) byID(id int) int {
	return slices.IndexFunc(m.Profiles, func(p host.Profile) bool { return p.ID == id })
}

// GPU is a GPU of this model that was never changed, for planning without a driver: MIG is off and
// nothing is on it.
func (m Model) GPU() host.GPU {
	g := host.GPU{
		Name:     m.Title,
		Arch:     m.Arch,
		MIG:      true,
		Profiles: m.Profiles,
		Sub:      m.sub,
	}
	if len(m.Devices) > 0 {
		g.Device = cmp.Or(m.device, m.Devices[0])
	}

	return g
}

// addressOrIndex names a GPU: it has no known address if it has fallen off the bus.
func addressOrIndex(g host.GPU) string {
	if g.Address == "" {
		return strconv.Itoa(g.Index)
	}
	return g.Address
}

func nameOrDevice(g host.GPU) string {
	if g.Name != "" {
		return g.Name
	}
	return g.Device
}
