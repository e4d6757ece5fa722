// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// containerd 1.x reads its own field names as written, in capitals, or with a small first letter (go-toml v1),
// 2.x in any case of the letters (go-toml v2). 1.x does not decode escapes in the names of tables either. What a
// daemon does not read, the code here must not take for read: measured on 1.6.20, 1.7.24, 2.1.9, 2.3.4 and 2.4.2.

// unread says that 1.x ignores a key that means one of its fields.
func unread(key, name string) bool {
	return strings.EqualFold(key, name) && key != name && key != strings.ToUpper(name)
}

// withoutUnread is the tree of a file without what 1.x passes over within the CRI plugin. The tree stays as it is.
func withoutUnread(tree map[string]any) (map[string]any, error) {
	var ops []toml.Op
	hide := func(t map[string]any, at []string, fields ...string) {
		for key := range t {
			if slices.ContainsFunc(fields, func(name string) bool { return unread(key, name) }) {
				ops = append(ops, toml.Unset(append(slices.Clone(at), key)))
			}
		}
	}
	pluginsKey, v := toml.Field(tree, "plugins")
	plugins, _ := v.(map[string]any)
	for _, name := range []string{criV1, criV2} {
		cri, _ := plugins[name].(map[string]any)
		at := []string{pluginsKey, name}
		hide(cri, at, "containerd", "enable_cdi", "systemd_cgroup")
		containerd, at := tableRead(cri, at, "containerd")
		hide(containerd, at, "runtimes", "default_runtime_name", "default_runtime", "no_pivot")
		entry := []string{"runtime_type", "runtime_engine", "runtime_root", "options"}
		one, its := tableRead(containerd, at, "default_runtime")
		hide(one, its, entry...)
		runtimes, at := tableRead(containerd, at, "runtimes")
		at = slices.Clip(at)
		its = append(at, "")
		for name, v := range runtimes {
			one, _ := v.(map[string]any)
			its[len(at)] = name
			hide(one, its, entry...)
		}
	}
	if len(ops) == 0 {
		return tree, nil
	}
	return toml.Apply(tree, ops)
}

// tableRead is the table that 1.x reads by a name, and the path to it.
func tableRead(t map[string]any, at []string, name string) (map[string]any, []string) {
	for _, key := range []string{name, strings.ToUpper(name)} {
		if v, there := t[key]; there {
			table, _ := v.(map[string]any)
			return table, append(slices.Clone(at), key)
		}
	}
	return nil, nil
}
