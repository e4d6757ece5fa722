// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
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
	file string
	errs trouble.Faults
}

// maxFaults is how many faults are reported; more help no reader.
const maxFaults = 20

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
	Version string                 `yaml:"version"`
	Layouts map[string][]entryYAML `yaml:"mig-configs"`
}

type entryYAML struct {
	Filters filtersYAML `yaml:"device-filter"`
	Devices devicesYAML `yaml:"devices"`
	Enabled *bool       `yaml:"mig-enabled"`
	Counts  countsYAML  `yaml:"mig-devices"`
}

func partedKeys() []string {
	return []string{"version", "mig-configs", "device-filter", "devices", "mig-enabled", "mig-devices"}
}

// read decodes the file's one document.
func (p *parted) read(data []byte) (f fileYAML) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	err := d.Decode(&f)
	if errors.Is(err, io.EOF) {
		p.add(1, "write version: v1 and mig-configs", "the file is empty")
		return f
	}
	if err == nil {
		if more := d.Decode(new(yaml.Node)); more == nil {
			p.add(1, "keep one", "the file has more than one document")
		} else if !errors.Is(more, io.EOF) {
			err = more
		}
	}
	if many := (*yaml.TypeError)(nil); errors.As(err, &many) {
		for _, text := range many.Errors {
			p.refused(text)
		}
	} else if err != nil {
		p.refused(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return f
}

// refused notes what the library says of a line. It names the types of Go that a value is for, which tell an operator nothing.
func (p *parted) refused(text string) {
	line := 1
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	text, fix, _ := strings.Cut(text, fixMark)
	if m := regexp.MustCompile(`^field (.*) not found in type `).FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("unknown key %q", m[1])
		if near := nearest.Of(m[1], partedKeys()); near != "" {
			fix = "did you mean " + strconv.Quote(near) + "?"
		}
	}
	if m := regexp.MustCompile(`^cannot unmarshal !!\w+ ?(.*) into (bool|int|\[|.*)`).FindStringSubmatch(text); m != nil {
		must := map[string]string{"bool": "true or false", "int": "an integer", "[": "a list"}[m[2]]
		text = strings.TrimSpace(m[1] + " must be " + cmp.Or(must, "a mapping"))
	}
	p.add(line, fix, "%s", text)
}

// fixMark is between the fault and the fix in the text of a fault that is handed through the library.
const fixMark = "\x00"

func lineFault(n *yaml.Node, fix, format string, args ...any) string {
	return fmt.Sprintf("line %d: %s%s%s", n.Line, fmt.Sprintf(format, args...), fixMark, fix)
}

func oneFault(n *yaml.Node, fix, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{lineFault(n, fix, format, args...)}}
}

// devicesYAML is "all" or a list of indices, and the line that it is on.
type devicesYAML struct {
	spec.Devices
	line int
}

const fixDevices = "write devices: all or devices: [0, 1]"

func (d *devicesYAML) UnmarshalYAML(n *yaml.Node) error {
	d.line, d.All = n.Line, n.Value == "all"
	if d.All {
		return nil
	}
	if err := n.Decode(&d.Index); err != nil || n.Kind != yaml.SequenceNode {
		return oneFault(n, fixDevices, "devices must be all or a list of indices")
	}
	slices.Sort(d.Index)
	switch one := slices.Compact(slices.Clone(d.Index)); {
	case len(d.Index) == 0:
		return oneFault(n, fixDevices, "devices is empty: no GPU is meant")
	case d.Index[0] < 0 || d.Index[len(d.Index)-1] > 1023:
		return oneFault(n, "write the indices of GPUs, from 0", "no GPU has the index %d", min(d.Index[0], d.Index[len(d.Index)-1]))
	case len(one) < len(d.Index):
		return oneFault(n, "write each index once", "an index is in devices twice")
	}
	return nil
}

// countsYAML is how many of each profile there are.
type countsYAML map[string]int

func (c *countsYAML) UnmarshalYAML(n *yaml.Node) error {
	all := &yaml.TypeError{}
	if err := n.Decode((*map[string]int)(c)); err != nil && !errors.As(err, &all) {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(*c)) {
		if _, err := parseName(name); err != nil {
			all.Errors = append(all.Errors, lineFault(n, "", "%v", err))
		} else if count := (*c)[name]; count < 0 || count > most {
			all.Errors = append(all.Errors, lineFault(n, "", "no GPU has %d of %q", count, name))
		}
	}
	if len(all.Errors) == 0 {
		return nil
	}
	return all
}

// filtersYAML are PCI device and vendor ids, and since mig-parted v0.15 the subsystem's after a colon.
type filtersYAML []string

func (f *filtersYAML) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		n = &yaml.Node{Kind: yaml.SequenceNode, Line: n.Line, Content: []*yaml.Node{n}}
	}
	if err := n.Decode((*[]string)(f)); err != nil {
		return oneFault(n, `write device-filter: "0x233010DE"`, "a device-filter must be a string or a list of strings")
	}
	if len(*f) == 1 && (*f)[0] == "" {
		*f = nil // as if it were not there
	}
	for _, filter := range *f {
		device, sub, has := strings.Cut(filter, ":")
		switch {
		case !isID(device) || has && !isID(sub):
			fix := `write the PCI device and vendor id in one: "0x233010DE"`
			if m, err := Find(filter); err == nil && len(m.Devices) > 0 {
				fix = "did you mean " + strconv.Quote(m.Devices[0]) + "?"
			}
			return oneFault(n, fix, "device-filter %q names no device", filter)
		case !strings.EqualFold(device[6:], "10DE"):
			return oneFault(n, "NVIDIA's vendor id is 10DE: "+strconv.Quote(device[:6]+"10DE"), "device-filter %q names no device of NVIDIA's", filter)
		}
	}
	return nil
}
