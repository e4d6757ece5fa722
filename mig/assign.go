// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Entry is one rule: which GPUs, and their desired partitions.
type Entry struct {
	// Match are PCI ids (0x233010DE, with :0x16C110DE the subsystem too), names, UUIDs or PCI
	// addresses of GPUs; empty: all.
	Match   []string
	Devices spec.Devices // which of the matching GPUs
	Layout  Layout
	Where   string // its place in the file, for messages: `entry 2 of "all-balanced", mig.yaml:14`
}

// Entries are the [[mig.gpu]] tables of a spec.
func Entries(m spec.MIG) ([]Entry, error) {
	var all []Entry
	for i, g := range m.GPU {
		e := Entry{
			Match:   g.Match,
			Devices: g.Devices,
			Where:   fmt.Sprintf("[[mig.gpu]] %d", i+1),
		}
		var err error
		switch {
		case !g.Enabled:
		case len(g.Placements) > 0:
			e.Layout, err = layoutByPlace(g.Placements)
		default:
			e.Layout, err = layoutByCount(g.Layout)
		}

		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", e.Where, err)
		}
		all = append(all, e)
	}

	return all, nil
}

// Needs is how many GPUs there must be for the indices in the entries.
func Needs(entries []Entry) int {
	n := 0
	for _, e := range entries {
		for _, i := range e.Devices.Index {
			n = max(n, i+1)
		}
	}

	return n
}

// Assigned is a GPU and the one entry that applies to it.
type Assigned struct {
	GPU   host.GPU
	Entry Entry
}

// Assign finds the entry for each GPU, in the order of the GPUs. It leaves out GPUs that no entry
// applies to, and GPUs without MIG that no entry picks by index. Errors are a *trouble.Error: two
// entries for one GPU, an index or a name that no GPU has, MIG for a GPU that has none, entries for
// none of the GPUs.
func Assign(entries []Entry, gpus []host.GPU) ([]Assigned, error) {
	for _, e := range entries {
		if err := e.refuseTypos(gpus); err != nil {
			return nil, err
		}
	}

	var all []Assigned
	nothingToDo := false // an entry turns MIG off for a GPU that has none
	for _, g := range gpus {
		entry, err := entryOf(entries, g)
		if err != nil {
			return nil, err
		}
		if entry == nil {
			continue
		}
		if g.MIG || g.Lost != "" {
			all = append(all, Assigned{g, *entry})
			continue
		}

		if entry.Layout.Enabled && !entry.Devices.All {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot partition GPU %d: %s has no MIG", g.Index, nameOrDevice(g)),
				Try:  []string{"take " + strconv.Itoa(g.Index) + " out of the devices of " + entry.Where},
			}
		}

		nothingToDo = nothingToDo || !entry.Layout.Enabled
	}

	if len(all) == 0 && len(entries) > 0 && !nothingToDo {
		return nil, refuseNone(entries, gpus)
	}

	return all, nil
}

// entryOf finds the one entry that applies to a GPU; nil if none does. It is an error if two do.
func entryOf(entries []Entry, g host.GPU) (*Entry, error) {
	if g.Lost != "" && g.Device == "" { // its model is unknown: assume the first entry with its index
		i := slices.IndexFunc(entries, func(e Entry) bool { return e.hasIndex(g) })
		if i < 0 {
			return nil, nil
		}
		return &entries[i], nil
	}

	var entry *Entry
	for i, e := range entries {
		if !e.Matches(g) {
			continue
		}
		if entry != nil {
			return nil, &trouble.Error{
				What:    fmt.Sprintf("cannot partition GPU %d, %s: two entries are for it", g.Index, nameOrDevice(g)),
				Because: []string{entry.Where, e.Where},
				Try:     []string{"let the filters or the devices of the two tell the GPUs apart"},
			}
		}

		entry = &entries[i]
	}

	return entry, nil
}

