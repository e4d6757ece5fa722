// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"go.yaml.in/yaml/v3"
)

// Parted is the GPUs' state as a file for mig-parted, with one layout of this name. The same GPUs
// give the same bytes. The format has no places: comments have them, and what else mig-parted
// ignores.
func Parted(name string, gpus []host.GPU) string {
	var b strings.Builder
	key, _ := yaml.Marshal(name) // a string: it cannot fail
	fmt.Fprintf(&b, "version: v1\nmig-configs:\n  %s:\n", bytes.TrimSpace(key))
	sameCounts := func(g host.GPU) string {
		list, _ := counts(StateOf(g))
		return string(StateOf(g).Mode) + strings.Join(list, "\n")
	}

	lost := lostGPUs(gpus, "    ")
	groups := groupBy(gpus, sameCounts)
	if len(groups) == 0 {
		return strings.TrimSuffix(b.String(), ":\n") + ": []\n" + lost
	}

	for _, group := range groups {
		for _, g := range group {
			s := StateOf(g)
			fmt.Fprintf(&b, "    # GPU %d, %s: %s\n", g.Index, nameOrDevice(g), s)
			for _, p := range s.Parts {
				if len(p.Compute) == 0 {
					fmt.Fprintf(&b, "    # %s is half-made: it has no compute instance\n", p.Profile)
				}
			}
		}

		s := StateOf(group[0])
		fmt.Fprintf(&b, "    - devices: [%s]\n      mig-enabled: %t\n", indices(group), s.Mode == On)
		list, count := counts(s)
		if s.Mode == On && len(list) == 0 {
			b.WriteString("      mig-devices: {}\n")
		} else if s.Mode == On {
			b.WriteString("      mig-devices:\n")
		}

		for _, profile := range list {
			fmt.Fprintf(&b, "        %q: %d\n", profile, count[profile])
		}
	}

	return b.String() + lost
}

// Tables is the GPUs' state as [[mig.gpu]] tables for node.toml, with places. The same GPUs give
// the same bytes. If compute instances of one size share an instance, node.toml can count them but
// not place them.
func Tables(gpus []host.GPU) string {
	var b strings.Builder
	sameState := func(g host.GPU) string {
		s := StateOf(g)
		s.Next = s.Mode
		return s.String()
	}

	for i, group := range groupBy(gpus, sameState) {
		if i > 0 {
			b.WriteString("\n")
		}
		s := StateOf(group[0])
		fmt.Fprintf(&b, "[[mig.gpu]] # %s\n", nameOrDevice(group[0]))
		fmt.Fprintf(&b, "devices = [%s]\nenabled = %t\n", indices(group), s.Mode == On)

		list, count := counts(s)
		lines, placed := placements(s)
		switch {
		case len(list) == 0:
		case placed:
			b.WriteString("placements = [\n" + lines + "]\n")
		default:
			var entries []string
			for _, profile := range list {
				entries = append(entries, fmt.Sprintf("%q = %d", profile, count[profile]))
			}
			fmt.Fprintf(&b, "layout = { %s } # %s\n", strings.Join(entries, ", "), s)
		}
	}

	return b.String() + lostGPUs(gpus, "")
}

// lostGPUs are comments that name the GPUs that do not answer: an export lacks their partitions.
func lostGPUs(gpus []host.GPU, indent string) string {
	var b strings.Builder
	for _, g := range gpus {
		if g.Lost != "" {
			fmt.Fprintf(&b, "%s# %s\n", indent, describe(g))
		}
	}

	return b.String()
}

// placements are the lines of a placements table; false if it would list a partition twice.
func placements(s State) (string, bool) {
	var b strings.Builder
	for _, p := range s.Parts {
		names := partitions(p)
		slices.Sort(names)
		if len(slices.Compact(slices.Clone(names))) != len(names) {
			return "", false
		}
		for _, n := range names {
			fmt.Fprintf(&b, "  { profile = %q, start = %d },\n", n, p.Start)
		}
	}

	return b.String(), true
}

// partitions are the names of an instance's compute instances, as containers see them. An instance
// without compute instances counts as one with all its slices.
func partitions(p Part) []string {
	if len(p.Compute) == 0 || p.slices() == 0 {
		return []string{p.Profile}
	}

	var names []string
	for _, c := range p.Compute {
		if c == p.slices() {
			names = append(names, p.Profile)
		} else {
			names = append(names, fmt.Sprintf("%dc.%s", c, p.Profile))
		}
	}

	return names
}

