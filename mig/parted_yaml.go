// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/content"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// partedParser reads a file in mig-parted's format, and collects its faults.
type partedParser struct {
	file   string
	faults trouble.Faults
	nodes  int // read so far
}

const (
	maxFaults = 20      // the most faults to report
	maxNodes  = 1 << 17 // the most nodes to read: aliases of aliases grow exponentially
)

// fault adds a fault; fix is what to do about it, or "".
func (p *partedParser) fault(line int, fix, format string, args ...any) {
	if len(p.faults) == maxFaults {
		return
	}

	t := &trouble.Error{
		What: fmt.Sprintf(format, args...),
		At:   trouble.Position{File: p.file, Line: line, Column: 1},
	}
	if fix != "" {
		t.Try = []string{fix}
	}
	p.faults = append(p.faults, t)
}

// fileYAML is a file in mig-parted's format, before its values are checked together.
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

// refuseOther refuses a file of another kind as a whole: what is wrong with each of its keys would
// not say that.
func (p *partedParser) refuseOther(data []byte) bool {
	what := content.Of(data)
	fix := "mig-parted's own examples show the format: https://github.com/NVIDIA/mig-parted"
	switch what {
	case "", "empty", "YAML", "JSON", "a file in mig-parted's format":
		return false
	case "TOML":
		fix = "write its [[mig.gpu]] tables in node.toml, which needs no file for them"
	}

	p.fault(1, fix, "this is %s, not a file in mig-parted's format", what)
	return true
}

// inConfigMap returns the file that a ConfigMap of the GPU Operator has, with each line where the
// ConfigMap has it. Sources: assets/state-mig-manager/0400_configmap.yaml in
// https://github.com/NVIDIA/gpu-operator (default-mig-parted-config, config.yaml);
// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html.
func (p *partedParser) inConfigMap(data []byte) []byte {
	var doc struct {
		Data map[string]yaml.Node
	}
	if err := yaml.Unmarshal(data, &doc); err != nil {
		p.fault(1, "", "the ConfigMap is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	file, found := doc.Data["config.yaml"]
	if !found {
		const fix = "name a ConfigMap of layouts: the GPU Operator's is default-mig-parted-config"
		p.fault(1, fix, "this ConfigMap has no config.yaml in its data")
		return nil
	}

	before := file.Line - 1
	if file.Style == yaml.LiteralStyle || file.Style == yaml.FoldedStyle {
		before++ // the text begins below its key
	}
	return append(bytes.Repeat([]byte("\n"), max(0, before)), file.Value...)
}

// tabbed is the first line that a tab begins; 0 if there is none.
func tabbed(data []byte) int {
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if bytes.HasPrefix(bytes.TrimLeft(line, " "), []byte("\t")) {
			return n
		}
	}

	return 0
}

// read parses the file's one document. It walks the nodes, which have line numbers: the library's
// decoder has them only in sentences.
func (p *partedParser) read(data []byte) (f fileYAML) {
	if content.Of(data) == "a Kubernetes ConfigMap" {
		data = p.inConfigMap(data)
	}
	if len(p.faults) > 0 || p.refuseOther(data) {
		return f
	}

	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		p.fault(1, "write version: v1 and mig-configs", "the file is empty")
		return f
	}

	if err == nil {
		err = p.refuseSecond(d)
	}
	if err != nil {
		says := strings.TrimPrefix(err.Error(), "yaml: ")
		if line := tabbed(data); line > 0 && strings.Contains(says, "cannot start any token") {
			p.fault(line, "indent with spaces", "a tab begins the line, which YAML does not allow")
			return f
		}
		p.fault(1, "", "the file is not YAML: %s", says)
		return f
	}

	f.Layouts = map[string][]entryYAML{}
	layout := func(key, list *yaml.Node) {
		f.Layouts[key.Value] = nil
		p.list(list, func(n *yaml.Node) {
			f.Layouts[key.Value] = append(f.Layouts[key.Value], p.readEntry(n))
		})
	}

	p.keys(&doc, map[string]func(*yaml.Node){
		"version":     func(n *yaml.Node) { decode(p, n, &f.Version, "a string") },
		"mig-configs": func(n *yaml.Node) { p.pairs(n, layout) },
	})

	return f
}

