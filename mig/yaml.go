// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// parted collects the faults of a file.
type parted struct {
	file  string
	errs  trouble.Faults
	nodes int // read so far
}

const (
	maxFaults = 20      // the most faults to report
	maxNodes  = 1 << 17 // the most nodes to read: aliases of aliases grow exponentially
)

func (p *parted) add(line int, fix, format string, args ...any) {
	if len(p.errs) < maxFaults {
		f := &trouble.Error{What: fmt.Sprintf(format, args...), At: trouble.Position{File: p.file, Line: line, Column: 1}}
		if fix != "" {
			f.Try = []string{fix}
		}
		p.errs = append(p.errs, f)
	}
}

// fileYAML is a file of mig-parted's, as YAML has it.
type fileYAML struct {
	Version string
	Layouts map[string][]entryYAML
}

type entryYAML struct {
	Filters []string
	Devices devicesYAML
	Enabled *bool
	Counts  map[string]int
}

// devicesYAML is "all" or a list of indices, and the line that it is on.
type devicesYAML struct {
	spec.Devices
	line int
}

// read parses the file's one document. It walks the nodes, which have line numbers: the library's
// decoder has them only in sentences.
func (p *parted) read(data []byte) (f fileYAML) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		p.add(1, "write version: v1 and mig-configs", "the file is empty")
		return f
	}
	if err == nil {
		var next yaml.Node
		if more := d.Decode(&next); more == nil {
			p.add(max(1, next.Line), "write version: v1 and mig-configs alone into a file: in NVIDIA's manifests they are below config.yaml of a ConfigMap's data",
				"the file has more than one document")
		} else if !errors.Is(more, io.EOF) {
			err = more
		}
	}
	if err != nil {
		p.add(1, "", "the file is no YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return f
	}
	f.Layouts = map[string][]entryYAML{}
	p.keys(&doc, map[string]func(*yaml.Node){
		"version": func(n *yaml.Node) { decode(p, n, &f.Version, "a string") },
		"mig-configs": func(n *yaml.Node) {
			p.pairs(n, func(key, list *yaml.Node) {
				f.Layouts[key.Value] = nil
				p.list(list, func(n *yaml.Node) { f.Layouts[key.Value] = append(f.Layouts[key.Value], p.entryYAML(n)) })
			})
		},
	})
	return f
}

func (p *parted) entryYAML(n *yaml.Node) (e entryYAML) {
	p.keys(n, map[string]func(*yaml.Node){
		"device-filter": func(n *yaml.Node) { e.Filters = p.filters(n) },
		"devices":       func(n *yaml.Node) { e.Devices = p.devices(n) },
		"mig-enabled":   func(n *yaml.Node) { decode(p, n, &e.Enabled, "true or false") },
		"mig-devices":   func(n *yaml.Node) { e.Counts = p.counts(n) },
	})
	return e
}

