// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/sorting"
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
		flag := "--layout " + host.ShellWord(names[0])
		t.Try = []string{fmt.Sprintf("layout = %q in [mig], or %s, which mig fit takes", names[0], flag)}
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
	p := &partedParser{file: file}
	if len(data) > maxFile {
		p.fault(1, "", "the file has %d bytes, and %d are read", len(data), maxFile)
		return Config{}, p.faults
	}

	read := p.read(data)
	if read.Version != "v1" && (len(p.faults) == 0 || read.Version != "") {
		p.fault(1, "write version: v1", "version must be v1")
	}
	if len(p.faults) == 0 && len(read.Layouts) == 0 {
		p.fault(1, "write a list of entries for the name of a layout", "mig-configs has no layout")
	}

	c := Config{File: file}
	for _, name := range slices.Sorted(maps.Keys(read.Layouts)) {
		l := NamedLayout{Name: name}
		for i, e := range read.Layouts[name] {
			l.Entries = append(l.Entries, p.entry(e, fmt.Sprintf("entry %d of %q", i+1, name)))
		}
		if len(l.Entries) == 0 && len(p.faults) == 0 {
			p.fault(1, "write a list of entries, each with devices and mig-enabled", "layout %q has no entries", name)
		}
		c.Layouts = append(c.Layouts, l)
	}

	if len(p.faults) > 0 {
		sorting.By(p.faults, func(a, b *trouble.Error) int {
			return a.At.Line - b.At.Line
		})
		return Config{}, p.faults
	}

	return c, nil
}

// entry validates the keys of an entry together. title names the entry in messages.
func (p *partedParser) entry(read entryYAML, title string) Entry {
	line := max(1, read.Devices.line)
	e := Entry{
		Match:   read.Filters,
		Devices: read.Devices.Devices,
		Where:   fmt.Sprintf("%s, %s:%d", title, p.file, line),
	}
	if len(p.faults) > 0 {
		return e // the missing key may be the unreadable one
	}

	counts := read.Counts
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	switch {
	case read.Devices.line == 0:
		p.fault(line, fixDevices, "%s has no devices", title)
	case read.Enabled == nil:
		p.fault(line, "write mig-enabled: true or mig-enabled: false", "%s has no mig-enabled", title)
	case *read.Enabled && read.Counts == nil:
		p.fault(line, "write mig-devices: {} for none", "%s has no mig-devices", title)
	case !*read.Enabled && len(counts) > 0:
		p.fault(line, "write mig-enabled: true, or take mig-devices out", "%s has partitions without MIG", title)

	case *read.Enabled:
		l, err := layoutByCount(counts)
		if err != nil {
			p.fault(line, "", "%s: %v", title, err)
		}
		e.Layout = l
	}

	return e
}
