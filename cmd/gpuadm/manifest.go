// SPDX-FileCopyrightText: The gpuadm authors
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

// engineHandler is the handler's name where node.toml leaves it open and the engine has none of another's.
const engineHandler = "nvidia"

func newManifest(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manifest",
		Short: "print what the cluster needs for nodes of this spec, for kubectl apply -f -",
	}
	group(cmd)
	cmd.AddCommand(&cobra.Command{
		Use:   "runtimeclass",
		Short: "print a RuntimeClass of the runtime handler",
		Long: `Runtimeclass prints a RuntimeClass with the handler of [runtime], for pods that name
it in runtimeClassName. Where the handler is the engine's default, and with
CDI by the device plugin, the DRA driver or NRI, pods need none.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return c.manifest(func(s spec.Spec) (string, map[string]any, error) {
				name := s.Runtime.Handler
				if name == "" || name == "auto" {
					name = engineHandler
				}
				return "", node.RuntimeClassManifest(name), nil
			})
		},
	})
	namespace := ""
	plugin := &cobra.Command{
		Use:   "device-plugin",
		Short: "print the device plugin's configuration as a ConfigMap",
		Long: `Device-plugin prints what [sharing] says as a configuration of NVIDIA's device plugin,
in a ConfigMap: the MIG strategy, time slicing or MPS. It has one entry, named after
what [sharing] says; where nodes differ, put the entries into one ConfigMap. The
plugin's DaemonSet reads it if its chart has config.name=nvidia-plugin-configs (with
the GPU Operator: devicePlugin.config.name of the ClusterPolicy), and takes the entry
that the Node's label nvidia.com/device-plugin.config names.

A device plugin that runs as a unit of the machine reads no ConfigMap.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return c.manifest(func(s spec.Spec) (string, map[string]any, error) {
				m, err := node.PluginManifest(s, namespace)
				label := fmt.Sprintf("# The label that selects it, in node.toml: [node] labels = { %q = %q }\n", node.PluginConfigLabel, node.PluginEntry(s.Sharing))
				return label, m, err
			})
		},
	}
	plugin.Flags().StringVar(&namespace, "namespace", "nvidia-device-plugin", "`NAME` of the namespace in which the plugin runs")
	cmd.AddCommand(plugin)
	return cmd
}

// manifest prints an object for the cluster, made of the spec alone: as YAML under a comment, or as JSON.
func (c *common) manifest(of func(spec.Spec) (comment string, object map[string]any, err error)) error {
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	s, err := c.spec(h, c.files)
	if err != nil {
		return err
	}
	comment, object, err := of(s)
	if err != nil {
		return err
	}
	if c.output == "json" {
		return printJSON(c.stdout, object)
	}
	text, err := yaml.Marshal(object)
	if err != nil {
		return fmt.Errorf("internal error: cannot write a manifest: %w", err)
	}
	_, err = io.WriteString(c.stdout, comment+string(text)) // what is in it was checked when the spec was read
	return err
}