// refuseSecond adds a fault if a second document follows. The error is YAML's.
func (p *partedParser) refuseSecond(d *yaml.Decoder) error {
	var next yaml.Node
	err := d.Decode(&next)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}

	const fix = "write version: v1 and mig-configs alone into a file: in NVIDIA's manifests they are below config.yaml of a ConfigMap's data"
	p.fault(max(1, next.Line), fix, "the file has more than one document")
	return nil
}

func (p *partedParser) readEntry(n *yaml.Node) (e entryYAML) {
	p.keys(n, map[string]func(*yaml.Node){
		"device-filter": func(n *yaml.Node) { e.Filters = p.filters(n) },
		"devices":       func(n *yaml.Node) { e.Devices = p.devices(n) },
		"mig-enabled":   func(n *yaml.Node) { decode(p, n, &e.Enabled, "true or false") },
		"mig-devices":   func(n *yaml.Node) { e.Counts = p.counts(n) },
	})

	return e
}

// resolve returns the node that an alias refers to, or the one of a document.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// children returns the nodes in a list or a mapping; nil, with a fault, if the node is something
// else or the file has too many nodes. what names the kind in messages.
func (p *partedParser) children(n *yaml.Node, kind yaml.Kind, what string) []*yaml.Node {
	p.nodes += len(n.Content) + 1
	if p.nodes > maxNodes {
		p.nodes = maxNodes
		if len(p.faults) == 0 {
			p.fault(n.Line, "", "the file has more than %d values", maxNodes)
		}
		return nil
	}

	if n.Kind == kind {
		return n.Content
	}
	if n.Tag != "!!null" {
		p.wrongValue(n, what)
	}

	return nil
}

// wrongValue says what a value must be.
func (p *partedParser) wrongValue(n *yaml.Node, what string) {
	value := ""
	if n.Value != "" && len(n.Value) <= 20 {
		value = "`" + n.Value + "` "
	}
	p.fault(n.Line, "", "%smust be %s", value, what)
}

func (p *partedParser) list(n *yaml.Node, do func(*yaml.Node)) {
	for _, item := range p.children(resolve(n), yaml.SequenceNode, "a list") {
		do(item)
	}
}

// pairs calls do for each key and its value. Merged mappings come first, so that the mapping's own
// keys win.
func (p *partedParser) pairs(n *yaml.Node, do func(key, value *yaml.Node)) {
	all := p.children(resolve(n), yaml.MappingNode, "a mapping")
	for i := 0; i < len(all); i += 2 {
		if all[i].Tag == "!!merge" {
			p.pairs(all[i+1], do)
		}
	}

	lines := map[string]int{} // of the keys so far
	for i := 0; i < len(all); i += 2 {
		key := resolve(all[i])
		switch {
		case key.Tag == "!!merge":
		case lines[key.Value] > 0:
			p.fault(key.Line, "", "mapping key %q already defined at line %d", key.Value, lines[key.Value])
		default:
			lines[key.Value] = key.Line
			do(key, resolve(all[i+1]))
		}
	}
}

// keys reads a mapping; a key that is not in read is a fault.
func (p *partedParser) keys(n *yaml.Node, read map[string]func(*yaml.Node)) {
	p.pairs(n, func(key, value *yaml.Node) {
		do := read[key.Value]
		switch {
		case do == nil:
			p.unknownKey(key, slices.Sorted(maps.Keys(read)))
		case value.Tag != "!!null":
			do(value)
		}
	})
}

