// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, s, err := c.machine(nil)
			if errors.Is(err, errNoSpec) { // operators ask for the owners before they write a spec
				s = spec.Defaults()
				err = nil
			}
			if err != nil {
				return err
			}
			v := view.Within(h)
			f, err := facts.Gather(cmd.Context(), v, stages.OwnersNeeds(s))
			if err != nil {
				return err
			}
			list := ownerList{1, stages.Owners(cmd.Context(), v, s, f)}
			if err := show(c, list, c.ownersText); err != nil {
				return err
			}
			return list.unknown()
		},
	}
}

// ownersText prints one owner a line and, if two programs claim a part, the settings that end each
// claim.
func (c *common) ownersText(all ownerList) {
	for _, p := range all.Parts {
		rows(c.stdout, 0, 21, p.Name, ownerLines(p)...)
	}
}

// unknown is the error of a list with a part that could not be looked at.
func (l ownerList) unknown() error {
	for _, p := range l.Parts {
		if p.Unknown != "" {
			return &trouble.Unknown{Err: errors.New(p.Unknown)}
		}
	}
	return nil
}

func ownerLines(p stages.Part) []string {
	if p.Unknown != "" && p.Owner == nil {
		return []string{"unknown: " + p.Unknown}
	}
	if p.Owner == nil {
		return []string{"no owner: " + p.None}
	}
	lines := []string{p.Owner.Who + ": " + p.Owner.By}
	if len(p.Others) == 0 {
		return lines
	}

	for _, other := range p.Others {
		lines = append(lines, "! also "+other.Who+": "+other.By)
	}
	for _, claim := range append([]stages.Claim{*p.Owner}, p.Others...) {
		for _, e := range claim.Ends {
			ends := fmt.Sprintf("  to end the claim of %s (%s): %s", claim.Who, e.Where, e.Setting)
			lines = append(lines, ends)
		}
	}

	return lines
}
