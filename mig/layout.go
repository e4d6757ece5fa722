// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Anywhere is the start of a Want without a given place.
const Anywhere = -1

// Want is one desired GPU instance.
type Want struct {
	Profile string // 1g.10gb+me, or 1g for whatever this GPU calls it
	Start   int    // its first memory slice, or Anywhere
	Compute []int  // slices of its compute instances, largest first; nil: one that takes them all
}

// Layout is the desired partitions of one GPU.
type Layout struct {
	Enabled bool // MIG mode; when false, there are no wants
	Wants   []Want
}

// String is the layout in one line: "off", "on and empty", "3g.40gb at 4, 2 × 1g.10gb".
func (l Layout) String() string {
	if !l.Enabled {
		return "off"
	}
	var order []string
	count := map[string]int{}
	for _, w := range l.Wants {
		s := w.String()
		if count[s] == 0 {
			order = append(order, s)
		}
		count[s]++
	}
	for i, s := range order {
		if count[s] > 1 {
			order[i] = fmt.Sprintf("%d × %s", count[s], s)
		}
	}
	if len(order) == 0 {
		return "on and empty"
	}
	return strings.Join(order, ", ")
}

// String is the want as a State writes an instance, with " at " before its start: "3g.40gb(1c,1c)
// at 4".
func (w Want) String() string {
	s := w.Profile
	if w.Compute != nil {
		s += "(" + splits(w.Compute) + ")"
	}
	if w.Start != Anywhere {
		s += " at " + strconv.Itoa(w.Start)
	}
	return s
}

func splits(compute []int) string {
	list := make([]string, len(compute))
	for i, c := range compute {
		list[i] = strconv.Itoa(c) + "c"
	}
	return strings.Join(list, ",")
}

// most is more than any GPU holds: a larger count is a typing error.
const most = 64

// counted is a layout by the number of each profile, as in mig-parted's files and node.toml.
// Entries with a part of the compute slices ("1c.3g.40gb") share as few GPU instances as possible.
func counted(counts map[string]int) (Layout, error) {
	l := Layout{Enabled: true}
	parts := map[string][]int{}
	wholes := map[string]name{}
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		n, err := parseName(key)
		if err != nil {
			return Layout{}, err
		}
		if counts[key] < 0 || counts[key] > most {
			return Layout{}, fmt.Errorf("%d of %s: no GPU has so many", counts[key], key)
		}
		for range counts[key] {
			if n.compute == 0 {
				l.Wants = append(l.Wants, Want{Profile: n.whole(), Start: Anywhere})
				continue
			}
			parts[n.whole()] = append(parts[n.whole()], n.compute)
			wholes[n.whole()] = n
		}
	}
	for _, whole := range slices.Sorted(maps.Keys(parts)) {
		for _, compute := range pack(parts[whole], wholes[whole].slices) {
			l.Wants = append(l.Wants, Want{Profile: whole, Start: Anywhere, Compute: compute})
		}
	}
	l.sort()
	return l, nil
}

// pack puts compute instances into as few GPU instances with this many slots as possible: the
// largest first, into the first instance with room. With at most seven slots that is optimal.
func pack(compute []int, slots int) [][]int {
	slices.SortFunc(compute, func(a, b int) int { return b - a })
	var bins [][]int
next:
	for _, c := range compute {
		for i := range bins {
			if total(bins[i])+c <= slots {
				bins[i] = append(bins[i], c)
				continue next
			}
		}
		bins = append(bins, []int{c})
	}
	return bins
}

func total(list []int) int {
	sum := 0
	for _, n := range list {
		sum += n
	}
	return sum
}

// placed is a layout by places, as in node.toml. Entries with a part of the compute slices and the
// same start share one GPU instance.
func placed(list []spec.Placement) (Layout, error) {
	l := Layout{Enabled: true}
	for _, p := range list {
		n, err := parseName(p.Profile)
		if err != nil {
			return Layout{}, err
		}
		if n.compute == 0 {
			l.Wants = append(l.Wants, Want{Profile: n.whole(), Start: p.Start})
			continue
		}
		same := func(w Want) bool { return w.Profile == n.whole() && w.Start == p.Start && w.Compute != nil }
		i := slices.IndexFunc(l.Wants, same)
		if i < 0 {
			l.Wants = append(l.Wants, Want{Profile: n.whole(), Start: p.Start, Compute: []int{n.compute}})
			continue
		}
		l.Wants[i].Compute = append(l.Wants[i].Compute, n.compute)
		slices.SortFunc(l.Wants[i].Compute, func(a, b int) int { return b - a })
	}
	l.sort()
	return l, nil
}

