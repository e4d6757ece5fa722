// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
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
	for _, what := range toolkit.Faults(m.View, m.Basics()) {
		list = append(list, Finding{
			Object:  toolkit.Config,
			What:    what,
			Command: "sudo nvidia-ctk config",
		})
	}
	return append(list, m.toolkitWithoutCgroups()...)
}

// toolkitWithoutCgroups finds a toolkit that knows no cgroup v2. Sources: the release notes of
// libnvidia-container 1.8.0; https://github.com/NVIDIA/k8s-device-plugin/issues/324.
func (m *Machine) toolkitWithoutCgroups() []Finding {
	const library = "libnvidia-container1"
	version := m.Packages().packages[library].Version
	minor, known := minorOf(version)
	if !known || minor >= 8 || m.Basics().Cgroup != 2 {
		return nil
	}
	return []Finding{{
		Object:  library,
		What:    fmt.Sprintf("%s %s cannot use cgroup v2, which this machine has: cgroup subsystem devices not found", library, version),
		Fix:     "install a toolkit of 1.8 or newer: with [toolkit] in node.toml, " + trouble.Command("apply") + " does",
		Command: trouble.Command("plan toolkit"),
	}}
}

// minorOf is the second number of a version of the toolkit, 1.18.0-1.
func minorOf(version string) (minor int, known bool) {
	_, rest, isFirst := strings.Cut(version, "1.")
	number, _, _ := strings.Cut(rest, ".")
	minor, err := strconv.Atoi(number)
	return minor, isFirst && strings.HasPrefix(version, "1.") && err == nil
}

// noCgroups applies only where the toolkit's hook adds the devices: since 1.18.0 mode = "auto" does
// not use the hook.
// Sources: internal/info/auto.go in https://github.com/NVIDIA/nvidia-container-toolkit (v1.18.0),
// and its release notes.
func noCgroups(m *Machine) []Finding {
	keys := m.toolkit()
	if keys["no-cgroups"] != "true" || m.Basics().Kubelet.Unit == "" || len(m.GPUs()) == 0 {
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
		if minor, known := minorOf(m.Packages().packages[name].Version); known {
			return minor < 18
		}
	}
	return false
}

func emptyRoot(m *Machine) []Finding {
	root := m.toolkit()["root"]
	if root == "" || root == "/" || !m.ownDriver() {
		return nil
	}
	if m.Facts().Driver == nil || m.Basics().Kubelet.Unit == "" {
		return nil
	}
	if names, err := m.View.ReadDir(root); len(names) > 0 || err != nil && m.has(root) {
		return nil
	}
	return []Finding{{
		Object: root,
		What:   fmt.Sprintf("%s has root = %q, where no driver is; the machine has its own", toolkit.Config, root),
	}}
}

// otherDefault asks the engine which handler the device plugin's pod runs with: without NVIDIA's it
// finds no driver, and waits or ends, which each of its versions words in another way.
func otherDefault(m *Machine) []Finding {
	e, c, ok := m.engine()
	if !ok || e.Name == "docker" {
		return nil
	}
	_, answers := m.NVML()
	registered := m.has(facts.PluginSockets + "/nvidia-gpu.sock")
	if !answers || registered || isNvidia(c.Programs[c.Default]) {
		return nil
	}
	programs := slices.Collect(maps.Values(c.Programs))
	if !slices.ContainsFunc(programs, isNvidia) {
		return nil
	}

	pods, _ := engine.Sandboxes(m.ctx, m.View, e)
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		isPlugin := strings.Contains(pod, "nvidia") && strings.Contains(pod, "device-plugin")
		if !isPlugin || isNvidia(c.Programs[pods[pod]]) {
			continue
		}
		file := decidingFile(e, "default_runtime")
		defaultHandler := cmp.Or(c.Default, "runc")
		handler := cmp.Or(pods[pod], defaultHandler)
		return []Finding{{
			Object: file,
			What:   fmt.Sprintf("the pod %s runs with the handler %s and has not registered with kubelet; the default handler in %s is %s", pod, handler, file, defaultHandler),
		}}
	}

	return nil
}

// decidingFile returns the file whose value of a key counts: a drop-in wins over the file that
// imports it.
func decidingFile(e facts.Engine, key string) string {
	for _, f := range slices.Backward(e.Files) {
		if len(linesWith(f.Data, key)) > 0 {
			return f.Path
		}
	}
	return e.Config
}

// linesWith returns the lines of a file that have a text, but for comments.
func linesWith(data []byte, text string) (lines []string) {
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, text) && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// engineNotServing finds an engine that runs, and does not answer CRI or says that it is not ready.
func engineNotServing(m *Machine) []Finding {
	e, _, ok := m.engine()
	if !ok || e.Name == "docker" || e.Unit == "" || !m.Basics().Kubelet.Joined {
		return nil
	}
	if u, known := m.Unit(e.Unit); !known || u.Active != "active" || u.Uptime-u.Since < time.Minute {
		return nil
	}

	conditions, _, err := engine.Status(m.ctx, m.View, e)
	switch {
	case errors.As(err, &host.Later{}):
		return nil
	case errors.Is(err, fs.ErrPermission):
		m.cannotRead("the answer of "+e.Name, err)
		return nil
	case err != nil:
		conditions = map[string]string{"RuntimeReady": err.Error()}
	}

	if conditions["RuntimeReady"] == "" {
		return nil
	}

	return []Finding{{
		Object:  e.Unit,
		What:    fmt.Sprintf("%s runs, and does not serve pods: %s", e.Unit, conditions["RuntimeReady"]),
		Command: "sudo journalctl -u " + e.Unit + " -n 50",
	}}
}

// networkSetting is the line that names the folder with networks: conf_dir of containerd, network_dir
// of CRI-O, in the file that is read last; "" if no file names one.
func networkSetting(e facts.Engine) (line string) {
	for _, f := range e.Files {
		for _, key := range []string{"conf_dir", "network_dir"} {
			for _, stated := range linesWith(f.Data, key) {
				line = stated
			}
		}
	}
	return line
}

// noNetwork knows the endings that an engine reads: loadFromConfDir in
// https://github.com/containerd/go-cni, and ConfFiles in
// https://github.com/containernetworking/cni.
func noNetwork(m *Machine) []Finding {
	const folder = "/etc/cni/net.d"
	k := m.Basics().Kubelet
	e, _, ok := m.engine()
	if !ok || e.Name == "docker" || !k.Joined || m.isDown(k) || m.generates() || m.Basics().Booting {
		return nil
	}
	if stated := networkSetting(e); stated != "" && !strings.Contains(stated, folder) {
		return nil
	}

	conditions, _, _ := engine.Status(m.ctx, m.View, e)
	if conditions["NetworkReady"] != "" {
		return []Finding{{
			Object: folder,
			What:   fmt.Sprintf("%s says of the pods' network: %s", e.Name, conditions["NetworkReady"]),
		}}
	}

	isConfig := func(name string) bool {
		return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
	}
	names, err := m.View.ReadDir(folder)
	if err != nil || slices.ContainsFunc(names, isConfig) {
		return nil
	}
	return []Finding{{Object: folder, What: folder + " has no network configuration"}}
}
