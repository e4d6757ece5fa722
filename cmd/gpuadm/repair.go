// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

func newRepair(c *common) *cobra.Command {
	var a applyFlags
	cmd := &cobra.Command{
		Use:               "repair [CODE]",
		Short:             "fix one fault that doctor names",
		Args:              atMostOne("code"),
		ValidArgsFunction: repairCodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return show(c, repairList{1, stages.Repairs()}, c.repairsText)
			}
			return c.runRepair(cmd.Context(), strings.ToUpper(args[0]), a)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&a.dryRun, "dry-run", false, "print what would change")
	f.BoolP("yes", "y", false, yesUsage)
	f.StringSliceVar(&a.allow, "allow", nil, allowUsage)
	return cmd
}

// repairCodes completes the codes of faults.
func repairCodes(*cobra.Command, []string, string) (codes []string, _ cobra.ShellCompDirective) {
	for _, r := range stages.Repairs() {
		codes = append(codes, r.Code+"\t"+r.About)
	}
	return codes, cobra.ShellCompDirectiveNoFileComp
}

// runRepair repairs one fault.
func (c *common) runRepair(ctx context.Context, code string, a applyFlags) error {
	if err := allowable(a.allow); err != nil {
		return err
	}
	e, h, err := c.repair(code)
	if err != nil {
		return err
	}
	if !a.dryRun {
		if err := c.mayTouch("repair " + e.Repair); err != nil {
			return err
		}
	}

	if err := c.provenFault(ctx, h, code); err != nil {
		return err
	}

	if a.dryRun {
		c.planVerb = "repair --dry-run"
		return c.planWith(ctx, e, h, false)
	}
	e.Allow = a.allow
	return c.apply(ctx, e, h)
}

// provenFault refuses the repair of a fault that doctor does not find now, or that another fault
// causes. A repair that was cut short goes on: it may have ended what doctor would find.
func (c *common) provenFault(ctx context.Context, h host.Host, code string) error {
	if !h.Live() {
		return usage{fmt.Errorf("cannot repair %s in the files of another machine: doctor cannot find it there", code)}
	}
	if converge.ReadJournal(h).Repairing() == code {
		return nil
	}
	c.noCUDA = true // no repair needs it
	all := view.DeadlineIn(doctor.Wait)
	report, err := c.examine(ctx, h, view.WithinAll(h, all), all)
	if err != nil {
		return err
	}

	for _, cause := range report.Causes {
		if cause.Code != code {
			continue
		}
		if cause.NoRepair == "" {
			return nil
		}
		return &trouble.Error{
			What:    fmt.Sprintf("cannot repair %s: %s", code, cause.NoRepair),
			Because: []string{cause.Found[0].What},
			Try:     cause.Commands,
		}
	}

	for _, cause := range report.Causes {
		if slices.ContainsFunc(cause.Explains, func(f doctor.Found) bool { return f.Code == code }) {
			return &trouble.Error{
				What:    fmt.Sprintf("cannot repair %s: %s brings it along", code, cause.Code),
				Because: []string{cause.Code + ", " + cause.Title + ": " + cause.Found[0].What},
				Try:     []string{c.command("doctor") + "    names the fix of " + cause.Code},
			}
		}
	}

	return c.notFound(code, report)
}

// notFound says that doctor does not find a fault. Where doctor could not read all of the machine,
// the fault may be there: the same command may succeed later.
func (c *common) notFound(code string, report doctor.Report) error {
	t := &trouble.Error{
		What: fmt.Sprintf("cannot repair %s: %s is not found on this machine", code, code),
		Try:  []string{c.command("doctor") + "    names what is wrong"},
	}
	for _, u := range report.Unread {
		t.Passing = true
		t.Because = append(t.Because, "not checked: "+u.What+": "+u.Why)
	}

	return t
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

// noRepair returns the error for a fault without a repair, with the command to type instead.
func noRepair(code string) error {
	all := doctor.Checks()
	i := slices.IndexFunc(all, func(c doctor.Check) bool { return c.Code == code })
	if i < 0 {
		return &trouble.Error{
			What: fmt.Sprintf("cannot repair %s: doctor has no such code", code),
			Try: append(codesLike("repair", code),
				trouble.Command("doctor")+"    names what is wrong",
				trouble.Command("repair")+"    lists what it can fix",
			),
		}
	}

	return &trouble.Error{
		What: fmt.Sprintf("cannot repair %s: %s", code, all[i].NoRepair),
		Try: []string{
			"by hand: " + all[i].Fix,
			trouble.Command("doctor") + "    names the commands for this machine",
		},
	}
}

// repairOf is the repair of a fault.
func repairOf(code string) (stages.Repair, bool) {
	all := stages.Repairs()
	i := slices.IndexFunc(all, func(r stages.Repair) bool { return r.Code == code })
	if i < 0 {
		return stages.Repair{}, false
	}
	return all[i], true
}

// repair prepares the repair of one fault. The spec decides whether apply is the fix, and what
// gpuadm may interrupt; a machine needs no spec for a repair.
func (c *common) repair(code string) (*converge.Engine, host.Host, error) {
	r, found := repairOf(code)
	if !found {
		return nil, nil, usage{noRepair(code)}
	}

	h, s, err := c.machine(c.follower())
	if errors.Is(err, errNoSpec) {
		s, err = spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n")})
	}
	if err != nil {
		return nil, nil, err
	}
	if r.Section != "" && s.Has(r.Section) {
		return nil, nil, usage{&trouble.Error{
			What: fmt.Sprintf("cannot repair %s beside node.toml: it has [%s], so apply is the fix", code, r.Section),
			Try:  []string{c.typed("apply")},
		}}
	}

	h = view.Apart(h)
	c.repairs = true
	c.chosen = []string{code}
	e, _ := c.newEngine(h)
	repairing(e, s, r)
	return e, h, nil
}

// repairing has an engine repair one fault.
func repairing(e *converge.Engine, s spec.Spec, r stages.Repair) {
	e.Stages = []converge.Stage{r.Stage()}
	e.Spec = s
	e.Repair = r.Code
}