// sort orders the wants by start, then the largest first.
func (l Layout) sort() {
	slices.SortStableFunc(l.Wants, func(a, b Want) int {
		x, _ := parseName(a.Profile)
		y, _ := parseName(b.Profile)
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(y.slices, x.slices), cmp.Compare(y.gigabytes, x.gigabytes),
			cmp.Compare(x.attributes, y.attributes), cmp.Compare(len(a.Compute), len(b.Compute)), slices.Compare(b.Compute, a.Compute))
	})
}

// Config is a file in the format of NVIDIA's mig-parted, version v1.
type Config struct {
	File    string
	Layouts []NamedLayout // in order of their names
}

// NamedLayout is one of the mig-configs.
type NamedLayout struct {
	Name    string
	Entries []Entry
}

// Layout returns the entries of the named layout; without a name, of the only one. The error is a
// *trouble.Error that lists the layouts.
func (c Config) Layout(name string) ([]Entry, error) {
	var names []string
	for _, l := range c.Layouts {
		if l.Name == name || name == "" && len(c.Layouts) == 1 {
			return l.Entries, nil
		}
		names = append(names, l.Name)
	}
	t := &trouble.Error{What: fmt.Sprintf("cannot find layout %q in %s", name, c.File)}
	if near := nearest.Of(name, names); near != "" {
		t.Try = append(t.Try, "did you mean "+strconv.Quote(near)+"?")
	}
	if name == "" && len(names) > 0 {
		t.What = "cannot choose a layout of " + c.File
		t.Try = []string{fmt.Sprintf("--layout %s, or layout = %q in [mig]", names[0], names[0])}
	}
	if len(names) <= 12 {
		t.Because = []string{"it has " + strings.Join(names, ", ")}
	} else {
		t.Because = []string{fmt.Sprintf("it has %d others", len(names))}
	}
	return nil, t
}

// maxFile is the size limit of a file, in bytes: mig-parted's own has 14 KiB.
const maxFile = 1 << 20

// ParseParted reads a file in mig-parted's format, and refuses more than mig-parted does: filters
// that name no device, negative and repeated indices, impossible profiles, repeated keys. It
// ignores a count of 0, and sorts the layouts by name. The error is trouble.Faults, with every
// fault.
func ParseParted(file string, data []byte) (Config, error) {
	p := &parted{file: file}
	if len(data) > maxFile {
		p.add(1, "", "the file has %d bytes, and %d are read", len(data), maxFile)
		return Config{}, p.errs
	}
	read := p.read(data)
	if read.Version != "v1" && (len(p.errs) == 0 || read.Version != "") {
		p.add(1, "write version: v1", "version must be v1")
	}
	if len(p.errs) == 0 && len(read.Layouts) == 0 {
		p.add(1, "write a list of entries for the name of a layout", "mig-configs has no layout")
	}
	c := Config{File: file}
	for _, name := range slices.Sorted(maps.Keys(read.Layouts)) {
		l := NamedLayout{Name: name}
		for i, e := range read.Layouts[name] {
			l.Entries = append(l.Entries, p.entry(e, fmt.Sprintf("entry %d of %q", i+1, name)))
		}
		if len(l.Entries) == 0 && len(p.errs) == 0 {
			p.add(1, "write a list of entries, each with devices and mig-enabled", "layout %q has no entries", name)
		}
		c.Layouts = append(c.Layouts, l)
	}
	if len(p.errs) > 0 {
		slices.SortStableFunc(p.errs, func(a, b *trouble.Error) int { return a.At.Line - b.At.Line })
		return Config{}, p.errs
	}
	return c, nil
}

// entry validates the keys of an entry together.
func (p *parted) entry(read entryYAML, called string) Entry {
	line := max(1, read.Devices.line)
	e := Entry{Match: read.Filters, Devices: read.Devices.Devices, Where: fmt.Sprintf("%s, %s:%d", called, p.file, line)}
	if len(p.errs) > 0 {
		return e // the missing key may be the unreadable one
	}
	counts := read.Counts
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	switch {
	case read.Devices.line == 0:
		p.add(line, fixDevices, "%s has no devices", called)
	case read.Enabled == nil:
		p.add(line, "write mig-enabled: true or mig-enabled: false", "%s has no mig-enabled", called)
	case *read.Enabled && read.Counts == nil:
		p.add(line, "write mig-devices: {} for none", "%s has no mig-devices", called)
	case !*read.Enabled && len(counts) > 0:
		p.add(line, "write mig-enabled: true, or take mig-devices out", "%s has partitions without MIG", called)
	case *read.Enabled:
		l, err := counted(counts)
		if err != nil {
			p.add(line, "", "%s: %v", called, err)
		}
		e.Layout = l
	}
	return e
}

// isID says whether s is two PCI ids as mig-parted writes them: 0xDDDDVVVV.
func isID(s string) bool {
	return len(s) == 10 && (s[:2] == "0x" || s[:2] == "0X") && !strings.ContainsFunc(s[2:], func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f' || r >= 'A' && r <= 'F')
	})
}