// whole is the node that an alias refers to, or the one of a document.
func whole(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// content returns the nodes in a list or a mapping; nil, with a fault, if the node is something
// else or the file has too many nodes.
func (p *parted) content(n *yaml.Node, kind yaml.Kind, called string) []*yaml.Node {
	if p.nodes += len(n.Content) + 1; p.nodes > maxNodes {
		if p.nodes = maxNodes; len(p.errs) == 0 {
			p.add(n.Line, "", "the file has more than %d values", maxNodes)
		}
		return nil
	}
	if n.Kind != kind && n.Tag != "!!null" {
		p.wrong(n, called)
	}
	if n.Kind != kind {
		return nil
	}
	return n.Content
}

// wrong says what a value must be.
func (p *parted) wrong(n *yaml.Node, called string) {
	value := ""
	if n.Value != "" && len(n.Value) <= 20 {
		value = "`" + n.Value + "` "
	}
	p.add(n.Line, "", "%smust be %s", value, called)
}

func (p *parted) list(n *yaml.Node, do func(*yaml.Node)) {
	for _, one := range p.content(whole(n), yaml.SequenceNode, "a list") {
		do(one)
	}
}

// pairs calls do for each key and its value; merged mappings come first, so that the mapping's own
// keys win.
func (p *parted) pairs(n *yaml.Node, do func(key, value *yaml.Node)) {
	lines, all := map[string]int{}, p.content(whole(n), yaml.MappingNode, "a mapping")
	for i := 0; i < len(all); i += 2 {
		if all[i].Tag == "!!merge" {
			p.pairs(all[i+1], do)
		}
	}
	for i := 0; i < len(all); i += 2 {
		switch key := whole(all[i]); {
		case key.Tag == "!!merge":
		case lines[key.Value] > 0:
			p.add(key.Line, "", "mapping key %q already defined at line %d", key.Value, lines[key.Value])
		default:
			lines[key.Value] = key.Line
			do(key, whole(all[i+1]))
		}
	}
}

// keys reads a mapping; a key that is not in read is a fault.
func (p *parted) keys(n *yaml.Node, read map[string]func(*yaml.Node)) {
	p.pairs(n, func(key, value *yaml.Node) {
		switch do := read[key.Value]; {
		case do == nil:
			fix := ""
			if near := nearest.Of(key.Value, []string{"version", "mig-configs", "device-filter", "devices", "mig-enabled", "mig-devices"}); near != "" {
				fix = "did you mean " + strconv.Quote(near) + "?"
			}
			p.add(key.Line, fix, "unknown key %q", key.Value)
		case value.Tag != "!!null":
			do(value)
		}
	})
}

func decode[T any](p *parted, n *yaml.Node, to *T, called string) {
	if n.Decode(to) != nil {
		p.wrong(n, called)
	}
}

const fixDevices = "write devices: all or devices: [0, 1]"

func (p *parted) devices(n *yaml.Node) (d devicesYAML) {
	d.line, d.All = n.Line, n.Value == "all"
	if d.All {
		return d
	}
	if err := n.Decode(&d.Index); err != nil || n.Kind != yaml.SequenceNode {
		p.add(n.Line, fixDevices, "devices must be all or a list of indices")
		return d
	}
	slices.Sort(d.Index)
	switch one := slices.Compact(slices.Clone(d.Index)); {
	case len(d.Index) == 0:
		p.add(n.Line, fixDevices, "devices is empty: no GPU is meant")
	case d.Index[0] < 0 || d.Index[len(d.Index)-1] > 1023:
		p.add(n.Line, "write the indices of GPUs, from 0", "no GPU has the index %d", min(d.Index[0], d.Index[len(d.Index)-1]))
	case len(one) < len(d.Index):
		p.add(n.Line, "write each index once", "an index is in devices twice")
	}
	return d
}

// counts reads how many of each profile are asked for.
func (p *parted) counts(n *yaml.Node) map[string]int {
	all := map[string]int{}
	p.pairs(n, func(key, value *yaml.Node) {
		count := 0
		decode(p, value, &count, "an integer")
		if _, err := parseName(key.Value); err != nil {
			p.add(key.Line, "", "%v", err)
		} else if count < 0 || count > most {
			p.add(key.Line, "", "no GPU has %d of %q", count, key.Value)
		}
		all[key.Value] = count
	})
	return all
}

// filters reads PCI device and vendor ids; since mig-parted v0.15 the subsystem's may follow a
// colon.
func (p *parted) filters(n *yaml.Node) (all []string) {
	if n.Kind == yaml.ScalarNode {
		n = &yaml.Node{Kind: yaml.SequenceNode, Line: n.Line, Content: []*yaml.Node{n}}
	}
	if n.Decode(&all) != nil {
		p.add(n.Line, `write device-filter: "0x233010DE"`, "a device-filter must be a string or a list of strings")
		return nil
	}
	if len(all) == 1 && all[0] == "" {
		return nil // as if it were not there
	}
	for _, filter := range all {
		device, sub, has := strings.Cut(filter, ":")
		switch {
		case !isID(device) || has && !isID(sub):
			fix := `write the PCI device and vendor id in one: "0x233010DE"`
			if m, err := Find(filter); err == nil && len(m.Devices) > 0 {
				fix = "did you mean " + strconv.Quote(m.Devices[0]) + "?"
			}
			p.add(n.Line, fix, "device-filter %q names no device", filter)
			return all
		case !strings.EqualFold(device[6:], "10DE"):
			p.add(n.Line, "NVIDIA's vendor id is 10DE: "+strconv.Quote(device[:6]+"10DE"), "device-filter %q names no device of NVIDIA's", filter)
			return all
		}
	}
	return all
}
