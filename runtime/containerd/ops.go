// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Types of a runtime that runs runc or something that takes its options.
const (
	runcV2 = "io.containerd.runc.v2"
	runcV1 = "io.containerd.runc.v1" // gone in 2.0
)

// ops lists what must change in file i so that the tree has the handler; none if it has it. How
// each version of containerd reads its files is in merge.go (newReader). inheritable says which
// keys a new handler takes over from the default one. A key that ops sets outside the handler's
// table needs a case in meant (validate.go) as well.
func (c *criTree) ops(i int, h engine.Handler) ([]toml.Op, error) {
	f := c.files[i]
	ops := c.builtinOps(f, h)
	if entry, there := toml.Sub(c.cri, "containerd", "runtimes")[h.Name].(map[string]any); there {
		ops = append(ops, c.fixEntry(f, h, entry)...)
	} else {
		at := c.at(f, "containerd", "runtimes")
		ops = append(ops, toml.Set(append(at, h.Name), c.inherit(h, at[1])))
	}
	if h.Default && toml.String(toml.Sub(c.cri, "containerd"), "default_runtime_name") != h.Name {
		ops = append(ops, toml.Set(c.at(f, "containerd", "default_runtime_name"), h.Name))
	}
	if h.CDI {
		ops = append(ops, c.cdiOps(f, h)...)
	}
	if v, ok := c.versionFor(i); ok && len(ops) > 0 {
		ops = slices.Insert(ops, 0, toml.Set([]string{"version"}, v))
	}
	return ops, nil
}

