// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// inherit makes a new handler's table from the runtime that pods get today, so that cgroups, base spec, CNI and
// annotations stay the same and only the binary differs.
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
			// What is empty is the daemon's default; SystemdCgroup is worth seeing even so.
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

// template is the entry to inherit from: the default one, else runc, else crun, else any that takes runc's options.
// Only if there is none, it is a foreign default such as kata.
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

// isRunc says that the options are those of runc. A missing type is runc's on 2.x, which fills it in.
func isRunc(kind string) bool { return kind == runcV2 || kind == runcV1 || kind == "" }

// inheritable are the keys that mean the same for the new handler. A foreign type's own settings do not: kata's
// privileged_without_host_devices would take the GPUs from privileged pods.
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
