// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// parted reads YAML node by node, so that every fault has its line and column.
type parted struct {
	file string
	errs FileErrors
	size int // nodes handed out; aliases count each time, so that a small file cannot become a large one
}

// maxNodes is how many nodes are read; mig-parted's own file has 1,500.
const maxNodes = 200_000

// maxFaults is how many faults are told; nobody reads more, and to find the nearest name costs.
const maxFaults = 20

func (p *parted) add(n *yaml.Node, fix, format string, args ...any) {
	if len(p.errs) < maxFaults {
		p.errs = append(p.errs, FileError{p.file, max(1, n.Line), max(1, n.Column), fmt.Sprintf(format, args...), fix})
	}
}

func (p *parted) parse(data []byte) *yaml.Node {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		p.add(&doc, "write version: v1 and mig-configs", "the file is empty")
		return &doc
	}
	if err == nil {
		if err = d.Decode(&more); err == nil {
			p.add(&more, "keep one", "the file has more than one document")
			return &doc
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		p.syntax(err)
		return &doc
	}
	if len(doc.Content) == 0 {
		p.add(&doc, "write version: v1 and mig-configs", "the file is empty")
		return &doc
	}
	return p.follow(doc.Content[0])
}

// syntax reports what the library found. It knows the line only.
func (p *parted) syntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	at := yaml.Node{Line: 1, Column: 1}
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(text); m != nil {
		at.Line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	p.add(&at, "", "%s", text)
}

// follow is the node that an alias stands for.
func (p *parted) follow(n *yaml.Node) *yaml.Node {
	if p.size++; p.size > maxNodes {
		if p.size == maxNodes+1 {
			p.add(n, "", "the file is too large")
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: n.Line, Column: n.Column}
	}
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

type pair struct{ key, value *yaml.Node }

// pairs are the keys and values of a mapping, those of a merge key ("<<") included where they do not stand themselves.
func (p *parted) pairs(n *yaml.Node, called string) []pair {
	if n.Kind != yaml.MappingNode {
		p.add(n, "", "%s must be a mapping", called)
		return nil
	}
	var all, merged []pair
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], p.follow(n.Content[i+1])
		if p.size > maxNodes {
			return nil
		}
		if key.Kind != yaml.ScalarNode {
			p.add(key, "", "a key must be a string")
			continue
		}
		if key.Tag == "!!merge" {
			if value.Kind != yaml.MappingNode || value == n {
				p.add(value, "", "only a mapping can be merged")
				continue
			}
			for j := 0; j+1 < len(value.Content); j += 2 {
				merged = append(merged, pair{value.Content[j], p.follow(value.Content[j+1])})
			}
			continue
		}
		if old := first[key.Value]; old != nil {
			p.add(key, "keep one of the two", "%q stands twice; first in line %d", key.Value, old.Line)
			continue
		}
		first[key.Value] = key
		all = append(all, pair{key, value})
	}
	for _, q := range merged {
		if first[q.key.Value] == nil {
			first[q.key.Value] = q.key
			all = append(all, q)
		}
	}
	return all
}

// mapping reads a mapping whose keys are known.
func (p *parted) mapping(n *yaml.Node, called string, keys map[string]func(*yaml.Node), required ...string) {
	known := make([]string, 0, len(keys))
	for k := range keys {
		known = append(known, k)
	}
	slices.Sort(known)
	where := ""
	if called != "" {
		where = " in " + called
	} else {
		called = "the file"
	}
	seen := map[string]bool{}
	before := len(p.errs)
	for _, q := range p.pairs(n, called) {
		readKey := keys[q.key.Value]
		if readKey == nil {
			fix := ""
			if near := nearest(q.key.Value, known); near != "" {
				fix = "did you mean " + strconv.Quote(near) + "?"
			}
			p.add(q.key, fix, "unknown key %q%s", q.key.Value, where)
			continue
		}
		seen[q.key.Value] = true
		readKey(q.value)
	}
	for _, k := range required {
		if !seen[k] && len(p.errs) == before {
			p.add(n, "", "%s has no %s", called, k)
		}
	}
}

// devices reads "all" or a list of indices.
func (p *parted) devices(n *yaml.Node) spec.Devices {
	if n.Kind == yaml.ScalarNode && n.Value == "all" {
		return spec.Devices{All: true}
	}
	const fix = "write devices: all or devices: [0, 1]"
	if n.Kind != yaml.SequenceNode {
		p.add(n, fix, "devices must be all or a list of indices")
		return spec.Devices{}
	}
	var d spec.Devices
	for _, item := range n.Content {
		item = p.follow(item)
		if len(p.errs) == maxFaults || len(d.Index) > 1023 {
			break
		}
		var i int
		switch err := item.Decode(&i); {
		case item.Kind != yaml.ScalarNode || item.Tag != "!!int" || err != nil:
			p.add(item, fix, "devices must be all or a list of indices")
		case i < 0 || i > 1023:
			p.add(item, "write the index of a GPU, from 0", "no GPU has the index %d", i)
		case slices.Contains(d.Index, i):
			p.add(item, "write it once", "%d is in devices twice", i)
		default:
			d.Index = append(d.Index, i)
		}
	}
	if len(n.Content) == 0 {
		p.add(n, fix, "devices is empty: no GPU is meant")
	}
	slices.Sort(d.Index)
	return d
}

// counts reads mig-devices.
func (p *parted) counts(n *yaml.Node) map[string]int {
	all := map[string]int{}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return all
	}
	for _, q := range p.pairs(n, "mig-devices") {
		if _, err := parseName(q.key.Value); err != nil {
			p.add(q.key, "", "%v", err)
			continue
		}
		var count int
		if err := q.value.Decode(&count); err != nil || q.value.Kind != yaml.ScalarNode || q.value.Tag != "!!int" {
			p.add(q.value, "", "the count of %q must be an integer", q.key.Value)
			continue
		}
		if count < 0 || count > most {
			p.add(q.value, "", "no GPU has %d of %q", count, q.key.Value)
			continue
		}
		if count > 0 {
			all[q.key.Value] = count
		}
	}
	return all
}
