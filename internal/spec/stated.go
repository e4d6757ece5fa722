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
func (p Places) Stated(s Spec) (all []Stated) {
	for _, r := range table() {
		if r.Section == "" || strings.HasPrefix(r.Section, "mig.gpu") {
			continue
		}

		name := r.Section + "." + r.Name
		switch value := reflect.ValueOf(r.ref(&s)).Elem().Interface().(type) {
		case map[string]string:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				all = p.add(all, name+"."+key, name+"."+show(key), value[key])
			}
		case []Taint:
			all = p.add(all, name, name, taintTexts(value))
		default:
			all = p.add(all, name, name, value)
		}
	}

	for i, gpu := range s.MIG.GPU {
		prefix := fmt.Sprintf("mig.gpu[%d].", i)
		for _, key := range gpu.stated() {
			all = p.add(all, "mig.gpu", prefix+key.Key, key.Value)
		}
	}

	return all
}

// add adds a key and its value, if a file states something at the place.
func (p Places) add(all []Stated, place, key string, value any) []Stated {
	at := p.of[place]
	if at.src == nil {
		return all
	}
	return append(all, Stated{
		Key:   key,
		Value: value,
		File:  at.src.name,
		Line:  at.src.lineOf(at.at) + 1,
	})
}

func taintTexts(taints []Taint) []string {
	texts := make([]string, len(taints))
	for i, t := range taints {
		texts[i] = t.String()
	}
	return texts
}

// stated returns the keys of one [[mig.gpu]] that differ from their defaults.
func (g MIGGPU) stated() (keys []Stated) {
	if len(g.Match) > 0 {
		keys = append(keys, Stated{Key: "match", Value: g.Match})
	}
	if !g.Devices.All {
		keys = append(keys, Stated{Key: "devices", Value: g.Devices.Index})
	}
	if !g.Enabled {
		keys = append(keys, Stated{Key: "enabled", Value: g.Enabled})
	}
	if len(g.Layout) > 0 {
		keys = append(keys, Stated{Key: "layout", Value: g.Layout})
	}
	if len(g.Placements) > 0 {
		keys = append(keys, Stated{Key: "placements", Value: g.Placements})
	}
	return keys
}
