// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// engineHandler is the handler's name if neither node.toml nor the engine's configuration names
// one.
const engineHandler = "nvidia"

// A manifestOf makes an object for the cluster of the spec, and the comment above it; nil: the spec
// asks for none.
type manifestOf func(spec.Spec) (comment string, object map[string]any, err error)

func newManifest(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manifest",
		Short: "print what the cluster needs for such nodes: kubectl apply -f -",
	}
	group(cmd)
	cmd.AddCommand(&cobra.Command{
		Use:   "runtimeclass",
		Short: "print a RuntimeClass of the runtime handler",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return c.manifest(runtimeClass) },
	})

	namespace := ""
	configuration := func(s spec.Spec) (string, map[string]any, error) { return pluginConfig(s, namespace) }
	plugin := &cobra.Command{
		Use:   "device-plugin",
		Short: "print the device plugin's configuration as a ConfigMap",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return c.manifest(configuration) },
	}
	plugin.Flags().StringVar(&namespace, "namespace", "nvidia-device-plugin", "`NAME` of the namespace in which the plugin runs")
	cmd.AddCommand(plugin)

	hasHandler := func(s spec.Spec) bool { return s.Runtime.Inject != "cdi" }
	hasSharing := func(s spec.Spec) bool { return s.Has("sharing") }
	unknown := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args)
		}
		return c.manifest(
			manifestOf(runtimeClass).onlyIf(hasHandler),
			manifestOf(configuration).onlyIf(hasSharing))
	}
	return cmd
}

// onlyIf makes no object where the spec does not need it.
func (of manifestOf) onlyIf(needed func(spec.Spec) bool) manifestOf {
	return func(s spec.Spec) (string, map[string]any, error) {
		if !needed(s) {
			return "", nil, nil
		}
		return of(s)
	}
}

// runtimeClass is the RuntimeClass of the spec's handler.
func runtimeClass(s spec.Spec) (comment string, object map[string]any, err error) {
	name := s.Runtime.Handler
	if name == "" || name == "auto" {
		name = engineHandler
	}
	return "", node.RuntimeClassManifest(name), nil
}

// pluginConfig is the device plugin's configuration as a ConfigMap.
func pluginConfig(s spec.Spec, namespace string) (comment string, object map[string]any, err error) {
	entry := node.PluginEntry(s.Sharing)
	comment = fmt.Sprintf("# The label that selects it, in node.toml: [node] labels = { %q = %q }\n", node.PluginConfigLabel, entry)
	object, err = node.PluginManifest(s, namespace)
	return comment, object, err
}

// manifest prints objects for the cluster, made of the spec alone: as YAML, each under its comment,
// or as JSON. What is nil is left out.
func (c *common) manifest(all ...manifestOf) error {
	_, s, err := c.machine(nil)
	if err != nil {
		return err
	}

	between := ""
	for _, of := range all {
		comment, object, err := of(s)
		switch {
		case err != nil:
			return err
		case object == nil:
			continue
		case c.output == "json":
			err = printJSON(c.stdout, object)
		default:
			text, _ := yaml.Marshal(object) // it is of texts and numbers
			_, err = io.WriteString(c.stdout, between+comment+string(text))
		}
		if err != nil {
			return err
		}
		between = "---\n"
	}
	return nil
}
