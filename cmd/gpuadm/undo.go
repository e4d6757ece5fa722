// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

type undoFlags struct {
	to     string
	leave  []string
	allow  []string
	dryRun bool
	yes    bool
}

// typed returns the flags for the runs of this plan, by id: when the operator types them, another
// run may be the last.
func (u undoFlags) typed(p converge.UndoPlan) string {
	return u.line(cmp.Or(u.to, p.Runs[0]))
}

// line returns an undo to a run with what the operator leaves and allows; "" is the last run.
func (u undoFlags) line(to string) string {
	line := converge.UndoOf(to, u.leave)
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
		RunE:  func(cmd *cobra.Command, _ []string) error { return c.runUndo(cmd.Context(), u) },
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

// runUndo runs undo with its flags.
func (c *common) runUndo(ctx context.Context, u undoFlags) error {
	if err := allowable(u.allow); err != nil {
		return err
	}
	h, done, err := c.openToUndo(ctx, u)
	if err != nil {
		return err
	}
	defer done()
	if err := c.leavable(h, u.leave); err != nil {
		return err
	}

	e, _ := c.newEngine(h)
	e.Allow = u.allow
	if u.dryRun {
		p, err := e.PlanUndo(ctx, h, u.to, u.leave)
		if err != nil {
			return err
		}
		return show(c, p, func(p converge.UndoPlan) { c.undoPlanText(p, u) })
	}

	if err := c.mayTouch("undo"); err != nil {
		return err
	}
	if u.to == "" && !u.yes {
		u.to, err = c.whichRun(ctx, e, h, u)
		if err != nil {
			return err
		}
	}

	return c.undo(ctx, e, h, u.to, u.leave)
}

// openToUndo opens the machine or the root folder. Where packages are to go, the image's own
// programs run in it, as in a bake: in a plain folder undo would have to stop there, and roll back.
func (c *common) openToUndo(ctx context.Context, u undoFlags) (h host.Host, done func(), err error) {
	h, err = c.open(c.rootDir, c.follower())
	if err != nil {
		return nil, nil, err
	}
	done = func() {}
	if h.Live() || u.dryRun {
		return h, done, nil
	}

	e, _ := c.newEngine(h)
	p, err := e.PlanUndo(ctx, h, u.to, u.leave)
	switch {
	case err != nil || !p.NeedsPrograms(): // the undo itself says why it cannot be planned
		return h, done, nil
	case !c.root:
		return nil, nil, &trouble.Error{
			What:   "cannot undo: only root can run programs in an image, and packages are to go",
			Undone: []string{trouble.NothingTouched},
			Try:    []string{c.again()},
		}
	}

	return c.image(c.rootDir, nil, c.follower())
}

// whichRun returns the run that an undo without --to reverts, after the operator has confirmed it.
// Without a terminal no operator can: a script says --yes, or which run it means.
func (c *common) whichRun(
	ctx context.Context, e *converge.Engine, h host.Host, u undoFlags,
) (to string, err error) {
	p, err := e.PlanUndo(ctx, h, "", u.leave)
	if err != nil || len(p.Runs) == 0 || p.Continues {
		return "", err
	}
	dryRun := c.typed(u.line("")+" --dry-run") + "    lists what undo would revert"
	if !c.asks() {
		return "", usage{&trouble.Error{
			What:   "cannot undo: this is not a terminal, so gpuadm cannot ask whether to undo run " + p.Runs[0],
			Undone: []string{trouble.NothingTouched},
			Try: []string{
				c.typed(u.line("") + " --yes"),
				dryRun,
			},
		}}
	}

	printf(c.stderr, "Undo %s of run %s? [y/N] ", trouble.Count(len(p.Changes), "change"), p.Runs[0])
	var answer string
	c.silence.pause() // the operator thinks
	_, _ = fmt.Fscanln(c.stdin, &answer)
	c.silence.resume()
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)) {
		return "", &trouble.Error{
			What:   "cannot undo: the answer was not yes",
			Undone: []string{trouble.NothingTouched},
			Try:    []string{dryRun},
		}
	}

	return p.Runs[0], nil
}

// runs completes the runs for undo --to, the last run first.
func (c *common) runs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	const inOrder = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	names := []string{"all\teverything that gpuadm ever did here"}
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return names, inOrder
	}

	for _, r := range slices.Backward(converge.ReadJournal(h).Runs()) {
		if !r.Undone && len(r.Undoes) == 0 {
			names = append(names, r.ID+"\t"+trouble.Count(len(r.Makes), "change"))
		}
	}

	return names, inOrder
}

