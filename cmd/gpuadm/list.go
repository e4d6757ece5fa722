// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/stages"
)

func newStages(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "stages",
		Short: "list the stages, in order",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			type stage struct {
				Name  string `json:"name"`
				About string `json:"about"`
			}
			var list []stage
			for _, st := range stages.Sequence() {
				list = append(list, stage{st.Name, st.About})
			}
			if c.output == "json" {
				return c.json(map[string]any{"format": 1, "stages": list})
			}
			for _, st := range list {
				printf(c.stdout, "%-12s %s\n", st.Name, st.About)
			}
			return nil
		},
	}
}
