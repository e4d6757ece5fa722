// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// containerd 1.x reads its own field names as written, in capitals, or with a small first letter (go-toml v1),
// 2.x in any case of the letters (go-toml v2). 1.x does not decode escapes in the names of tables either. What a
// daemon does not read, the code here must not take for read: measured on 1.6.20, 1.7.24, 2.1.9, 2.3.4 and 2.4.2.

// checkSpelling refuses a file for 1.x whose settings that daemon passes over because of how a name is written.
func (f configFile) checkSpelling(r criReader) error {
	for _, name := range []string{"version", "imports", "plugins", "disabled_plugins"} {
		for _, p := range toml.Sorted(f.tree) {
			if unread(p.Key, name) {
				return f.refuse(RefusedNames, []string{p.Key}, fmt.Sprintf("%s does not read %s: it minds upper and lower case", r.daemon, p.Key), "write "+name)
			}
		}
	}
	if !bytes.ContainsRune(f.data, '\\') {
		return nil
	}
	d, err := toml.Parse(f.data)
	if err != nil {
		return err
	}
	for path, raw := range d.Keys() {
		if name := path[len(path)-1]; len(path) == 2 && (name == criV2 || name == criV1) && strings.ContainsRune(raw, '\\') {
			return f.refuse(RefusedNames, path, fmt.Sprintf("%s does not decode the escape in %s", r.daemon, raw), fmt.Sprintf("write %q", name))
		}
	}
	return nil
}

// unread says that 1.x ignores a key that means one of its fields.
func unread(key, name string) bool {
	return strings.EqualFold(key, name) && key != name && key != strings.ToUpper(name)
}

// hideUnread takes out of the tree of a file what 1.x passes over within the CRI plugin.
func hideUnread(plugins map[string]any) {
	for _, name := range []string{criV1, criV2} {
		cri, _ := plugins[name].(map[string]any)
		hide(cri, "containerd", "enable_cdi", "systemd_cgroup")
		containerd := sub(cri, "containerd")
		hide(containerd, "runtimes", "default_runtime_name", "default_runtime", "no_pivot")
		entries := []any{sub(containerd, "default_runtime")}
		for _, p := range sub(containerd, "runtimes") {
			entries = append(entries, p)
		}
		for _, v := range entries {
			entry, _ := v.(map[string]any)
			hide(entry, "runtime_type", "runtime_engine", "runtime_root", "options")
		}
	}
}

func hide(t map[string]any, fields ...string) {
	for key := range t {
		if slices.ContainsFunc(fields, func(name string) bool { return unread(key, name) }) {
			delete(t, key)
		}
	}
}
