// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// ops lists what must change in file i so that the tree has the handler; none if it has it. How
// each version of containerd reads its files is in merge.go (newReader). inheritable says which
// keys a new handler takes over from the default one. A key that ops sets outside the handler's
// table needs a case in isIntended (validate.go) as well.
func (c *criTree) ops(i int, h engine.Handler) []toml.Op {
	f := c.files[i]
	ops := c.builtinOps(f, h)
	if entry := c.entry(h.Name); entry != nil {
		ops = append(ops, c.fixEntry(f, h, entry)...)
	} else {
		at := c.pathIn(f, "containerd", "runtimes")
		plugin := at[1]
		ops = append(ops, toml.Set(append(at, h.Name), c.inherit(h, plugin)))
	}

	byDefault := toml.String(toml.Sub(c.cri, "containerd"), "default_runtime_name")
	if h.Default && byDefault != h.Name {
		ops = append(ops, toml.Set(c.pathIn(f, "containerd", "default_runtime_name"), h.Name))
	}
	if h.CDI {
		ops = append(ops, c.cdiOps(f, h)...)
	}

	if len(ops) == 0 {
		return nil
	}
	if version, needed := c.versionFor(i); needed {
		ops = slices.Insert(ops, 0, toml.Set([]string{"version"}, version))
	}
	return ops
}

// versionFor is the version that a file without any key must begin with. A drop-in gets the root's
// version: 2.3 refuses a higher one, and on 2.0 to 2.2 the version of the last file counts for all
// (https://github.com/NVIDIA/aicr/issues/1688).
func (c *criTree) versionFor(i int) (version int64, needed bool) {
	root := c.files[0]
	switch {
	case !c.files[i].empty:
		return 0, false
	case i == 0:
		return c.reader.create, true
	case c.reader.merge == mergeThenMigrate && c.version != max(root.version, 2):
		return 0, false
	}

	return root.version, root.stated
}

// builtinOps add an entry for the built-in runc. containerd 1.x drops its own entry once a file
// names another runtime, and the CRI plugin does not load without its default runtime: nvidia-ctk
// has taken nodes down that way (https://github.com/NVIDIA/k8s-device-plugin/issues/1145).
func (c *criTree) builtinOps(f configFile, h engine.Handler) []toml.Op {
	if c.reader.merge != mergeWhole || h.Name == "runc" {
		return nil
	}
	if _, hasRunc := c.runtimes()["runc"]; hasRunc {
		return nil
	}

	needed := !h.Default && c.defaultName() == "runc"
	_, runtimes := toml.Field(toml.Sub(c.cri, "containerd"), "runtimes")
	if runtimes != nil && !needed {
		return nil
	}
	path := append(c.pathIn(f, "containerd", "runtimes"), "runc")
	return []toml.Op{toml.Set(path, toml.Table{}.With("runtime_type", runcV2))}
}

// fixEntry keeps what an operator wrote for the handler and sets the keys that gpuadm needs.
func (c *criTree) fixEntry(f configFile, h engine.Handler, entry map[string]any) []toml.Op {
	path := append(c.pathIn(f, "containerd", "runtimes"), h.Name)
	runtimes := toml.Sub(f.plugin(path[1]), "containerd", "runtimes")
	inFile, _ := runtimes[h.Name].(map[string]any)
	isV1 := c.reader.merge == mergeWhole

	var ops []toml.Op
	key, _ := toml.Field(entry, "runtime_type")
	kind := toml.String(entry, "runtime_type")
	if kind != runcV2 && !(isV1 && kind == runcV1) {
		ops = append(ops, toml.Set(append(slices.Clone(path), key), runcV2))
	}

	if isV1 {
		// Only the type io.containerd.runtime.v1.linux may have these, or the plugin does not load.
		for _, name := range []string{"runtime_engine", "runtime_root"} {
			key, value := toml.Field(inFile, name)
			if value != nil && value != "" {
				ops = append(ops, toml.Unset(append(slices.Clone(path), key)))
			}
		}
	}

	return append(ops, binaryOps(path, entry, h)...)
}

