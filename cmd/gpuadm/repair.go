// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

func newRepair(c *common) *cobra.Command {
	var a applyFlags
	cmd := &cobra.Command{
		Use:   "repair [CODE]",
		Short: "fix one fault that doctor names",
		Long: `Repair fixes one fault by its code, as apply would: it plans first, asks before it
interrupts anything, writes each change to the journal before it makes it, and
verifies it afterwards. gpuadm undo reverts it.

A repair needs no spec. Later applies leave what it made. Where node.toml has the
section that the fault belongs to, apply is the fix: repair says so and exits
with 2. Without a code repair lists what it can fix.`,
		Example: "  gpuadm repair\n  gpuadm repair RUN-002 --dry-run\n  gpuadm repair RUN-002",
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) (codes []string, _ cobra.ShellCompDirective) {
			for _, r := range stages.Repairs() {
				codes = append(codes, r.Code+"\t"+r.About)
			}
			return codes, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return show(c, repairList{1, stages.Repairs()}, c.repairsText)
			}
			if err := allowable(a.allow); err != nil {
				return err
			}
			e, h, err := c.repair(strings.ToUpper(args[0]))
			if err != nil {
				return err
			}
			if a.dryRun {
				c.planVerb = "repair --dry-run"
				return c.planWith(cmd.Context(), e, h, false)
			}
			if err := c.mayTouch("repair " + e.Repair); err != nil {
				return err
			}
			e.Allow = a.allow
			return c.apply(cmd.Context(), e, h)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&a.dryRun, "dry-run", false, "print what would change")
	f.BoolP("yes", "y", false, yesUsage)
	f.StringSliceVar(&a.allow, "allow", nil, allowUsage)
	return cmd
}

// repairList is what `repair -o json` prints.
type repairList struct {
	Format  int             `json:"format"`
	Repairs []stages.Repair `json:"repairs"`
}

func (c *common) repairsText(all repairList) {
	for _, r := range all.Repairs {
		rows(c.stdout, 0, 8, r.Code, r.About)
	}
}

// noRepair says why a fault has no repair, and what to type instead.
func noRepair(code string) error {
	all := doctor.Checks()
	i := slices.IndexFunc(all, func(c doctor.Check) bool { return c.Code == code })
	if i < 0 {
		return &trouble.Error{
			What: fmt.Sprintf("cannot repair %s: doctor has no such code", code),
			Try:  []string{trouble.Command("doctor") + "    names what is wrong", trouble.Command("repair") + "    lists what it can fix"},
		}
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot repair %s: %s", code, all[i].NoRepair),
		Try:  []string{"by hand: " + all[i].Fix, trouble.Command("doctor") + "    names the commands for this machine"},
	}
}

// repair makes ready to repair one fault. The spec says whether apply is the fix, and what may be interrupted; a machine without one
// is repaired all the same.
func (c *common) repair(code string) (*converge.Engine, host.Host, error) {
	all := stages.Repairs()
	i := slices.IndexFunc(all, func(r stages.Repair) bool { return r.Code == code })
	if i < 0 {
		return nil, nil, usage{noRepair(code)}
	}
	h, err := c.open(c.rootDir)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.spec(h, c.files)
	if errors.Is(err, errNoSpec) {
		s, err = spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n")})
	}
	if err != nil {
		return nil, nil, err
	}
	if r := all[i]; r.Section != "" && s.Has(r.Section) {
		return nil, nil, usage{&trouble.Error{
			What: fmt.Sprintf("cannot repair %s beside node.toml: it has [%s], so apply is the fix", code, r.Section),
			Try:  []string{c.typed("apply")},
		}}
	}
	c.repairs, c.chosen = true, []string{code}
	e, _ := c.newEngine(h)
	e.Stages, e.Spec, e.Repair = []converge.Stage{all[i].Stage()}, s, code
	return e, h, nil
}
