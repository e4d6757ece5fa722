// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/runtime"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
)

var toolkitKey = pattern.Of(`(?m)^[ \t]*(root|no-cgroups|mode)[ \t]*=[ \t]*"?([^"#\n]*?)"?[ \t]*(?:#.*)?$`)

// toolkit are keys of the toolkit's file; of mode the first, which is the runtime's.
func (m *Machine) toolkit() map[string]string {
	text, _ := m.text(toolkit.Config)
	keys := map[string]string{}
	for _, found := range toolkitKey().FindAllStringSubmatch(text, -1) {
		if _, there := keys[found[1]]; !there {
			keys[found[1]] = found[2]
		}
	}
	return keys
}

func toolkitFaults(m *Machine) (list []Finding) {
	for _, what := range toolkit.Faults(m.View, m.Facts()) {
		list = append(list, Finding{Object: toolkit.Config, What: what, Command: "sudo nvidia-ctk config"})
	}
	return list
}

// noCgroups applies only where the toolkit's hook adds the devices: since 1.18.0 mode = "auto" does not use the hook.
// Sources: internal/info/auto.go in https://github.com/NVIDIA/nvidia-container-toolkit (v1.18.0), and its release notes.
func noCgroups(m *Machine) []Finding {
	keys := m.toolkit()
	if keys["no-cgroups"] != "true" || m.Facts().Kubelet.Unit == "" || len(m.GPUs()) == 0 {
		return nil
	}
	if mode := keys["mode"]; mode != "legacy" && (mode != "auto" && mode != "" || !m.hooks()) {
		return nil
	}
	return []Finding{{Object: toolkit.Config, What: toolkit.Config + " has no-cgroups = true"}}
}

// hooks says whether the toolkit's package is older than 1.18.
func (m *Machine) hooks() bool {
	for _, name := range []string{"nvidia-container-toolkit-base", "nvidia-container-toolkit"} {
		version := m.Packages().packages[name].Version
		_, minor, ok := strings.Cut(version, "1.")
		minor, _, _ = strings.Cut(minor, ".")
		if n, err := strconv.Atoi(minor); ok && strings.HasPrefix(version, "1.") && err == nil {
			return n < 18
		}
	}
	return false
}

func emptyRoot(m *Machine) []Finding {
	root := m.toolkit()["root"]
	if root == "" || root == "/" || !m.ownDriver() || m.Facts().Driver == nil || m.Facts().Kubelet.Unit == "" {
		return nil
	}
	if names, err := m.View.ReadDir(root); len(names) > 0 || err != nil && m.has(root) {
		return nil
	}
	return []Finding{{Object: root, What: fmt.Sprintf("%s has root = %q, where no driver is; the machine has its own", toolkit.Config, root)}}
}

// otherDefault goes by what the plugin says in a container without NVIDIA's libraries: cmd/nvidia-device-plugin/main.go and
// internal/rm of https://github.com/NVIDIA/k8s-device-plugin, as its issues 406 and 478 show it.
func otherDefault(m *Machine) []Finding {
	e, c, ok := m.engine()
	if _, answers := m.NVML(); !ok || !answers || len(m.plugins()) > 0 || isNvidia(c.Programs[c.Default]) ||
		!slices.ContainsFunc(slices.Collect(maps.Values(c.Programs)), isNvidia) {
		return nil
	}
	const folder = "/var/log/pods"
	pods, _ := m.View.ReadDir(folder)
	for _, pod := range pods {
		if !strings.Contains(pod, "nvidia") || !strings.Contains(pod, "device-plugin") || !m.logs(path.Join(folder, pod), "could not load NVML library: libnvidia-ml.so.1") {
			continue
		}
		namespace, rest, _ := strings.Cut(pod, "_")
		name, _, _ := strings.Cut(rest, "_")
		return []Finding{{Object: e.Config, What: fmt.Sprintf("the pod %s/%s finds no libnvidia-ml.so.1 in its container, and the default handler in %s is %s", namespace, name, e.Config, cmp.Or(c.Default, "runc"))}}
	}
	return nil
}

// logs says whether a container of a pod has logged a text. kubelet keeps the log of the container that ended, beside that of the next.
func (m *Machine) logs(pod, what string) bool {
	containers, _ := m.View.ReadDir(pod)
	for _, container := range containers {
		names, _ := m.View.ReadDir(path.Join(pod, container))
		for _, name := range names {
			if text, _ := m.text(path.Join(pod, container, name)); strings.Contains(text, what) {
				return true
			}
		}
	}
	return false
}

// noNetwork knows the endings that an engine reads: loadFromConfDir in https://github.com/containerd/go-cni, and ConfFiles in
// https://github.com/containernetworking/cni.
func noNetwork(m *Machine) []Finding {
	const folder = "/etc/cni/net.d"
	k := m.Facts().Kubelet
	e, _, ok := m.engine()
	if !ok || e.Name == "docker" || !k.Joined || m.stopped(k) || m.generates() || m.Facts().Booting {
		return nil
	}
	if text, _ := m.text(e.Config); strings.Contains(text, "conf_dir") && !strings.Contains(text, folder) || strings.Contains(text, "network_dir") {
		return nil
	}
	names, err := m.View.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		ctx, end := context.WithTimeout(m.ctx, nodePatience)
		defer end()
		if why := runtime.NoNetwork(ctx, m.View, e); why != "" {
			return []Finding{{Object: folder, What: fmt.Sprintf("%s does not exist, and %s says: %s", folder, e.Name, why)}}
		}
	}
	if err != nil || slices.ContainsFunc(names, func(n string) bool { return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(n)) }) {
		return nil
	}
	return []Finding{{Object: folder, What: folder + " has no network configuration"}}
}