// leavable refuses a --leave name that gpuadm has not changed here: with a typing error, undo would
// revert what the operator wants to keep. It accepts names that an earlier undo has reverted, so
// that the same command line works again.
func (c *common) leavable(h host.View, leave []string) error {
	var made []string
	named := map[string]bool{}
	for _, run := range converge.ReadJournal(h).Runs() {
		for _, ch := range run.Makes {
			named[ch.Name] = true
			named[ch.String()] = true
			if !run.Undone && !ch.Follows {
				made = append(made, ch.String())
			}
		}
	}

	if len(made) == 0 {
		return nil // all is undone already
	}

	for _, name := range leave {
		if named[name] {
			continue
		}
		return usage{&trouble.Error{
			What:    fmt.Sprintf("cannot leave %s: gpuadm has made no such thing here", name),
			Because: []string{"gpuadm has made " + strings.Join(trouble.Few(made, 6), ", ")},
			Undone:  []string{trouble.NothingTouched},
			Try:     []string{c.typed("undo") + " --dry-run    lists what undo would revert, and what was changed outside gpuadm"},
		}}
	}

	return nil
}

// undo runs an undo and prints its result.
func (c *common) undo(ctx context.Context, e *converge.Engine, h host.Host, to string, leave []string) error {
	voice := c.voice()
	stop, done := onSignal(c.stopping)
	defer done()
	e.Tell = voice.tell
	e.Stop = stop
	result, err := c.run.Undo(ctx, to, leave)
	voice.close()
	c.ran(result)
	if err != nil {
		return err
	}
	if waitsFor(result, host.InNewProcess) {
		return c.inNewProcess(ctx, result, stop)
	}

	if c.output != "json" {
		c.undoAnswer(h, result, to)
	}
	switch {
	case len(result.Damaged) > 0: // the run's last warning has named them
		return exit(exitCannot)
	case result.Reboot != "":
		return exit(exitReboot)
	}

	return nil
}

// undoAnswer prints the result of an undo.
func (c *common) undoAnswer(h host.View, result converge.Result, to string) {
	if result.Run == "" {
		printf(c.stdout, "%s\n", nothingToUndo(to))
		return
	}

	s := trouble.Count(len(result.Made), "change") + " undone"
	if len(result.Left) > 0 {
		s += fmt.Sprintf(", %d left", len(result.Left))
	}
	if rest := converge.ChangesOf(result.Deferred); len(rest) > 0 {
		printf(c.stdout, "%s. A reboot is needed: %s. Afterwards the boot unit restores %s; without that unit: %s\n",
			s, result.Reboot, converge.Names(rest), c.typed("undo"))
		return
	}

	_, err := machineSpec(h)
	if errors.Is(err, errNoSpec) { // undo does not know which file an operator gave to apply
		printf(c.stdout, "%s. Unattended applies are held until an operator applies a spec.\n", s)
	} else {
		printf(c.stdout, "%s. Unattended applies are held; to lift the hold: %s\n", s, c.typed("apply"))
	}

	if result.Reboot != "" {
		printf(c.stdout, "Some of it takes effect after a reboot: %s.\n", result.Reboot)
	}
}

// undoPlanText prints what an undo would do.
func (c *common) undoPlanText(p converge.UndoPlan, u undoFlags) {
	for _, ch := range p.Changes {
		c.changeText(c.stdout, ch.Stage, ch)
	}
	for _, ch := range p.Kept {
		stays(c.stdout, ch.Stage, ch, "stays", ch.Keeps)
	}
	for _, ch := range p.Left {
		stays(c.stdout, ch.Stage, ch, "left", ch.Cannot)
	}
	if len(p.Changes) == 0 {
		printf(c.stdout, "%s\n", nothingToUndo(u.to))
		return
	}

	count := trouble.Count(len(p.Changes), "change")
	printf(c.stdout, "\n%s of %s to undo.%s\n", count, runsOf(p.Runs), interrupts(p.Changes))
	printf(c.stdout, "Nothing was touched. To undo: %s%s\n", c.typed(u.typed(p)), allowing(p.Changes))
}

// runsOf names the runs that an undo reverts, oldest first.
func runsOf(ids []string) string {
	if len(ids) == 1 {
		return "run " + ids[0]
	}
	return fmt.Sprintf("%d runs since %s", len(ids), ids[0])
}

func nothingToUndo(to string) string {
	if to == "" || to == "all" {
		return "Nothing to undo."
	}
	return "Nothing to undo: run " + to + " left nothing to restore."
}
