// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"regexp"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// partedFile is all that mig-parted reads of a file: it refuses unknown keys, a version other than
// v1, layouts without entries, entries without devices or mig-enabled, partitions where MIG is off,
// and none (not even an empty map) where it is on. Sources: NVIDIA/mig-parted, api/spec/v1/spec.go
// and README.md ("mig-configs").
type partedFile struct {
	Version string
	Configs map[string][]struct {
		Filter  []string `yaml:"device-filter"`
		Devices any
		Enabled *bool          `yaml:"mig-enabled"`
		Parts   map[string]int `yaml:"mig-devices"`
	} `yaml:"mig-configs"`
}

// TestGenerate: there is one layout for each profile of each GPU, mig-parted reads them all, a
// Node's label can name each, and each GPU can have what the layouts say for it.
func TestGenerate(t *testing.T) {
	// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
	label := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	var all []host.GPU
	for _, m := range Models() {
		for _, group := range [][]host.GPU{{m.GPU()}, {m.GPU(), m.GPU()}} {
			generated(t, m.Name, group, label)
		}
		all = append(all, m.GPU())
	}

	text := generated(t, "all models", all, label)
	check.Says(t, text, "all-disabled:", "all-enabled:", "all-1g.10gb.me:", "all-1g.24gb-me:", "all-7g.141gb:", `- "0x233010DE"`, " 1g.10gb: 7\n", " 1g.16gb-me: 2\n")
	_, err := Generate([]host.GPU{{Name: "Tesla T4"}})
	check.That(t, err != nil, "layouts for a GPU without MIG")
}

func generated(t *testing.T, name string, gpus []host.GPU, label *regexp.Regexp) string {
	t.Helper()
	for i := range gpus {
		gpus[i].Index = i
	}
	file := must.Get(Generate(gpus))(t)
	text := file.YAML()
	var read partedFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err := d.Decode(&read)
	must.That(t, err == nil && read.Version == "v1", "%s: %v\n%s", name, err, text)
	for key, entries := range read.Configs {
		check.That(t, label.MatchString(key) && len(entries) > 0, "%s: %s with %d entries", name, key, len(entries))
		for _, e := range entries {
			check.That(t, e.Devices == "all" && e.Enabled != nil && e.Parts != nil && (*e.Enabled || len(e.Parts) == 0), "%s: %s: %+v", name, key, e)
		}
	}

	c := must.Get(ParseParted("generated.yaml", text))(t)
	profiles := map[string]bool{}
	for _, l := range c.Layouts {
		as, err := Assign(l.Entries, gpus)
		check.That(t, err == nil, "%s: %s: %v", name, l.Name, err)
		for _, a := range as {
			m := must.Get(Of(a.GPU))(t)
			_, err := m.Fit(StateOf(a.GPU), a.Entry.Layout)
			check.That(t, err == nil, "%s: %s: %v", name, l.Name, err)
			for _, w := range a.Entry.Layout.Wants {
				profiles[m.Name+w.Profile] = true
			}
		}
	}

	for _, g := range gpus {
		m := must.Get(Of(g))(t)
		if i := slices.IndexFunc(m.Profiles, func(p host.Profile) bool { return !profiles[m.Name+p.Name] }); i >= 0 {
			t.Errorf("%s: no layout has %s of %s", name, m.Profiles[i].Name, m.Name)
		}
	}

	return string(text)
}
