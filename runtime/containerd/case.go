// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// checkSpelling refuses a file with a setting that containerd 1.x passes over because of how its name is written: what gpuadm would write
// beside it, the daemon would pass over too. 1.x reads its own field names as written or in capitals (go-toml v1), 2.x in any case of the
// letters (go-toml v2). 1.x does not decode escapes in the names of tables either. Measured on 1.6.20, 1.7.24, 2.1.9, 2.3.4 and 2.4.2.
func (f configFile) checkSpelling(r criReader) error {
	if !r.known || r.merge != mergeWhole {
		return nil
	}
	var found [][2]string // as it is written, and as it must be
	read := func(table map[string]any, fields ...string) {
		for key := range table {
			i := slices.IndexFunc(fields, func(name string) bool { return strings.EqualFold(name, key) })
			if i >= 0 && key != fields[i] && key != strings.ToUpper(fields[i]) {
				found = append(found, [2]string{key, fields[i]})
			}
		}
	}
	read(f.tree, "version", "imports", "plugins", "disabled_plugins")
	cri := f.plugin(criV2)
	read(cri, "containerd", "enable_cdi")
	containerd := toml.Sub(cri, "containerd")
	read(containerd, "runtimes", "default_runtime_name", "default_runtime")
	for _, entry := range toml.Sub(containerd, "runtimes") {
		table, _ := entry.(map[string]any)
		read(table, "runtime_type", "runtime_engine", "runtime_root", "options")
	}
	if len(found) == 0 && !bytes.ContainsRune(f.data, '\\') {
		return nil
	}
	d, err := toml.Parse(f.data)
	if err != nil {
		return err
	}
	for path, raw := range d.Keys() {
		name := path[len(path)-1]
		if i := slices.IndexFunc(found, func(f [2]string) bool { return f[0] == name }); i >= 0 {
			return f.refuse(RefusedNames, path, fmt.Sprintf("%s does not read %s: it minds upper and lower case", r.daemon, name), "write "+found[i][1])
		}
		if len(path) == 2 && name == criV2 && strings.ContainsRune(raw, '\\') {
			return f.refuse(RefusedNames, path, fmt.Sprintf("%s does not decode the escape in %s", r.daemon, raw), fmt.Sprintf("write %q", name))
		}
	}
	return nil
}
