// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/spf13/cobra"
)

func newRepair(c *common) *cobra.Command {
	var a applyFlags
	cmd := &cobra.Command{
		Use:   "repair [CODE]",
		Short: "fix one fault that doctor names",
		Args:  cobra.MaximumNArgs(1),
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

// noRepair returns the error for a fault without a repair, with the command to type instead.
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

// repair prepares the repair of one fault. The spec decides whether apply is the fix, and what
// gpuadm may interrupt; a machine needs no spec for a repair.
func (c *common) repair(code string) (*converge.Engine, host.Host, error) {
	all := stages.Repairs()
	i := slices.IndexFunc(all, func(r stages.Repair) bool { return r.Code == code })
	if i < 0 {
		return nil, nil, usage{noRepair(code)}
	}
	h, s, err := c.machine()
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

type undoFlags struct {
	to           string
	leave, allow []string
	dryRun, yes  bool
}

// typed returns the flags for the runs of this plan, by id: when the operator types them, another
// run may be the last.
func (u undoFlags) typed(p converge.UndoPlan) string {
	line := converge.UndoOf(cmp.Or(u.to, p.Runs[0]), u.leave)
	for _, what := range u.allow {
		line += " --allow " + what
	}
	return line
}

func newUndo(c *common) *cobra.Command {
	var u undoFlags
	cmd := &cobra.Command{
		Use:   "undo",
		Short: "undo what gpuadm changed",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := allowable(u.allow); err != nil {
				return err
			}
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			if err := c.leavable(h, u.leave); err != nil {
				return err
			}
			e, _ := c.newEngine(h)
			e.Allow = u.allow
			if u.dryRun {
				p, err := e.PlanUndo(cmd.Context(), h, u.to, u.leave)
				if err != nil {
					return err
				}
				return show(c, p, func(p converge.UndoPlan) { c.undoPlanText(p, u) })
			}
			if err := c.mayTouch("undo"); err != nil {
				return err
			}
			if u.to == "" && !u.yes && c.asks() {
				if u.to, err = c.whichRun(cmd.Context(), e, h, u.leave); err != nil {
					return err
				}
			}
			return c.undo(cmd.Context(), e, h, u.to, u.leave)
		},
	}
	f := cmd.Flags()
	f.StringVar(&u.to, "to", "", "undo this `RUN` and all since, or all")
	f.StringSliceVar(&u.leave, "leave", nil, "do not undo this `NAME`, for example the path of a file; repeatable")
	f.StringSliceVar(&u.allow, "allow", nil, allowUsage)
	f.BoolVar(&u.dryRun, "dry-run", false, "print what would be undone")
	f.BoolVarP(&u.yes, "yes", "y", false, yesUsage)
	cmd.RegisterFlagCompletionFunc("allow", completeBreaks)
	cmd.RegisterFlagCompletionFunc("to", c.runs)
	return cmd
}

// whichRun returns the run that an undo without --to reverts, after the operator has confirmed it.
func (c *common) whichRun(ctx context.Context, e *converge.Engine, h host.Host, leave []string) (to string, err error) {
	p, err := e.PlanUndo(ctx, h, "", leave)
	if err != nil || len(p.Runs) == 0 || p.Continues {
		return "", err
	}
	printf(c.stderr, "Undo %s of run %s? [y/N] ", trouble.Count(len(p.Changes), "change"), p.Runs[0])
	var answer string
	_, _ = fmt.Fscanln(c.stdin, &answer)
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)) {
		return "", &trouble.Error{What: "cannot undo: the answer was not yes", Because: []string{"nothing was touched"}, Try: []string{c.typed("undo") + " --dry-run    lists what undo would revert"}}
	}
	return p.Runs[0], nil
}

// runs completes the runs for undo --to, the last run first.
func (c *common) runs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{"all\teverything that gpuadm ever did here"}
	if h, err := c.open(c.rootDir); err == nil {
		for _, r := range slices.Backward(converge.ReadJournal(h).Runs()) {
			if !r.Undone && len(r.Undoes) == 0 {
				names = append(names, r.ID+"\t"+trouble.Count(len(r.Makes), "change"))
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// leavable refuses a --leave name that gpuadm has not changed here: with a typing error, undo would
// revert what the operator wants to keep. It accepts names that an earlier undo has reverted, so
// that the same command line works again.
func (c *common) leavable(h host.View, leave []string) error {
	var made []string
	named := map[string]bool{}
	for _, run := range converge.ReadJournal(h).Runs() {
		for _, ch := range run.Makes {
			named[ch.Name], named[ch.String()] = true, true
			if !run.Undone && !ch.Follows {
				made = append(made, ch.String())
			}
		}
	}
	if len(made) == 0 {
		return nil // all is undone already
	}
	for _, name := range leave {
		if !named[name] {
			return usage{&trouble.Error{
				What:    fmt.Sprintf("cannot leave %s: gpuadm has made no such thing here", name),
				Because: []string{"gpuadm has made " + strings.Join(trouble.Few(made, 6), ", "), "nothing was touched"},
				Try:     []string{c.typed("undo") + " --dry-run    lists what undo would revert, and what was changed outside gpuadm"},
			}}
		}
	}
	return nil
}
