// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Config is a file in the format of NVIDIA's mig-parted, version v1.
type Config struct {
	File    string
	Layouts []NamedLayout // in the order of the file
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

// FileError is one fault in a file.
type FileError struct {
	File         string
	Line, Column int
	Message      string
	Fix          string // "" if there is nothing more to say
}

func (e FileError) Error() string {
	s := fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
	if e.Fix != "" {
		s += "\n    = " + e.Fix
	}
	return s
}

// FileErrors are all faults in a file, in its order.
type FileErrors []FileError

func (e FileErrors) Error() string {
	all := make([]string, len(e))
	for i, one := range e {
		all[i] = one.Error()
	}
	return strings.Join(all, "\n")
}

// maxFile is the size of the largest file that is read, in bytes: mig-parted's own has 14 KiB.
const maxFile = 1 << 20

// ParseParted reads a file in mig-parted's format, and refuses more than mig-parted does: filters that name no device,
// negative and repeated indices, profiles that cannot be, repeated keys. A count of 0 is none.
// The error is FileErrors, with every fault.
func ParseParted(file string, data []byte) (Config, error) {
	p := &parted{file: file}
	if len(data) > maxFile {
		return Config{}, FileErrors{{file, 1, 1, fmt.Sprintf("the file has %d bytes, and %d are read", len(data), maxFile), ""}}
	}
	root := p.parse(data)
	if len(p.errs) > 0 {
		return Config{}, p.errs
	}
	c := Config{File: file}
	p.mapping(root, "the file", map[string]func(*yaml.Node){
		"version": func(n *yaml.Node) {
			if n.Kind != yaml.ScalarNode || n.Value != "v1" {
				p.add(n, `write version: v1`, "version must be v1")
			}
		},
		"mig-configs": func(n *yaml.Node) { c.Layouts = p.layouts(n) },
	}, "version", "mig-configs")
	if len(p.errs) > 0 {
		slices.SortStableFunc(p.errs, func(a, b FileError) int { return a.Line - b.Line })
		return Config{}, p.errs
	}
	return c, nil
}

// layouts reads mig-configs.
func (p *parted) layouts(n *yaml.Node) []NamedLayout {
	var all []NamedLayout
	if !p.isMapping(n, "mig-configs") {
		return nil
	}
	for key, value := range pairs(n) {
		l := NamedLayout{Name: key.Value}
		if value.Kind != yaml.SequenceNode || len(value.Content) == 0 {
			p.add(value, "write a list of entries, each with devices and mig-enabled", "layout %q has no entries", l.Name)
			continue
		}
		for i, item := range value.Content {
			l.Entries = append(l.Entries, p.entry(item, fmt.Sprintf("entry %d of %q", i+1, l.Name)))
		}
		all = append(all, l)
	}
	if len(all) == 0 && len(p.errs) == 0 {
		p.add(n, "", "mig-configs is empty")
	}
	return all
}

// entry reads one entry of a layout.
func (p *parted) entry(n *yaml.Node, called string) Entry {
	e := Entry{Where: fmt.Sprintf("%s, %s:%d", called, p.file, n.Line)}
	var enabled, partitions *yaml.Node
	counts := map[string]int{}
	p.mapping(n, called, map[string]func(*yaml.Node){
		"device-filter": func(n *yaml.Node) { e.Match = p.filters(n) },
		"devices":       func(n *yaml.Node) { e.Devices = p.devices(n) },
		"mig-enabled": func(n *yaml.Node) {
			enabled = n
			if err := n.Decode(&e.Layout.Enabled); err != nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
				p.add(n, "write mig-enabled: true or mig-enabled: false", "mig-enabled must be true or false")
			}
		},
		"mig-devices": func(n *yaml.Node) { partitions, counts = n, p.counts(n) },
	}, "devices", "mig-enabled")
	switch {
	case enabled == nil:
	case e.Layout.Enabled && partitions == nil:
		p.add(n, "write mig-devices: {} for none", "%s has no mig-devices", called)
	case !e.Layout.Enabled && len(counts) > 0:
		p.add(partitions, "write mig-enabled: true, or take mig-devices out", "without MIG there are no partitions")
	case e.Layout.Enabled:
		l, err := counted(counts)
		if err != nil {
			p.add(partitions, "", "%v", err)
		}
		e.Layout = l
	}
	return e
}

// filters reads a device-filter: PCI device and vendor id, and since mig-parted v0.15 the subsystem's after a colon.
func (p *parted) filters(n *yaml.Node) []string {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	var all []string
	for _, item := range list {
		if len(p.errs) == maxFaults {
			break
		}
		if item.Kind == yaml.ScalarNode && item.Tag == "!!str" && item.Value == "" && n == item {
			return nil // as if it were not there
		}
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			p.add(item, `write device-filter: "0x233010DE"`, "a device-filter must be a string or a list of strings")
			continue
		}
		device, sub, has := strings.Cut(item.Value, ":")
		if !isID(device) || has && !isID(sub) {
			fix := `write the PCI device and vendor id in one: "0x233010DE"`
			if m, err := Find(item.Value); err == nil && len(m.Devices) > 0 {
				fix = "did you mean " + strconv.Quote(m.Devices[0]) + "?"
			}
			p.add(item, fix, "device-filter %q names no device", item.Value)
			continue
		}
		if !strings.EqualFold(device[6:], "10DE") {
			p.add(item, "NVIDIA's vendor id is 10DE: "+strconv.Quote(device[:6]+"10DE"), "device-filter %q names no device of NVIDIA's", item.Value)
			continue
		}
		all = append(all, item.Value)
	}
	return all
}

// isID says whether s is two PCI ids as mig-parted writes them: 0xDDDDVVVV.
func isID(s string) bool {
	return len(s) == 10 && (s[:2] == "0x" || s[:2] == "0X") && !strings.ContainsFunc(s[2:], func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f' || r >= 'A' && r <= 'F')
	})
}
