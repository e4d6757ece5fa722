// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/mig"
)

// engineHandler is the handler's name if neither node.toml nor the engine's configuration names
// one.
const engineHandler = "nvidia"

// A manifestOf makes an object for the cluster of the spec, and the comment above it; nil: the spec
// asks for none.
type manifestOf func(host.View, spec.Spec) (comment string, object map[string]any, err error)

// A pluginFlags has the flags of the device plugin's configuration.
type pluginFlags struct {
	namespace string
	pools     []string // specs of other pools
}

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

	var flags pluginFlags
	configuration := func(v host.View, s spec.Spec) (string, map[string]any, error) {
		return c.pluginConfig(v, s, flags)
	}
	plugin := &cobra.Command{
		Use:   "device-plugin",
		Short: "print the device plugin's configuration as a ConfigMap",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return c.manifest(configuration) },
	}
	// In a new cluster the plugin's chart makes the namespace only later.
	namespace := func(host.View, spec.Spec) (string, map[string]any, error) {
		return "", node.NamespaceManifest(flags.namespace), nil
	}
	for _, takes := range []*cobra.Command{cmd, plugin} {
		takes.Flags().StringVar(&flags.namespace, "namespace", "nvidia-device-plugin",
			"`NAME` of the namespace in which the device plugin runs")
		takes.Flags().StringArrayVar(&flags.pools, "pool", nil,
			"also for the nodes of the spec `FILE`; repeatable")
	}

	cmd.AddCommand(plugin)

	hasHandler := func(s spec.Spec) bool { return s.Runtime.Inject != "cdi" }
	unknown := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args)
		}
		return c.manifest(
			manifestOf(runtimeClass).onlyIf(hasHandler),
			namespace,
			configuration)
	}

	return cmd
}

// onlyIf makes no object where the spec does not need it.
func (of manifestOf) onlyIf(needed func(spec.Spec) bool) manifestOf {
	return func(v host.View, s spec.Spec) (string, map[string]any, error) {
		if !needed(s) {
			return "", nil, nil
		}
		return of(v, s)
	}
}

// runtimeClass is the RuntimeClass of the spec's handler.
func runtimeClass(_ host.View, s spec.Spec) (comment string, object map[string]any, err error) {
	name := s.Runtime.Handler
	if name == "" || name == "auto" {
		name = engineHandler
	}
	return "", node.RuntimeClassManifest(name), nil
}

// pluginConfig is the device plugin's configuration as a ConfigMap, with an entry for each pool.
func (c *common) pluginConfig(
	v host.View, s spec.Spec, flags pluginFlags,
) (comment string, object map[string]any, err error) {
	first, err := c.poolOf(v, s)
	if err != nil {
		return "", nil, err
	}
	pools := []node.Pool{first}
	comment = labelComment("in node.toml", s)
	for _, name := range flags.pools {
		other, err := c.spec(v, []string{name})
		if err != nil {
			return "", nil, err
		}
		pool, err := c.poolOf(v, other)
		if err != nil {
			return "", nil, err
		}
		pools = append(pools, pool)
		comment += labelComment("in "+name, other)
	}

	object, err = node.PluginManifest(pools, flags.namespace)
	return comment, object, err
}

func labelComment(where string, s spec.Spec) string {
	return fmt.Sprintf("# The label that selects it, %s: [node] labels = { %q = %q }\n",
		where, node.PluginConfigLabel, node.PluginEntry(s))
}

// poolOf has what the device plugin's configuration for nodes of a spec is made of. The kinds of
// partitions count where each has a resource of its own that is shared; then a layout's file is
// read.
func (c *common) poolOf(v host.View, s spec.Spec) (node.Pool, error) {
	pool := node.Pool{Spec: s}
	if s.Strategy() != "mixed" || s.Sharing.Replicas() == 1 {
		return pool, nil
	}

	var file []byte
	if s.MIG.File != "" {
		data, err := v.ReadFile(s.MIG.File)
		if err != nil {
			return pool, fmt.Errorf("cannot read the kinds of partitions that are shared: %w", err)
		}
		file = data
	}

	var err error
	isSecret := asker(c.getenv) != "" && !host.Public(v, s.MIG.File)
	if s.MIG.FollowLabel && s.MIG.Layout == "" {
		pool.Kinds, err = mig.AllKinds(s.MIG.File, file, isSecret)
		return pool, err
	}
	entries, err := mig.Asked(s.MIG, file, isSecret)
	if err != nil {
		return pool, err
	}
	pool.Kinds = mig.Kinds(entries)
	return pool, nil
}

// manifest prints objects for the cluster, made of the spec alone: as YAML, each under its comment,
// or as JSON. What is nil is left out.
func (c *common) manifest(all ...manifestOf) error {
	h, s, err := c.machine(nil)
	if err != nil {
		return err
	}

	// Half an answer is worse than none: kubectl apply -f - would apply it.
	var answer bytes.Buffer
	between := ""
	for _, of := range all {
		comment, object, err := of(h, s)
		switch {
		case err != nil:
			return err
		case object == nil:
			continue
		case c.output == "json":
			err = printJSON(&answer, object)
		default:
			text, _ := yaml.Marshal(object) // it is of texts and numbers
			answer.WriteString(between + comment + string(text))
		}

		if err != nil {
			return err
		}
		between = "---\n"
	}

	_, err = c.stdout.Write(answer.Bytes())
	return err
}
