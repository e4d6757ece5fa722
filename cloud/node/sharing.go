// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// PluginConfigLabel selects, on a Node, the entry of the device plugin's ConfigMap for that node.
// PluginConfigs is that ConfigMap's name in the README and in the GPU Operator's pages.
// Sources: README of https://github.com/NVIDIA/k8s-device-plugin ("Updating Per-Node Configuration
// With a Node Label");
// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html.
const (
	PluginConfigLabel = "nvidia.com/device-plugin.config"
	PluginConfigs     = "nvidia-plugin-configs"
)

// PluginEntry names the entry for a spec: specs that ask the plugin for the same have the same
// entry.
func PluginEntry(s spec.Spec) string {
	var parts []string
	if strategy := s.Strategy(); strategy != "none" {
		parts = append(parts, "mig-"+strategy)
	}
	switch {
	case s.Sharing.MPS > 0:
		parts = append(parts, fmt.Sprintf("mps-%d", s.Sharing.MPS))
	case s.Sharing.TimeSlicing > 0:
		parts = append(parts, fmt.Sprintf("time-slicing-%d", s.Sharing.TimeSlicing))
	}

	if len(parts) == 0 {
		parts = []string{"unshared"}
	}
	if list := deviceList(s); list != "" {
		parts = append(parts, list)
	}
	return strings.Join(parts, "-")
}

// A Pool has the spec of some nodes, and the kinds of partitions that they will have: 1g.10gb.
type Pool struct {
	Spec  spec.Spec
	Kinds []string
}

// PluginManifest is a ConfigMap with the device plugin's configuration for the nodes of all pools:
// kubectl apply of a ConfigMap with the entry of one pool would remove that of another.
func PluginManifest(pools []Pool, namespace string) (map[string]any, error) {
	specs := map[string]spec.Spec{}
	kinds := map[string][]string{}
	for _, p := range pools {
		entry := PluginEntry(p.Spec)
		specs[entry] = p.Spec
		kinds[entry] = append(kinds[entry], p.Kinds...)
	}

	data := map[string]any{}
	for entry, s := range specs {
		slices.Sort(kinds[entry])
		text, err := yaml.Marshal(newPluginConfig(s, slices.Compact(kinds[entry])))
		if err != nil {
			return nil, fmt.Errorf("internal error: cannot write the device plugin's configuration: %w", err)
		}
		data[entry] = string(text)
	}

	return map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": PluginConfigs, "namespace": namespace},
		"data":       data,
	}, nil
}

// deviceList returns how the plugin hands GPUs to the runtime, "" for the plugin's default: an
// environment variable, which gives no GPU to an unprivileged pod, or to a pod without a handler.
func deviceList(s spec.Spec) string {
	switch {
	case s.Runtime.Inject == "cdi":
		return "cdi-cri"
	case !s.Toolkit.AcceptEnvvarUnprivileged:
		return "volume-mounts"
	}
	return ""
}

// pluginConfig is the device plugin's configuration.
// Source: api/config/v1 of https://github.com/NVIDIA/k8s-device-plugin; its README.
type pluginConfig struct {
	Version string
	Flags   map[string]any
	Sharing map[string]any `yaml:",omitempty"`
}

// mpsRoot is where NVIDIA's MPS control daemon keeps its files on the host, by the plugin's
// chart. The plugin does not start without it; a variable MPS_ROOT, which the chart sets, is
// preferred to this.
// Sources: NVIDIA/k8s-device-plugin, cmd/nvidia-device-plugin/main.go (validateFlags) and
// deployments/helm/nvidia-device-plugin/values.yaml; its issue 712, of a pod without the variable.
const mpsRoot = "/run/nvidia/mps"

func newPluginConfig(s spec.Spec, kinds []string) pluginConfig {
	strategy := s.Strategy()
	c := pluginConfig{
		Version: "v1",
		Flags:   map[string]any{"migStrategy": strategy},
	}
	if list := deviceList(s); list != "" {
		c.Flags["plugin"] = map[string]any{"deviceListStrategy": list}
	}

	if s.Sharing.MPS > 0 {
		c.Flags["mpsRoot"] = mpsRoot
	}

	names := []string{spec.WholeGPU}
	if strategy == "mixed" {
		for _, kind := range kinds {
			names = append(names, spec.PartitionResource(kind))
		}
	}

	var resources []any
	for _, name := range names {
		resources = append(resources, map[string]any{"name": name, "replicas": s.Sharing.Replicas()})
	}
	shared := map[string]any{"resources": resources}
	switch {
	case s.Sharing.MPS > 0:
		c.Sharing = map[string]any{"mps": shared}
	case s.Sharing.TimeSlicing > 0:
		c.Sharing = map[string]any{"timeSlicing": shared}
	}

	return c
}

// NamespaceManifest is a Namespace; nil for the namespaces that each cluster has.
// Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces/ ("Initial
// namespaces").
func NamespaceManifest(name string) map[string]any {
	initial := []string{"default", "kube-node-lease", "kube-public", "kube-system"}
	if slices.Contains(initial, name) {
		return nil
	}
	return map[string]any{
		"apiVersion": "v1",
		"kind":       "Namespace",
		"metadata":   map[string]any{"name": name},
	}
}

// RuntimeClassManifest is a RuntimeClass of the handler's name, for pods that name one.
// Source: https://kubernetes.io/docs/concepts/containers/runtime-class/.
func RuntimeClassManifest(handler string) map[string]any {
	return map[string]any{
		"apiVersion": "node.k8s.io/v1",
		"kind":       "RuntimeClass",
		"metadata":   map[string]any{"name": handler},
		"handler":    handler,
	}
}
