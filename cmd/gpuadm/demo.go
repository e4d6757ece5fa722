// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

//go:build demo

package main

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// demoNode is the simulated machine: Ubuntu 24.04 with 8 × H100 and a kubeadm containerd.
//
//go:embed demo.txtar
var demoNode []byte

// demoVerbs is what a build for `make demo` has beside the product's verbs.
func demoVerbs(c *common) []*cobra.Command { return []*cobra.Command{newDemo(c)} }

func newDemo(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "show a simulated node through plan, apply, apply, undo",
		Long: `Demo takes a simulated node, Ubuntu 24.04 with 8 × H100, through the real engine,
and prints what you would see on a real one. It touches nothing on this machine,
and needs neither root nor a GPU.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := simhost.New(demoNode)
			if err != nil {
				return fmt.Errorf("internal error: %w", err)
			}
			sim := c.env
			sim.root = true
			sim.open = func(string) (host.Host, error) { return node, nil }
			for _, line := range []string{
				"cat /etc/gpuadm/node.toml",
				"gpuadm plan",
				"gpuadm plan runtime",
				"gpuadm apply",
				"gpuadm apply",
				"gpuadm status",
				"gpuadm undo",
				"gpuadm status",
			} {
				printf(c.stdout, "\nnode# %s\n", line)
				if name, ok := strings.CutPrefix(line, "cat "); ok {
					text, err := node.ReadFile(name)
					if err != nil {
						return err
					}
					c.stdout.Write(text)
					continue
				}
				code := run(cmd.Context(), sim, strings.Fields(line)[1:])
				if code != 0 && code != exitPending {
					return exit(code)
				}
			}
			return nil
		},
	}
}
