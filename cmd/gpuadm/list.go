// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/stages"
)

// stageList is what `stages -o json` prints.
type stageList struct {
	Format int         `json:"format"`
	Stages []stageLine `json:"stages"`
}

type stageLine struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

func newStages(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "stages",
		Short: "list the stages, in order",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			list := stageList{Format: 1}
			for _, st := range stages.Sequence() {
				list.Stages = append(list.Stages, stageLine{st.Name, st.About})
			}
			if c.output == "json" {
				return c.json(list)
			}
			for _, st := range list.Stages {
				printf(c.stdout, "%-12s %s\n", st.Name, st.About)
			}
			return nil
		},
	}
}
