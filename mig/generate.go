// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

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

// Generate makes a layout for each profile of these GPUs, under the names that mig-parted's generate-config has for them (a label's
// value can have no plus sign): all-1g.10gb.me has as many as fit on each GPU that offers it. Filters are there only for several
// kinds of GPUs. Source: NVIDIA/mig-parted, pkg/mig/builder/builder.go, of which all-balanced is left out.
func Generate(gpus []host.GPU) (PartedFile, error) {
	file := PartedFile{"v1", map[string][]partedEntry{
		"all-disabled": {{Devices: "all", Parts: map[string]int{}}}, "all-enabled": {{Devices: "all", Enabled: true, Parts: map[string]int{}}},
	}}
	var kinds []string
	for _, g := range gpus {
		if g.MIG && !slices.Contains(kinds, g.Device) {
			kinds = append(kinds, g.Device)
		}
	}
	for _, g := range gpus {
		if !g.MIG || !slices.Contains(kinds, g.Device) {
			continue
		}
		m, err := Of(g)
		if err != nil {
			return file, err
		}
		for _, p := range m.Profiles {
			name := "all-" + strings.NewReplacer("+", ".", ",", ".").Replace(p.Name)
			file.add(name, partedEntry{Devices: "all", Enabled: true, Parts: map[string]int{p.Name: p.Max}}, g.Device, len(kinds) > 1)
		}
	}
	if len(kinds) == 0 {
		return file, &trouble.Error{What: "cannot generate layouts: none of the GPUs has MIG", Try: []string{"--gpu MODEL generates those of a GPU that this machine does not have"}}
	}
	return file, nil
}

// add adds an entry to a layout, or a device to the entry that says the same.
func (f PartedFile) add(name string, e partedEntry, device string, filter bool) {
	entries := f.Configs[name]
	i := slices.IndexFunc(entries, func(o partedEntry) bool {
		for profile, n := range e.Parts {
			return o.Parts[profile] == n
		}
		return false
	})
	if i < 0 {
		entries, i = append(entries, e), len(entries)
	}
	if filter && !slices.Contains(entries[i].Filter, device) {
		entries[i].Filter = append(entries[i].Filter, device)
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
