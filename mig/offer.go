// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// memoryUnit names the unit of Memory.
func (m Model) memoryUnit() string {
	if m.inFractions() {
		return "parts of the memory"
	}
	return "memory slices"
}

// Offer draws what a GPU can be partitioned into: each profile, how many of it fit on an empty GPU,
// and where.
func (m Model) Offer() string {
	rows := slices.Clone(m.Profiles)
	sorting.By(rows, func(a, b host.Profile) int {
		return cmp.Or(size(b)-size(a), b.Slices-a.Slices)
	})
	width := len("profile")
	for _, p := range rows {
		width = max(width, len(p.Name))
	}
	cell := m.cell()

	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d compute slices, %d %s\n", m.Name, m.Compute, m.Memory, m.memoryUnit())
	fmt.Fprintf(&b, "%-*s  id  compute  most  places\n", width, "profile")
	for _, p := range rows {
		id := strconv.Itoa(p.ID)
		if p.ID < 0 {
			id = "?"
		}
		fmt.Fprintf(&b, "%-*s  %2s  %7d  %4d  %s\n", width, p.Name, id, p.Slices, p.Max, drawPlaces(p, cell))
	}

	if m.inFractions() {
		b.WriteString("Ids and memory slices are not public: the driver says them.\n")
	}

	return b.String()
}

// cell is how many columns a drawing has for one slice.
func (m Model) cell() int {
	if m.Memory <= 4 {
		return 4
	}
	return 2
}

// drawPlaces draws the places of a profile in one row, or lists them if they overlap.
func drawPlaces(p host.Profile, cell int) string {
	var b strings.Builder
	column := 0
	for _, at := range p.Places {
		if at.Start*cell < column {
			return listPlaces(p)
		}
		b.WriteString(strings.Repeat(" ", at.Start*cell-column))
		b.WriteString("[" + strings.Repeat("=", max(0, at.Size*cell-2)) + "]")
		column = (at.Start + at.Size) * cell
	}

	return b.String()
}

func listPlaces(p host.Profile) string {
	var list []string
	for _, at := range p.Places {
		list = append(list, fmt.Sprintf("%d:%d", at.Start, at.Size))
	}

	return strings.Join(list, " ")
}

// An Offer is what pods can ask for.
type Offer struct {
	Counts   map[string]int // by the name of the resource; nil if a GPU cannot have its layout
	Strategy string         // of the device plugin, with which it offers that
	Stated   string         // the strategy that the spec alone leads to
}

// Offered returns what the device plugin will offer once all have their partitions. It refuses
// partitions of which the plugin would offer none. gpus are all GPUs of the machine: those without
// an entry keep their state.
func Offered(s spec.Spec, all []Assigned, gpus []host.GPU) (Offer, error) {
	var offers []spec.Offers
	allFit := true
	for _, a := range all {
		m, err := Of(a.GPU)
		if err != nil {
			allFit = false
			continue
		}
		fit, err := m.Fit(StateOf(a.GPU), a.Entry.Layout)
		if err != nil {
			allFit = false
			continue
		}
		offers = append(offers, offersOf(a.GPU, fit.Target))
	}

	for _, g := range gpus {
		assigned := slices.ContainsFunc(all, func(a Assigned) bool {
			return a.GPU.Address == g.Address
		})
		if g.Lost == "" && !assigned {
			offers = append(offers, offersOf(g, StateOf(g)))
		}
	}

	counts, err := s.Resources(offers)
	if !allFit {
		counts = nil
	}
	return Offer{
		Counts:   counts,
		Strategy: s.StrategyFor(offers),
		Stated:   s.Strategy(),
	}, err
}

// offerNotes says what pods can ask for once the GPUs are as the spec asks, where that is not one
// nvidia.com/gpu for each GPU. A layout that cannot be is refused elsewhere.
func offerNotes(s spec.Spec, f facts.Facts) []string {
	isPlain := !s.Has("sharing") && !s.MIG.Asked()
	unnamed := s.MIG.FollowLabel && s.MIG.Layout == "" // the node's label will name the layout
	if isPlain || unnamed || f.Driver == nil || f.VGPU != nil {
		return nil
	}
	entries, err := Asked(s.MIG, f.Files[s.MIG.File], f.Private[s.MIG.File])
	if err != nil {
		return nil
	}
	all, err := Assign(entries, f.Driver.GPUs)
	if err != nil {
		return nil
	}
	offer, err := Offered(s, all, f.Driver.GPUs)
	if err != nil || len(offer.Counts) == 0 {
		return nil
	}
	return []string{OfferText(offer)}
}

// OfferText says what pods can ask for. manifest knows the spec alone: where only the machine shows
// that some GPUs have no partitions, the spec has to say the strategy.
func OfferText(o Offer) string {
	text := "pods can ask for " + strings.Join(spec.ResourceTexts(o.Counts), ", ") +
		", if the device plugin has the configuration that " + trouble.Command("manifest device-plugin") + " prints"
	if o.Strategy != o.Stated {
		text += fmt.Sprintf("; first write strategy = %q in [sharing]: node.toml alone does not show that some GPUs here have no partitions", o.Strategy)
	}
	return text
}

// Kinds are the kinds of partitions that a machine with these entries may have, as the device
// plugin names them: 1g.10gb, 1c.3g.40gb. Where the entries leave GPUs to another tool, these are
// all that gpuadm knows.
func Kinds(entries []Entry) []string {
	var all []string
	coversAll := false
	for _, e := range entries {
		coversAll = coversAll || e.Devices.All && len(e.Match) == 0
		for _, w := range e.Layout.Wants {
			n, _ := parseName(w.Profile)
			for _, profile := range fullNames(n) {
				compute := w.Compute
				if compute == nil {
					compute = []int{n.slices}
				}
				all = append(all, Part{Profile: profile, Compute: compute}.kinds()...)
			}
		}
	}

	if !coversAll {
		for _, m := range Models() {
			for _, p := range m.Profiles {
				all = append(all, p.Name)
			}
		}
	}

	slices.Sort(all)
	return slices.Compact(all)
}

// fullNames are the profiles that a name means: one with its memory means itself, and 1g means the
// smallest of each model with one slice.
func fullNames(n name) []string {
	if n.gigabytes > 0 {
		return []string{n.whole()}
	}
	var names []string
	for _, m := range Models() {
		p, err := m.profile(n)
		if err == nil {
			names = append(names, p.Name)
		}
	}

	return names
}

// AllKinds are the kinds of partitions that the layouts of a file in mig-parted's format make: a
// node's label may name any of them. An error does not quote a private file.
func AllKinds(file string, data []byte, private bool) ([]string, error) {
	c, err := ReadLayouts(file, data, private)
	if err != nil {
		return nil, err
	}
	var kinds []string
	for _, layout := range c.Layouts {
		kinds = append(kinds, Kinds(layout.Entries)...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), nil
}

// offersOf is what the device plugin offers of a GPU in this state.
func offersOf(g host.GPU, s State) spec.Offers {
	o := spec.Offers{
		GPU:   fmt.Sprintf("GPU %d", g.Index),
		Model: g.Name,
		MIG:   s.Mode == On,
	}
	for _, p := range s.Parts {
		o.Kinds = append(o.Kinds, p.kinds()...)
	}

	return o
}

// kinds names the devices that a part offers, one for each compute instance.
func (p Part) kinds() []string {
	var names []string
	n, _ := parseName(p.Profile)
	for _, c := range p.Compute {
		kind := n
		if c < n.slices {
			kind.compute = c
		}
		names = append(names, kind.String())
	}

	return names
}
