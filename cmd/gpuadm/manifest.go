// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// engineHandler is the handler's name if neither node.toml nor the engine's configuration names
// one.
const engineHandler = "nvidia"

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
	configuration := func(s spec.Spec) (string, map[string]any, error) {
		m, err := node.PluginManifest(s, namespace)
		return fmt.Sprintf("# The label that selects it, in node.toml: [node] labels = { %q = %q }\n", node.PluginConfigLabel, node.PluginEntry(s.Sharing)), m, err
	}
	plugin := &cobra.Command{
		Use:   "device-plugin",
		Short: "print the device plugin's configuration as a ConfigMap",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return c.manifest(configuration) },
	}
	plugin.Flags().StringVar(&namespace, "namespace", "nvidia-device-plugin", "`NAME` of the namespace in which the plugin runs")
	cmd.AddCommand(plugin)
	unknown := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args)
		}
		return c.manifest(func(s spec.Spec) (string, map[string]any, error) {
			if s.Runtime.Inject == "cdi" { // there is no handler to name
				return "", nil, nil
			}
			return runtimeClass(s)
		}, func(s spec.Spec) (string, map[string]any, error) {
			if !s.Has("sharing") {
				return "", nil, nil
			}
			return configuration(s)
		})
	}
	return cmd
}

// runtimeClass is the RuntimeClass of the spec's handler.
func runtimeClass(s spec.Spec) (string, map[string]any, error) {
	name := s.Runtime.Handler
	if name == "" || name == "auto" {
		name = engineHandler
	}
	return "", node.RuntimeClassManifest(name), nil
}

// manifest prints objects for the cluster, made of the spec alone: as YAML, each under its comment,
// or as JSON. What is nil is left out.
func (c *common) manifest(all ...func(spec.Spec) (comment string, object map[string]any, err error)) error {
	_, s, err := c.machine()
	if err != nil {
		return err
	}
	between := ""
	for _, of := range all {
		comment, object, err := of(s)
		if err == nil && object == nil {
			continue
		} else if err == nil && c.output == "json" {
			err = printJSON(c.stdout, object)
		} else if err == nil {
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

func newDaemonSet(c *common) *cobra.Command {
	var root string
	p := agent.Pod{
		Own:     func() (host.Host, error) { return c.open("/") },
		Read:    c.read,
		Getenv:  c.getenv,
		Program: c.self,
		Specs:   podSpecs,
		Follows: c.podFollows,
		Say:     c.say,
		Print:   func(output []byte) { _, _ = c.stdout.Write(output) },
	}
	p.Machine = func() (host.Host, error) { return c.open(root) }
	cmd := &cobra.Command{
		Use:   "daemonset",
		Short: "from a pod, keep its machine converged",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, done := onSignal(func() {})
			defer done()
			status, err := p.Run(cmd.Context(), stop)
			if err == nil && status != 0 {
				err = exit(status)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&root, "host", "/host", "`DIR` at which the machine's / is mounted")
	f.DurationVar(&p.Every, "every", 10*time.Minute, "time between two applies, up to a fifth more or less")
	f.BoolVar(&p.WithoutPolicy, "without-policy", false, "use the ServiceAccount also where no policy limits it")
	f.BoolVar(&p.Once, "once", false, "end after one apply that does not wait for anything")
	return cmd
}

// podSpecs returns the specs of the ConfigMap.
func podSpecs() []string {
	names, _ := filepath.Glob(specHome + "/*.toml") // the pattern is well-formed
	return names
}

// podFollows says whether the spec that the pod's apply will read has follow_label.
func (c *common) podFollows(machine host.View) bool {
	s, err := c.spec(machine, podSpecs())
	return err == nil && s.MIG.FollowLabel
}
