// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// TOML writes a spec as one node.toml, which Parse reads as the same spec. It has the sections of
// the spec, and the keys whose values are not the defaults: another version of gpuadm reads it as
// it reads any node.toml. Comments of the files, which may hold anything, are not in it.
func (s Spec) TOML() []byte {
	if s.MIG.FollowLabel {
		s.MIG.Layout = "" // the node's label names it, and no file can
	}

	root := map[string]any{"format": format}
	for _, name := range s.Sections {
		root[name] = map[string]any{}
	}
	for _, r := range table() {
		if r.Section == "" || strings.HasPrefix(r.Section, "mig.gpu") {
			continue
		}
		value := reflect.ValueOf(r.ref(&s)).Elem().Interface()
		stated := r.Section+"."+r.Name == "runtime.cdi" && s.Runtime.CDIStated
		if stated || !r.isDefault(value) {
			section := root
			for part := range strings.SplitSeq(r.Section, ".") {
				section = subTable(section, part)
			}
			section[r.Name] = written(value)
		}
	}

	for _, gpu := range s.MIG.GPU {
		mig := subTable(root, "mig")
		list, _ := mig["gpu"].([]map[string]any)
		mig["gpu"] = append(list, gpu.table())
	}

	var text bytes.Buffer
	_ = toml.NewEncoder(&text).Encode(root) // strings, numbers, lists and maps: it cannot fail
	return text.Bytes()
}

// subTable returns a table of a table, and makes it if it is missing.
func subTable(t map[string]any, name string) map[string]any {
	if t[name] == nil {
		t[name] = map[string]any{}
	}
	return t[name].(map[string]any)
}

// isDefault says whether a key has the value that it has in a file without the key.
func (r row) isDefault(value any) bool {
	is := reflect.ValueOf(value)
	switch is.Kind() {
	case reflect.Map, reflect.Slice:
		return is.Len() == 0
	}

	def := reflect.New(is.Type())
	setDefault(def.Interface(), r.Default)
	return is.Interface() == def.Elem().Interface()
}

// written returns a value as a file states it.
func written(value any) any {
	taints, ok := value.([]Taint)
	if !ok {
		return value
	}

	list := make([]string, len(taints))
	for i, t := range taints {
		list[i] = t.String()
	}
	return list
}

// table returns one [[mig.gpu]] as a file states it.
func (g MIGGPU) table() map[string]any {
	t := map[string]any{}
	if len(g.Match) > 0 {
		t["match"] = g.Match
	}
	if !g.Devices.All {
		t["devices"] = g.Devices.Index
	}
	if !g.Enabled {
		t["enabled"] = false
	}
	if len(g.Layout) > 0 {
		t["layout"] = g.Layout
	}

	var placements []map[string]any
	for _, p := range g.Placements {
		placements = append(placements, map[string]any{"profile": p.Profile, "start": p.Start})
	}
	if placements != nil {
		t["placements"] = placements
	}
	return t
}