// refuseNone explains that no GPU gets an entry.
func refuseNone(entries []Entry, gpus []host.GPU) error {
	t := &trouble.Error{
		What: "cannot partition the GPUs: no entry is for any of them",
		Try:  []string{"check the filters and the devices"},
	}
	const otherMachines = "remove [mig] from node.toml, or write it for machines whose GPUs have MIG"
	hasEntry := func(g host.GPU) bool {
		return slices.ContainsFunc(entries, func(e Entry) bool { return e.Matches(g) })
	}
	couldMatch := func(g host.GPU) bool {
		return g.MIG && slices.ContainsFunc(entries, func(e Entry) bool { return e.hasIndex(g) })
	}
	mayHaveMIG := func(g host.GPU) bool { return g.MIG || g.Lost != "" }

	likely := slices.IndexFunc(gpus, couldMatch)
	filters := slices.ContainsFunc(entries, func(e Entry) bool { return len(e.Match) > 0 })
	switch {
	case slices.ContainsFunc(gpus, hasEntry):
		t.What = "cannot partition the GPUs: those that the entries are for have no MIG"
		t.Try = []string{otherMachines}
	case filters && likely >= 0:
		t.Try = []string{fmt.Sprintf("write match = [%q], or leave match out for all GPUs", gpus[likely].Device)}
	case len(gpus) > 0 && !slices.ContainsFunc(gpus, mayHaveMIG):
		t.Try = []string{otherMachines}
	}

	for _, g := range gpus {
		t.Because = append(t.Because, describe(g))
	}
	if len(gpus) == 0 {
		t.Because = []string{"there is no GPU"}
	}

	return t
}

// describe says which GPU has an index, and whether it has MIG.
func describe(g host.GPU) string {
	if g.Lost != "" {
		return fmt.Sprintf("GPU %d does not answer: %s", g.Index, g.Lost)
	}

	text := fmt.Sprintf("GPU %d is %s (%s)", g.Index, nameOrDevice(g), g.Device)
	if !g.MIG {
		text += ", without MIG"
	}
	return text
}

// Matches reports whether the entry applies to this GPU.
func (e Entry) Matches(g host.GPU) bool {
	if !e.hasIndex(g) {
		return false
	}
	return len(e.Match) == 0 || slices.ContainsFunc(e.Match, func(s string) bool {
		return matches(s, g)
	})
}

// hasIndex reports whether the entry's devices have the GPU's index; its model does not matter.
func (e Entry) hasIndex(g host.GPU) bool {
	return e.Devices.All || slices.Contains(e.Devices.Index, g.Index)
}

// matches reports whether word, one of an entry's Match, is for this GPU.
func matches(word string, g host.GPU) bool {
	device, sub, hasSub := strings.Cut(word, ":")
	if isDeviceID(device) {
		subMatches := !hasSub || g.Sub == "" || strings.EqualFold(sub, g.Sub)
		return strings.EqualFold(device, g.Device) && subMatches
	}
	if namesOneGPU(word) {
		lower := strings.ToLower(word)
		spellings := []string{g.Address, "0000" + g.Address, strings.TrimPrefix(g.Address, "0000:")}
		return strings.EqualFold(word, g.UUID) || slices.Contains(spellings, lower)
	}

	isWholeID := len(g.Device) == len("0x000010DE")
	if isWholeID && sameDevice(g.Device, word) {
		return true
	}
	if m, err := Find(word); err == nil {
		return slices.ContainsFunc(m.Devices, func(d string) bool {
			return strings.EqualFold(d, g.Device)
		})
	}

	// A name for several models, "H100", or for a model without a table.
	return nameFits(tokens(word), tokens(g.Name))
}

// namesOneGPU reports whether s names one GPU: by its UUID, or by its PCI address as sysfs,
// nvidia-smi or lspci write it.
func namesOneGPU(s string) bool {
	s = strings.ToLower(s)
	if strings.HasPrefix(s, "gpu-") && len(s) == len("GPU-")+36 {
		return true
	}
	return strings.Contains(s, ":") && strings.Contains(s, ".") && strings.Trim(s, "0123456789abcdef:.") == ""
}

// refuseTypos refuses indices and names that no GPU has: otherwise a typing error would have no
// effect and no message. It accepts a known model that this machine does not have, since one file
// may serve many machines.
func (e Entry) refuseTypos(gpus []host.GPU) error {
	for _, i := range e.Devices.Index {
		if !slices.ContainsFunc(gpus, func(g host.GPU) bool { return g.Index == i }) {
			return &trouble.Error{
				What: fmt.Sprintf("cannot partition GPU %d: there is none of this index", i),
				Because: []string{
					"it is asked for by " + e.Where,
					"this machine has " + trouble.Count(len(gpus), "GPU") + ", counted from 0",
				},
				Try: []string{"correct the devices"},
			}
		}
	}

	for _, s := range e.Match {
		device, _, _ := strings.Cut(s, ":")
		has := func(g host.GPU) bool { return matches(s, g) }
		if isDeviceID(device) || namesOneGPU(s) || slices.ContainsFunc(gpus, has) {
			continue
		}
		_, err := Find(s)
		if t, ok := err.(*trouble.Error); ok && !errors.Is(err, errKnown) {
			return &trouble.Error{
				What:    fmt.Sprintf("cannot find GPU %q, which %s is for", s, e.Where),
				Because: t.Because,
				Try:     t.Try,
			}
		}
	}

	return nil
}
