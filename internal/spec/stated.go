// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Stated is a key that the files of a spec state, with the value that counts and its place.
type Stated struct {
	Key   string `json:"key"` // driver.version, node.labels."example.com/pool", mig.gpu[0].layout
	Value any    `json:"value"`
	File  string `json:"file"`
	Line  int    `json:"line"` // the first is 1; for a list of tables, the line of the first table
}

// Stated lists the keys that the files of a valid spec state, in the order of Keys.
func (p Places) Stated(s Spec) []Stated {
	var all []Stated
	add := func(place, key string, value any) {
		if at := p.of[place]; at.src != nil {
			all = append(all, Stated{key, value, at.src.name, at.src.lineOf(at.at) + 1})
		}
	}
	for _, r := range table() {
		if r.Section == "" || strings.HasPrefix(r.Section, "mig.gpu") {
			continue
		}
		name, value := r.Section+"."+r.Name, reflect.ValueOf(r.ref(&s)).Elem().Interface()
		of, entries := value.(map[string]string)
		for _, key := range slices.Sorted(maps.Keys(of)) {
			add(name+"."+key, name+"."+show(key), of[key])
		}
		if taints, ok := value.([]Taint); ok {
			list := make([]string, len(taints))
			for i, t := range taints {
				list[i] = t.String()
			}
			value = list
		}
		if !entries {
			add(name, name, value)
		}
	}
	for i, g := range s.MIG.GPU {
		entry := func(name string, stated bool, value any) {
			if stated {
				add("mig.gpu", fmt.Sprintf("mig.gpu[%d].%s", i, name), value)
			}
		}
		entry("match", len(g.Match) > 0, g.Match)
		entry("devices", !g.Devices.All, g.Devices.Index)
		entry("enabled", !g.Enabled, g.Enabled)
		entry("layout", len(g.Layout) > 0, g.Layout)
		entry("placements", len(g.Placements) > 0, g.Placements)
	}
	return all
}
