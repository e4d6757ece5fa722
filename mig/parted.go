// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

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

// Layout is the entries of a layout; without a name, of the only one. The error is a *trouble.Error that says which there are.
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

// maxFile is the size of the largest file that is read, in bytes: mig-parted's own has 14 KiB.
const maxFile = 1 << 20

// ParseParted reads a file in mig-parted's format, and refuses more than mig-parted does: filters that name no device,
// negative and repeated indices, profiles that cannot be, repeated keys. A count of 0 is none. The layouts are in order of their names.
// The error is trouble.Faults, with every fault.
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

// entry judges what the keys of an entry say together.
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
