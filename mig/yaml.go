// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// parted reads YAML node by node, so that every fault has its line and column.
type parted struct {
	file string
	errs FileErrors
}

// maxFaults is how many faults are reported; more help no reader, and to find the nearest name costs time.
const maxFaults = 20

func (p *parted) add(n *yaml.Node, fix, format string, args ...any) {
	if len(p.errs) < maxFaults {
		p.errs = append(p.errs, FileError{p.file, max(1, n.Line), max(1, n.Column), fmt.Sprintf(format, args...), fix})
	}
}

// parse is the file's one document, nil where it cannot be read.
func (p *parted) parse(data []byte) *yaml.Node {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := d.Decode(&doc)
	empty := errors.Is(err, io.EOF)
	if err == nil {
		err = d.Decode(&more)
	}
	switch {
	case empty || errors.Is(err, io.EOF) && len(doc.Content) == 0:
		p.add(&doc, "write version: v1 and mig-configs", "the file is empty")
	case err == nil:
		p.add(&more, "keep one", "the file has more than one document")
	case !errors.Is(err, io.EOF):
		p.syntax(err)
	default:
		p.plain(doc.Content[0])
		return doc.Content[0]
	}
	return nil
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

// plain refuses what makes a file mean something else than a reader sees: aliases, by which a small file becomes a large one,
// merged mappings, and keys that are there twice.
func (p *parted) plain(n *yaml.Node) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge" {
		p.add(n, "write the value in each place", "anchors, aliases and merge keys are not read")
	}
	first := map[string]int{}
	for key := range pairs(n) {
		if key.Kind != yaml.ScalarNode {
			p.add(key, "", "a key must be a string")
		} else if line := first[key.Value]; line > 0 {
			p.add(key, "keep one of the two", "%q is there twice; first in line %d", key.Value, line)
		} else {
			first[key.Value] = key.Line
		}
	}
	for _, child := range n.Content {
		p.plain(child)
	}
}

// pairs are the keys and values of a mapping; other nodes have none.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// isMapping notes a node that is no mapping.
func (p *parted) isMapping(n *yaml.Node, called string) bool {
	if n.Kind != yaml.MappingNode {
		p.add(n, "", "%s must be a mapping", called)
	}
	return n.Kind == yaml.MappingNode
}

// mapping reads a mapping that has known keys.
func (p *parted) mapping(n *yaml.Node, called string, keys map[string]func(*yaml.Node), required ...string) {
	before := len(p.errs)
	if !p.isMapping(n, called) {
		return
	}
	for key, value := range pairs(n) {
		if read := keys[key.Value]; read != nil {
			read(value)
			required = slices.DeleteFunc(required, func(k string) bool { return k == key.Value })
			continue
		}
		fix := ""
		if near := nearest.Of(key.Value, slices.Sorted(maps.Keys(keys))); near != "" {
			fix = "did you mean " + strconv.Quote(near) + "?"
		}
		p.add(key, fix, "unknown key %q in %s", key.Value, called)
	}
	if len(p.errs) == before && len(required) > 0 {
		p.add(n, "", "%s has no %s", called, strings.Join(required, " and no "))
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
		if len(p.errs) == maxFaults || len(d.Index) > 1023 {
			break
		}
		var i int
		switch err := item.Decode(&i); {
		case item.Tag != "!!int" || err != nil:
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
	if !p.isMapping(n, "mig-devices") {
		return all
	}
	for key, value := range pairs(n) {
		var count int
		if _, err := parseName(key.Value); err != nil {
			p.add(key, "", "%v", err)
		} else if err := value.Decode(&count); err != nil || value.Tag != "!!int" {
			p.add(value, "", "the count of %q must be an integer", key.Value)
		} else if count < 0 || count > most {
			p.add(value, "", "no GPU has %d of %q", count, key.Value)
		} else if count > 0 {
			all[key.Value] = count
		}
	}
	return all
}