// counts returns the partitions of a state, largest first, and the number of each.
func counts(s State) ([]string, map[string]int) {
	var list []string
	count := map[string]int{}
	for _, p := range s.Parts {
		for _, n := range partitions(p) {
			if count[n] == 0 {
				list = append(list, n)
			}
			count[n]++
		}
	}

	sorting.By(list, func(a, b string) int {
		x, _ := parseName(a)
		y, _ := parseName(b)
		return cmp.Or(y.slices-x.slices, strings.Compare(a, b))
	})

	return list, count
}

// groupBy groups the GPUs that have MIG by their model and a key, in the order of their indices.
func groupBy(gpus []host.GPU, key func(host.GPU) string) [][]host.GPU {
	sorted := slices.Clone(gpus)
	sorting.By(sorted, func(a, b host.GPU) int { return a.Index - b.Index })

	var groups [][]host.GPU
	for _, g := range sorted {
		if !g.MIG || g.Lost != "" {
			continue
		}
		i := slices.IndexFunc(groups, func(group []host.GPU) bool {
			return group[0].Device == g.Device && key(group[0]) == key(g)
		})
		if i < 0 {
			i = len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], g)
	}

	return groups
}

// indices is the GPUs' indices as a list of YAML or TOML has them, without its brackets.
func indices(group []host.GPU) string {
	var list []string
	for _, g := range group {
		list = append(list, fmt.Sprint(g.Index))
	}

	return strings.Join(list, ", ")
}

// PartedFile is a file in mig-parted's format, to be written.
type PartedFile struct {
	Version string                   `json:"version" yaml:"version"`
	Configs map[string][]partedEntry `json:"mig-configs" yaml:"mig-configs"`
}

type partedEntry struct {
	Filter  []string       `json:"device-filter,omitempty" yaml:"device-filter,omitempty"`
	Devices string         `json:"devices" yaml:"devices"`
	Enabled bool           `json:"mig-enabled" yaml:"mig-enabled"`
	Parts   map[string]int `json:"mig-devices" yaml:"mig-devices"`
}

// Generate makes a layout for each profile of these GPUs, with the names of mig-parted's
// generate-config (a label's value cannot have a plus sign): all-1g.10gb.me has as many as fit on
// each GPU that offers it. The layouts have filters only if the GPUs are of several kinds. A GPU that
// does not answer is an error, unless another one of its kind does.
// Source: NVIDIA/mig-parted, pkg/mig/builder/builder.go; its all-balanced is left out.
func Generate(gpus []host.GPU) (PartedFile, error) {
	none := map[string]int{}
	file := PartedFile{
		Version: "v1",
		Configs: map[string][]partedEntry{
			"all-disabled": {{Devices: "all", Parts: none}},
			"all-enabled":  {{Devices: "all", Enabled: true, Parts: none}},
		},
	}

	var kinds []string
	for _, g := range gpus {
		if g.MIG && !slices.Contains(kinds, g.Device) {
			kinds = append(kinds, g.Device)
		}
	}

	for _, g := range gpus {
		if g.Lost != "" && !slices.Contains(kinds, g.Device) {
			return file, &trouble.Error{
				What: "cannot generate layouts: " + describe(g),
				Try:  []string{"--gpu MODEL generates those of GPUs that are named, and asks none"},
			}
		}
	}

	if len(kinds) == 0 {
		return file, &trouble.Error{
			What: "cannot generate layouts: none of the GPUs has MIG",
			Try:  []string{"--gpu MODEL generates those of a GPU that this machine does not have"},
		}
	}

	label := strings.NewReplacer("+", ".", ",", ".")
	for _, g := range gpus {
		if !g.MIG {
			continue
		}
		m, err := Of(g)
		if err != nil {
			return file, err
		}
		filter := ""
		if len(kinds) > 1 {
			filter = g.Device
		}
		for _, p := range m.Profiles {
			file.add("all-"+label.Replace(p.Name), p, filter)
		}
	}

	return file, nil
}

// add adds to a layout an entry with as many of a profile as fit. If the layout has such an entry,
// add gives it one more filter; "" is none.
func (f PartedFile) add(name string, p host.Profile, filter string) {
	entries := f.Configs[name]
	i := slices.IndexFunc(entries, func(e partedEntry) bool {
		return e.Parts[p.Name] == p.Max
	})
	if i < 0 {
		i = len(entries)
		e := partedEntry{
			Devices: "all",
			Enabled: true,
			Parts:   map[string]int{p.Name: p.Max},
		}
		entries = append(entries, e)
	}

	if filter != "" && !slices.Contains(entries[i].Filter, filter) {
		entries[i].Filter = append(entries[i].Filter, filter)
	}
	f.Configs[name] = entries
}

// YAML is the file's text. The same GPUs give the same bytes.
func (f PartedFile) YAML() []byte {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	_ = e.Encode(f) // maps, lists, strings and numbers: it cannot fail
	return b.Bytes()
}
