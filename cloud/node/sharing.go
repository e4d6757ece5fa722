// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
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

// PluginEntry names the entry for a spec's [sharing]: equal sections have the same entry.
func PluginEntry(s spec.Sharing) string {
	var parts []string
	if s.Strategy != "none" {
		parts = append(parts, "mig-"+s.Strategy)
	}
	switch {
	case s.MPS > 0:
		parts = append(parts, fmt.Sprintf("mps-%d", s.MPS))
	case s.TimeSlicing > 0:
		parts = append(parts, fmt.Sprintf("time-slicing-%d", s.TimeSlicing))
	}
	if len(parts) == 0 {
		return "unshared"
	}
	return strings.Join(parts, "-")
}

// PluginManifest is a ConfigMap with the device plugin's configuration for nodes of this spec.
func PluginManifest(s spec.Spec, namespace string) (map[string]any, error) {
	if !s.Has("sharing") {
		return nil, &trouble.Error{
			What: "cannot print a configuration for the device plugin: node.toml has no [sharing]",
			Try:  []string{"write [sharing] with strategy, time_slicing or mps; gpuadm help spec has its keys"},
		}
	}
	text, err := yaml.Marshal(newPluginConfig(s))
	if err != nil {
		return nil, fmt.Errorf("internal error: cannot write the device plugin's configuration: %w", err)
	}
	return map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": PluginConfigs, "namespace": namespace},
		"data":       map[string]any{PluginEntry(s.Sharing): string(text)},
	}, nil
}

// pluginConfig is the device plugin's configuration.
// Source: api/config/v1 of https://github.com/NVIDIA/k8s-device-plugin; its README.
type pluginConfig struct {
	Version string
	Flags   map[string]any
	Sharing map[string]any `yaml:",omitempty"`
}

func newPluginConfig(s spec.Spec) pluginConfig {
	c := pluginConfig{
		Version: "v1",
		Flags:   map[string]any{"migStrategy": s.Sharing.Strategy},
	}
	// The plugin's default, an environment variable, gives no GPU to an unprivileged pod, or to a
	// pod without a handler.
	switch {
	case s.Runtime.Inject == "cdi":
		c.Flags["plugin"] = map[string]any{"deviceListStrategy": "cdi-cri"}
	case !s.Toolkit.AcceptEnvvarUnprivileged:
		c.Flags["plugin"] = map[string]any{"deviceListStrategy": "volume-mounts"}
	}

	gpu := map[string]any{"name": "nvidia.com/gpu", "replicas": s.Sharing.Replicas()}
	shared := map[string]any{"resources": []any{gpu}}
	switch {
	case s.Sharing.MPS > 0:
		c.Sharing = map[string]any{"mps": shared}
	case s.Sharing.TimeSlicing > 0:
		c.Sharing = map[string]any{"timeSlicing": shared}
	}
	return c
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