// binaryOps sets options.BinaryName of the entry at path, in the spelling that the entry has. The
// daemon ignores upper and lower case in this key.
func binaryOps(path []string, entry map[string]any, h engine.Handler) []toml.Op {
	options, _ := toml.Field(entry, "options")
	key, value := toml.Field(toml.Sub(entry, "options"), "BinaryName")
	if program, _ := value.(string); h.Runs(program) {
		return nil
	}
	return []toml.Op{toml.Set(append(slices.Clone(path), options, key), h.Binary)}
}

// cdiOps enables CDI where the daemon's default disables it. Where the configuration disables CDI,
// cdiOps enables it only for a spec with cdi = true.
func (c *criTree) cdiOps(f configFile, h engine.Handler) []toml.Op {
	_, value := toml.Field(c.cri, "enable_cdi")
	if value == false && !h.Overrides {
		return nil
	}

	isOff := false
	switch c.reader.cdi {
	case cdiOff:
		isOff = value != true
	case cdiOn:
		isOff = value == false
	}

	if !isOff {
		return nil
	}
	return []toml.Op{toml.Set(c.pathIn(f, "enable_cdi"), true)}
}

// pathIn is the path of a setting of the CRI plugin in a file, in the file's own spelling.
func (c *criTree) pathIn(f configFile, names ...string) []string {
	plugin := c.nameFor(f, names)
	path := []string{f.key("plugins"), plugin}
	table := f.plugin(plugin)
	for _, name := range names {
		key, value := toml.Field(table, name)
		path = append(path, key)
		table, _ = value.(map[string]any)
	}

	return path
}

// nameFor is the plugin name under which a setting takes effect when it is written into a file.
func (c *criTree) nameFor(f configFile, names []string) string {
	read := c.namesIn(f)
	scopes := c.scopes(f)
	if name := nameWith(scopes, read, names); name != "" {
		return name
	}

	if names[0] == "containerd" {
		if len(names) == 2 && names[1] != "runtimes" {
			return c.nameFor(f, []string{"containerd", "runtimes"})
		}
		if read[0] == criV3 && ignoresImages(scopes[0]) {
			return criV3
		}
	}

	for _, plugins := range scopes {
		for _, name := range read {
			table, isTable := plugins[name].(map[string]any)
			_, containerd := toml.Field(table, "containerd")
			if isTable && (containerd != nil || name == criV3 || f.version < 3) {
				return name
			}
		}
	}

	if f.version == 2 && slices.Contains(read, criV2) {
		return criV2
	}
	return read[0]
}

// scopes lists the tables of plugins that decide under which name a setting of a file takes effect,
// the first one first.
func (c *criTree) scopes(f configFile) []map[string]any {
	if c.reader.merge == mergeThenMigrate {
		return []map[string]any{c.raw} // migration looks at all files as one
	}

	scopes := []map[string]any{toml.Sub(f.tree, "plugins")}
	for _, other := range c.files {
		scopes = append(scopes, toml.Sub(other.tree, "plugins"))
	}
	return scopes
}

// nameWith returns the first plugin name that has a setting, "" if none has it.
func nameWith(scopes []map[string]any, read, names []string) string {
	last := len(names) - 1
	for _, plugins := range scopes {
		for _, name := range read {
			plugin, _ := plugins[name].(map[string]any)
			table := toml.Sub(plugin, names[:last]...)
			if _, value := toml.Field(table, names[last]); value != nil {
				return name
			}
		}
	}

	return ""
}

// ignoresImages says whether containerd 2.x ignores the image settings under the older plugin name
// because that plugin has no table of runtimes. With a handler there containerd would apply them,
// and change the node's snapshotter. Source: plugins/cri/images/plugin.go of containerd v2.1.0 and
// v2.3.0, whose migration returns early without that table; measured on 2.1.9, 2.3.4 and 2.4.2.
func ignoresImages(plugins map[string]any) bool {
	cri, _ := plugins[criV2].(map[string]any)
	containerd := toml.Sub(cri, "containerd")
	if toml.Sub(containerd, "runtimes") != nil {
		return false
	}

	for _, key := range []string{"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"} {
		if _, value := toml.Field(containerd, key); value != nil {
			return true
		}
	}

	return false
}