// unknownKey adds a fault for a key that is none of those known in its place.
func (p *partedParser) unknownKey(key *yaml.Node, known []string) {
	fix := "the keys here are " + strings.Join(known, ", ")
	near := nearest.Of(key.Value, known)
	switch {
	case key.Value == "hooks": // of nvidia-mig-manager's hooks.yaml
		fix = "this is a file of hooks: stop in [mig] of node.toml names the units to stop"
	case near != "":
		fix = "did you mean " + strconv.Quote(near) + "?"
	}

	p.fault(key.Line, fix, "unknown key %q", key.Value)
}

// decode reads a value; what says in messages what it must be.
func decode[T any](p *partedParser, n *yaml.Node, to *T, what string) {
	if n.Decode(to) != nil {
		p.wrongValue(n, what)
	}
}

const fixDevices = "write devices: all or devices: [0, 1]"

func (p *partedParser) devices(n *yaml.Node) devicesYAML {
	d := devicesYAML{line: n.Line}
	if n.Value == "all" {
		d.All = true
		return d
	}
	if n.Kind != yaml.SequenceNode || n.Decode(&d.Index) != nil {
		p.fault(n.Line, fixDevices, "devices must be all or a list of indices")
		return d
	}
	if len(d.Index) == 0 {
		p.fault(n.Line, fixDevices, "devices is empty: no GPU is meant")
		return d
	}

	slices.Sort(d.Index)
	impossible := slices.IndexFunc(d.Index, func(index int) bool { return index < 0 || index > 1023 })
	distinct := slices.Compact(slices.Clone(d.Index))

	switch {
	case impossible >= 0:
		p.fault(n.Line, "write the indices of GPUs, from 0", "no GPU has the index %d", d.Index[impossible])
	case len(distinct) < len(d.Index):
		p.fault(n.Line, "write each index once", "an index is in devices twice")
	}

	return d
}

// counts reads how many of each profile are asked for.
func (p *partedParser) counts(n *yaml.Node) map[string]int {
	all := map[string]int{}
	p.pairs(n, func(key, value *yaml.Node) {
		count := 0
		decode(p, value, &count, "an integer")
		all[key.Value] = count

		_, err := parseName(key.Value)
		switch {
		case err != nil:
			p.fault(key.Line, "", "%v", err)
		case count < 0 || count > maxCount:
			p.fault(key.Line, "", "no GPU has %d of %q", count, key.Value)
		}
	})

	return all
}

// filters reads PCI device and vendor ids; since mig-parted v0.15 the subsystem's may follow a
// colon.
func (p *partedParser) filters(n *yaml.Node) []string {
	if n.Kind == yaml.ScalarNode {
		n = &yaml.Node{
			Kind:    yaml.SequenceNode,
			Line:    n.Line,
			Content: []*yaml.Node{n},
		}
	}

	var all []string
	if n.Decode(&all) != nil {
		const fault = "a device-filter must be a string or a list of strings"
		p.fault(n.Line, `write device-filter: "0x233010DE"`, fault)
		return nil
	}
	if len(all) == 1 && all[0] == "" {
		return nil // as if the key were missing
	}

	for _, filter := range all {
		device, sub, hasSub := strings.Cut(filter, ":")
		switch {
		case !isDeviceID(device) || hasSub && !isDeviceID(sub):
			fix := `write the PCI device and vendor id in one: "0x233010DE"`
			if m, err := Find(filter); err == nil && len(m.Devices) > 0 {
				fix = "did you mean " + strconv.Quote(m.GPU().Device) + "?"
			}
			p.fault(n.Line, fix, "device-filter %q names no device", filter)
			return all

		case !strings.EqualFold(device[6:], "10DE"):
			fix := "NVIDIA's vendor id is 10DE: " + strconv.Quote(device[:6]+"10DE")
			p.fault(n.Line, fix, "device-filter %q names no device of NVIDIA's", filter)
			return all
		}
	}

	return all
}
