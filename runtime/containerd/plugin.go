// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// checkPlugin says why the CRI plugin would not load with a configuration, as the daemon prints it.
// `config dump` exits with 0 for all of these: the plugin judges its settings only when it starts,
// and then the daemon serves no pods.
func checkPlugin(dump map[string]any, t Tree) error {
	_, cri := criOf(dump)
	if !loadsCRI(cri) {
		return fmt.Errorf("its default runtime %q is not configured", defaultOf(cri))
	}
	return checkRules(dump, t)
}

// checkRules has the plugin's rules about single settings, measured by starting 1.6.20, 1.7.24,
// 2.1.9, 2.3.4 and 2.4.2. A version without a setting does not print it.
// Sources: ValidatePluginConfig in pkg/cri/config/config.go (v1.6.20, v1.7.24), and
// ValidateImageConfig, ValidateRuntimeConfig and ValidateServerConfig in
// internal/cri/config/config.go (v2.0.0) of https://github.com/containerd/containerd.
func checkRules(dump map[string]any, t Tree) error {
	for _, name := range []string{criV2, criV3, imagesV3} {
		plugin := toml.Sub(dump, "plugins", name)
		if err := checkRegistry(toml.Sub(plugin, "registry"), t); err != nil {
			return err
		}
		if err := checkTimes(plugin, t); err != nil {
			return err
		}
		if err := checkPrivileged(toml.Sub(plugin, "containerd", "runtimes"), t); err != nil {
			return err
		}
	}
	return nil
}

// imagesV3 is the part of the CRI plugin that has the registries, from containerd 2.0 on.
const imagesV3 = "io.containerd.cri.v1.images"

// checkRegistry refuses mirrors, or a TLS setting of a registry, beside config_path.
func checkRegistry(registry map[string]any, t Tree) error {
	if toml.String(registry, "config_path") == "" {
		return nil
	}

	if len(toml.Sub(registry, "mirrors")) > 0 {
		return besideConfigPath(t, "registry", "mirrors")
	}
	configs := toml.Sub(registry, "configs")
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		if toml.Sub(configs, name, "tls") != nil {
			return besideConfigPath(t, "registry", "configs", name, "tls")
		}
	}
	return nil
}

func besideConfigPath(t Tree, setting ...string) error {
	return fmt.Errorf("its CRI plugin does not load: %s%s is there beside registry.config_path; take one of them out",
		t.fileWith(setting...), strings.Join(setting, "."))
}

// checkTimes refuses a duration that is none.
func checkTimes(plugin map[string]any, t Tree) error {
	for _, key := range []string{
		"stream_idle_timeout", "drain_exec_sync_io_timeout", "image_pull_progress_timeout",
	} {
		text := toml.String(plugin, key)
		if text == "" {
			continue
		}
		if _, err := time.ParseDuration(text); err != nil {
			return fmt.Errorf("its CRI plugin does not load: %s%s = %q is not a duration such as \"4h0m0s\"", t.fileWith(key), key, text)
		}
	}
	return nil
}

// checkPrivileged refuses a runtime that gives privileged containers all devices, and none of the
// host's.
func checkPrivileged(runtimes map[string]any, t Tree) error {
	const (
		with    = "privileged_without_host_devices_all_devices_allowed"
		without = "privileged_without_host_devices"
	)
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		entry := toml.Sub(runtimes, name)
		if entry[with] == true && entry[without] != true {
			file := t.fileWith("containerd", "runtimes", name, with)
			return fmt.Errorf("its CRI plugin does not load: %sruntimes.%s has %s without %s", file, name, with, without)
		}
	}

	return nil
}

// fileWith is the last file with a setting of the CRI plugin, as the beginning of a clause: "FILE:
// "; "" where no file has it.
func (t Tree) fileWith(setting ...string) string {
	files, err := readFiles(t)
	if err != nil {
		return ""
	}

	found := ""
	last := len(setting) - 1
	for _, f := range files {
		for _, name := range []string{criV2, criV3, imagesV3} {
			table := toml.Sub(f.plugin(name), setting[:last]...)
			if _, value := toml.Field(table, setting[last]); value != nil {
				found = f.path + ": "
			}
		}
	}

	return found
}
