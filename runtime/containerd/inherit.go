// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Types of a runtime that runs runc or something that takes its options.
const (
	runcV2 = "io.containerd.runc.v2"
	runcV1 = "io.containerd.runc.v1" // gone in 2.0
)

// inherit makes a new handler's table from the runtime that pods get today, so that cgroups, base
// spec, CNI and annotations stay the same and only the binary differs.
func (c *criTree) inherit(h engine.Handler, plugin string) toml.Table {
	template := c.template(h)
	kind := toml.String(template, "runtime_type")
	entry := toml.Table{}.With("runtime_type", runcV2)
	for _, pair := range toml.Sorted(template) {
		if isZero(pair.Value) || !inheritable(pair.Key, kind) {
			continue
		}
		if pair.Key == "sandboxer" && plugin != criV3 && template["sandbox_mode"] == nil {
			pair.Key = "sandbox_mode" // as files of version 2 call it, and migration has renamed it
		}
		entry = append(entry, pair)
	}

	options := toml.Table{}.With("BinaryName", h.Binary)
	if isRunc(kind) {
		options = append(options, inheritedOptions(template)...)
	}
	isCgroups := func(pair toml.Pair) bool {
		return strings.EqualFold(pair.Key, "SystemdCgroup")
	}
	if h.Systemd && !slices.ContainsFunc(options, isCgroups) {
		options = options.With("SystemdCgroup", true)
	}
	return entry.With("options", options)
}

// inheritedOptions are runc's options but for the program. An empty value is the daemon's default,
// and is left out; SystemdCgroup is written even so.
func inheritedOptions(template map[string]any) toml.Table {
	var options toml.Table
	for _, pair := range toml.Sorted(toml.Sub(template, "options")) {
		if strings.EqualFold(pair.Key, "BinaryName") {
			continue
		}
		if !isZero(pair.Value) || strings.EqualFold(pair.Key, "SystemdCgroup") {
			options = append(options, pair)
		}
	}

	return options
}

// template is the entry to inherit from: the default one, else runc, else crun, else any that takes
// runc's options. If none takes them, it is the default one all the same, such as kata.
func (c *criTree) template(h engine.Handler) map[string]any {
	names := []string{c.defaultName(), "runc", "crun"}
	names = append(names, slices.Sorted(maps.Keys(c.runtimes()))...)
	for _, name := range names {
		entry := c.entry(name)
		if entry != nil && name != h.Name && isRunc(toml.String(entry, "runtime_type")) {
			return entry
		}
	}

	return c.entry(c.defaultName())
}

// isRunc says whether options are those of runc, by the runtime's type. A missing type is runc's on
// 2.x, which fills it in.
func isRunc(kind string) bool { return kind == runcV2 || kind == runcV1 || kind == "" }

// inheritable says whether a key means the same for the new handler. A foreign type's own settings
// do not: kata's privileged_without_host_devices would take the GPUs from privileged pods.
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
