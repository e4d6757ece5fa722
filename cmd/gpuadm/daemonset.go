// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/host"
)

func newDaemonSet(c *common) *cobra.Command {
	var root string
	p := agent.Pod{
		Own:     func() (host.Host, error) { return c.open("/", nil) },
		Read:    c.read,
		Getenv:  c.getenv,
		Program: c.self,
		Specs:   podSpecs,
		Follows: c.podFollows,
		Say:     c.say,
		Print:   func(output []byte) { _, _ = c.stdout.Write(output) },
	}
	p.Machine = func() (host.Host, error) { return c.open(root, nil) }
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
