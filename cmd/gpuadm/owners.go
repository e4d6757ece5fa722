// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/stages"
)

// ownerList is what `owners -o json` prints.
type ownerList struct {
	Format int           `json:"format"`
	Parts  []stages.Part `json:"parts"`
}

func newOwners(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "owners",
		Short: "show who owns each part of this node",
		Long: `Owners prints for driver, toolkit, CDI, handler, MIG, IMEX, and device plugin or
DRA: who owns it on this node, and by what evidence. Where another program tries
to manage it too, it prints the setting of each that ends the quarrel: a Helm
value of the GPU Operator with a ClusterPolicy or a GPUCluster, a label for one
pool, or a key of node.toml. It changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			s, err := c.spec(h, c.files)
			if err != nil {
				return err
			}
			f, err := facts.Gather(cmd.Context(), h, stages.OwnersNeeds(s))
			if err != nil {
				return err
			}
			parts, err := stages.Owners(cmd.Context(), h, s, f)
			if err != nil {
				return err
			}
			if c.output == "json" {
				return c.json(ownerList{1, parts})
			}
			ownersText(c.stdout, parts)
			return nil
		},
	}
}

// ownersText prints an owner a line. The settings are printed where two quarrel.
func ownersText(w io.Writer, parts []stages.Part) {
	for _, p := range parts {
		if p.Owner == nil {
			printf(w, "%-21s no owner: %s\n", p.Name, p.None)
			continue
		}
		printf(w, "%-21s %s: %s\n", p.Name, p.Owner.Who, p.Owner.By)
		if len(p.Others) == 0 {
			continue
		}
		for _, other := range p.Others {
			printf(w, "%-21s ! also %s: %s\n", "", other.Who, other.By)
		}
		for _, claim := range append([]stages.Claim{*p.Owner}, p.Others...) {
			for _, e := range claim.Ends {
				printf(w, "%-21s   to end the claim of %s (%s): %s\n", "", claim.Who, e.Where, e.Setting)
			}
		}
	}
}