// versionFor is the version that a file without any key must begin with. A drop-in states the
// root's version: 2.3 refuses a higher one, and on 2.0 to 2.2 the version of the last file counts
// for all (https://github.com/NVIDIA/aicr/issues/1688).
func (c *criTree) versionFor(i int) (int64, bool) {
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

// inherit makes a new handler's table from the runtime that pods get today, so that cgroups, base
// spec, CNI and annotations stay the same and only the binary differs.
func (c *criTree) inherit(h engine.Handler, plugin string) toml.Table {
	like := c.template(h)
	kind := toml.String(like, "runtime_type")
	options := toml.Table{}.With("BinaryName", h.Binary)
	entry := toml.Table{}.With("runtime_type", runcV2)
	for _, p := range toml.Sorted(like) {
		if inheritable(p.Key, kind) && !isZero(p.Value) {
			if plugin != criV3 && p.Key == "sandboxer" && like["sandbox_mode"] == nil {
				p.Key = "sandbox_mode" // as files of version 2 call it, and migration has renamed it
			}
			entry = append(entry, p)
		}
	}
	if isRunc(kind) {
		for _, p := range toml.Sorted(toml.Sub(like, "options")) {
			// An empty value is the daemon's default, and is left out; SystemdCgroup is written
			// even so.
			if !strings.EqualFold(p.Key, "BinaryName") && (!isZero(p.Value) || strings.EqualFold(p.Key, "SystemdCgroup")) {
				options = append(options, p)
			}
		}
	}
	if h.Systemd && !slices.ContainsFunc(options, func(p toml.Pair) bool { return strings.EqualFold(p.Key, "SystemdCgroup") }) {
		options = options.With("SystemdCgroup", true)
	}
	return entry.With("options", options)
}

// template is the entry to inherit from: the default one, else runc, else crun, else any that takes
// runc's options. If none takes them, it is the default one all the same, such as kata.
func (c *criTree) template(h engine.Handler) map[string]any {
	runtimes := toml.Sub(c.cri, "containerd", "runtimes")
	fits := func(name string) bool {
		entry, ok := runtimes[name].(map[string]any)
		return ok && name != h.Name && isRunc(toml.String(entry, "runtime_type"))
	}
	names := []string{c.defaultName(), "runc", "crun"}
	if i := slices.IndexFunc(names, fits); i >= 0 {
		entry, _ := runtimes[names[i]].(map[string]any)
		return entry
	}
	if others := slices.DeleteFunc(slices.Collect(maps.Keys(runtimes)), func(name string) bool { return !fits(name) }); len(others) > 0 {
		entry, _ := runtimes[slices.Min(others)].(map[string]any)
		return entry
	}
	foreign, _ := runtimes[c.defaultName()].(map[string]any)
	return foreign
}

// isRunc says that the options are those of runc. A missing type is runc's on 2.x, which fills it
// in.
func isRunc(kind string) bool { return kind == runcV2 || kind == runcV1 || kind == "" }

// inheritable are the keys that mean the same for the new handler. A foreign type's own settings do
// not: kata's privileged_without_host_devices would take the GPUs from privileged pods.
func inheritable(key, kind string) bool {
	switch strings.ToLower(key) {
	case "runtime_type", "runtime_engine", "runtime_root", "options":
		return false
	case "runtime_path":
		return kind == runcV2
	case "cni_conf_dir", "cni_max_conf_num", "base_runtime_spec":
		return true
	}
	return isRunc(kind)
}

// builtinOps add an entry for the built-in runc. containerd 1.x drops its own entry once a file
// names another runtime, and the CRI plugin does not load without its default runtime: nvidia-ctk
// has taken nodes down that way (https://github.com/NVIDIA/k8s-device-plugin/issues/1145).
func (c *criTree) builtinOps(f configFile, h engine.Handler) []toml.Op {
	containerd := toml.Sub(c.cri, "containerd")
	_, stated := toml.Field(containerd, "runtimes")
	_, runc := toml.Sub(containerd, "runtimes")["runc"]
	if c.reader.merge != mergeWhole || runc || h.Name == "runc" {
		return nil
	}
	needed := !h.Default && c.defaultName() == "runc"
	if stated != nil && !needed {
		return nil
	}
	return []toml.Op{toml.Set(append(c.at(f, "containerd", "runtimes"), "runc"), toml.Table{}.With("runtime_type", runcV2))}
}

// fixEntry keeps what an operator wrote for the handler and sets the keys that gpuadm needs.
func (c *criTree) fixEntry(f configFile, h engine.Handler, entry map[string]any) []toml.Op {
	at := append(c.at(f, "containerd", "runtimes"), h.Name)
	own := toml.Sub(f.plugin(at[1]), "containerd", "runtimes")
	stated, _ := own[h.Name].(map[string]any)
	v1 := c.reader.merge == mergeWhole
	kind := toml.String(entry, "runtime_type")
	var ops []toml.Op
	if kind != runcV2 && !(v1 && kind == runcV1) {
		key, _ := toml.Field(entry, "runtime_type")
		ops = append(ops, toml.Set(append(slices.Clone(at), key), runcV2))
	}
	for _, name := range []string{"runtime_engine", "runtime_root"} { // only the type io.containerd.runtime.v1.linux may have them, or the plugin does not load
		if key, v := toml.Field(stated, name); v1 && v != nil && v != "" {
			ops = append(ops, toml.Unset(append(slices.Clone(at), key)))
		}
	}
	return append(ops, c.binaryOps(at, entry, h)...)
}

// binaryOps sets options.BinaryName, in the spelling that is there. The daemon ignores upper and
// lower case in this key.
func (c *criTree) binaryOps(at []string, entry map[string]any, h engine.Handler) []toml.Op {
	key, _ := toml.Field(entry, "options")
	name, v := toml.Field(toml.Sub(entry, "options"), "BinaryName")
	if program, _ := v.(string); h.Runs(program) {
		return nil
	}
	return []toml.Op{toml.Set(append(slices.Clone(at), key, name), h.Binary)}
}

// cdiOps enables CDI where the daemon's default disables it. Where the configuration disables CDI,
// cdiOps enables it only for a spec with cdi = true.
func (c *criTree) cdiOps(f configFile, h engine.Handler) []toml.Op {
	_, v := toml.Field(c.cri, "enable_cdi")
	if v == false && !h.Overrides {
		return nil
	}
	if c.reader.cdi == cdiOff && v != true || c.reader.cdi == cdiOn && v == false {
		return []toml.Op{toml.Set(c.at(f, "enable_cdi"), true)}
	}
	return nil
}

// at is the path of a setting of the CRI plugin in a file, in the file's own spelling.
func (c *criTree) at(f configFile, names ...string) []string {
	path := []string{"plugins", c.nameFor(f, names)}
	path[0], _ = toml.Field(f.tree, "plugins")
	table := f.plugin(path[1])
	for _, name := range names {
		key, v := toml.Field(table, name)
		path = append(path, key)
		table, _ = v.(map[string]any)
	}
	return path
}

// nameFor is the plugin name under which a setting takes effect when it is written into a file.
func (c *criTree) nameFor(f configFile, names []string) string {
	read := c.namesIn(f)
	scopes := []map[string]any{toml.Sub(f.tree, "plugins")}
	for _, other := range c.files {
		scopes = append(scopes, toml.Sub(other.tree, "plugins"))
	}
	if c.reader.merge == mergeThenMigrate {
		scopes = []map[string]any{c.raw} // migration looks at all files as one
	}
	up := names[:len(names)-1]
	for _, plugins := range scopes {
		for _, name := range read {
			table, _ := plugins[name].(map[string]any)
			if _, v := toml.Field(toml.Sub(table, up...), names[len(names)-1]); v != nil {
				return name
			}
		}
	}
	if names[0] == "containerd" && len(names) == 2 && names[1] != "runtimes" {
		return c.nameFor(f, []string{"containerd", "runtimes"})
	}
	if names[0] == "containerd" && read[0] == criV3 && ignoresImages(scopes[0]) {
		return criV3
	}
	for _, plugins := range scopes {
		for _, name := range read {
			table, ok := plugins[name].(map[string]any)
			if _, v := toml.Field(table, "containerd"); ok && (v != nil || name == criV3 || f.version < 3) {
				return name
			}
		}
	}
	if f.version == 2 && slices.Contains(read, criV2) {
		return criV2
	}
	return read[0]
}

// ignoresImages says whether containerd 2.x ignores the image settings under the older plugin name
// because no table of runtimes is beside them. With a handler there containerd would apply them,
// and change the node's snapshotter. Source: plugins/cri/images/plugin.go of containerd v2.1.0 and
// v2.3.0, whose migration returns early without that table; measured on 2.1.9, 2.3.4 and 2.4.2.
func ignoresImages(plugins map[string]any) bool {
	cri, _ := plugins[criV2].(map[string]any)
	containerd := toml.Sub(cri, "containerd")
	for _, key := range []string{"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"} {
		if _, set := toml.Field(containerd, key); set != nil && toml.Sub(containerd, "runtimes") == nil {
			return true
		}
	}
	return false
}

func (c *criTree) defaultName() string {
	if name := toml.String(toml.Sub(c.cri, "containerd"), "default_runtime_name"); name != "" {
		return name
	}
	return "runc"
}

// programOf is what an entry runs, "" if it does not say.
func programOf(entry map[string]any) string {
	return cmp.Or(toml.String(toml.Sub(entry, "options"), "BinaryName"), toml.String(entry, "runtime_engine"))
}

// lacking says what an engine's configuration lacks of a handler, "" if nothing.
func lacking(e facts.Engine, h engine.Handler) string {
	c, err := asRead(e)
	if err != nil {
		return err.Error()
	}
	return c.lacks(h)
}

// lacks is lacking for a tree that is parsed already.
func (c *criTree) lacks(h engine.Handler) string {
	config := c.files[0].path
	runtimes := toml.Sub(c.cri, "containerd", "runtimes")
	entry, found := runtimes[h.Name].(map[string]any)
	switch program := programOf(entry); {
	case !found:
		return fmt.Sprintf("%s has no such handler, only %s", config, cmp.Or(strings.Join(slices.Sorted(maps.Keys(runtimes)), ", "), "the built-in runc"))
	case program == "":
		return fmt.Sprintf("in %s it names no program, so it runs runc", config)
	case !slices.Contains(h.Programs, program):
		return fmt.Sprintf("in %s it runs %s, which is not there or is no NVIDIA runtime", config, program)
	case h.Default && c.defaultName() != h.Name:
		return fmt.Sprintf("the default in %s is %s", config, c.defaultName())
	case h.CDI && h.Overrides && len(c.cdiOps(c.files[0], h)) > 0:
		return fmt.Sprintf("CDI is off in %s", config)
	}
	return ""
}

// asDefault is engine.DefaultRuns for containerd: an entry of the owner's may run another program.
func asDefault(s spec.Spec, f facts.Facts, c *criTree, h engine.Handler) (engine.Handler, []converge.Want) {
	program := h.Binary
	if p := programOf(toml.Sub(c.cri, "containerd", "runtimes", h.Name)); h.Runs(p) {
		program = p
	}
	return engine.DefaultRuns(s, f, h, program, c.lacks(h) != "")
}
