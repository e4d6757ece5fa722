// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

type applyFlags struct {
	dryRun, unattended, boot, install, reboot bool
	skip, allow                               []string
	deadline                                  time.Duration
}

// breaks lists the words of --allow and of allow in [disruption]; --allow also accepts all.
const breaks = "restart-runtime, stop-containers, stop-clients, lose-partitions, reset-gpu, reboot, downgrade-gpuadm, change-held"

const (
	allowed    = "all, " + breaks
	allowUsage = "allow one kind of interruption: `WHAT` is " + allowed
	yesUsage   = "answer yes to every question, for scripts; it allows no interruption: see --allow"
)

// completeBreaks completes --allow.
var completeBreaks = cobra.FixedCompletions(strings.Split(allowed, ", "), cobra.ShellCompDirectiveNoFileComp)

func newApply(c *common) *cobra.Command {
	var a applyFlags
	cmd := &cobra.Command{
		Use:               "apply [STAGE…]",
		Short:             "converge the machine to node.toml",
		ValidArgsFunction: stageNames,
		RunE:              func(cmd *cobra.Command, args []string) error { return c.runApply(cmd.Context(), args, a) },
	}
	f := cmd.Flags()
	f.BoolVar(&a.dryRun, "dry-run", false, "print what would change: the same as plan")
	f.BoolP("yes", "y", false, yesUsage)
	f.BoolVar(&a.install, "install", false, "also install this gpuadm and its boot unit; kubelet then waits for it at each boot")
	f.BoolVar(&a.reboot, "reboot", false, "reboot if a change needs it; the boot unit continues")
	f.BoolVar(&a.boot, "boot", false, "as the boot unit calls it: unattended, with a few retries")
	f.BoolVar(&a.unattended, "unattended", false, "for units and DaemonSets: do nothing while an undo holds applies")
	f.StringSliceVar(&a.allow, "allow", nil, allowUsage)
	f.StringSliceVar(&a.skip, "skip", nil, "skip this `STAGE`; repeatable")
	f.DurationVar(&a.deadline, "deadline", 0, "give up after this time, and roll back the current stage; 0: never")
	cmd.RegisterFlagCompletionFunc("skip", stageNames)
	cmd.RegisterFlagCompletionFunc("allow", completeBreaks)
	return cmd
}

// runApply runs apply with its flags.
func (c *common) runApply(ctx context.Context, args []string, a applyFlags) error {
	if err := allowable(a.allow); err != nil {
		return err
	} else if a.deadline < 0 {
		return usage{fmt.Errorf("cannot use --deadline %v: it takes a time such as 10m, or 0 for never", a.deadline)}
	}
	if a.reboot {
		if err := c.rebootable(); err != nil {
			return err
		}
	}
	e, h, err := c.engine(ctx, args, a.skip)
	if err != nil {
		return err
	}
	if a.install {
		if err := c.addInstall(e, h); err != nil {
			return err
		}
	}
	if a.reboot {
		agent.InstallFirst(e)
	}
	if a.dryRun {
		c.shown, c.planVerb = args, "apply --dry-run"
		return c.planWith(ctx, e, h, false)
	}
	if err := c.mayTouch("apply"); err != nil {
		return err
	}
	if err := trustInstalled(h, e); err != nil {
		return err
	}
	e.Allow, e.Unattended = a.allow, a.unattended || a.boot
	if a.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.deadline)
		defer cancel()
	}
	if a.reboot {
		if err := c.mayReboot(ctx); err != nil {
			return err
		}
	}
	do := c.apply
	if a.boot {
		do = c.boot
	}
	if err = do(ctx, e, h); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, context.DeadlineExceeded) {
		return overdue{err}
	}
	return err
}

// rebootable refuses an apply --reboot that the boot unit cannot continue: it works on this
// machine, with its own spec.
func (c *common) rebootable() error {
	switch {
	case c.rootDir != "/":
		return usage{fmt.Errorf("cannot reboot %s: that machine does not run; leave out --reboot", c.rootDir)}
	case len(c.files) > 0:
		return usage{fmt.Errorf("cannot continue after a reboot with -f: the boot unit reads %s; write the spec there", specHome)}
	}
	return nil
}

// mayReboot refuses, before anything is touched, a reboot after which no boot unit would continue.
func (c *common) mayReboot(ctx context.Context) error {
	ch, err := c.run.AllowReboot(ctx)
	if err != nil || ch == nil {
		return err
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot continue after a reboot: %s is not installed", stages.BootUnit),
		Because: []string{fmt.Sprintf("%s takes effect only after a reboot, and no unit would then make the other changes", ch), "nothing was touched"},
		Try:     []string{c.typed("apply") + " --install --reboot: it installs the unit first"},
	}
}

// reboot reboots the machine, or says what to do if that fails.
func reboot(ctx context.Context, h host.Host) error {
	if err := agent.Reboot(ctx, h); err != nil {
		return &trouble.Error{
			What:    fmt.Sprintf("cannot reboot: %v", err),
			Because: []string{"the journal has all changes, and the boot unit continues after any reboot"},
			Try:     []string{"reboot by hand"},
			Err:     err,
		}
	}
	return exit(exitReboot)
}

// allowable refuses unknown words of --allow.
func allowable(words []string) error {
	for _, what := range words {
		if !slices.Contains(strings.Split(allowed, ", "), what) {
			return usage{fmt.Errorf("cannot allow %q: --allow takes %s", what, allowed)}
		}
	}
	return nil
}

// mayTouch requires root to change the live machine; for a root folder the right to write there is
// enough.
func (c *common) mayTouch(verb string) error {
	if c.root || c.rootDir != "/" {
		return nil
	}
	return &trouble.Error{What: fmt.Sprintf("cannot %s on this machine: only root may", verb), Try: []string{c.again()}}
}

// addInstall adds the stage that installs this very binary.
func (c *common) addInstall(e *converge.Engine, h host.Host) error {
	spec := path.Join(specHome, "node.toml")
	if _, err := h.Stat(spec); err != nil {
		return &trouble.Error{What: fmt.Sprintf("cannot install the boot unit: %v", err), Because: []string{"the boot unit applies " + spec}, Try: []string{"write the spec to that file, and leave out -f"}, Err: err}
	}
	binary, err := c.self()
	if err != nil {
		return err
	}
	e.Stages = agent.AddInstall(e.Stages, stages.Install(binary))
	c.chosen = append(c.chosen, "--install")
	return nil
}

// apply runs an apply and prints its result. Then it ends gpuadm's own cordon, unless the run will
// continue: after a reboot, or after a signal that has stopped it.
func (c *common) apply(ctx context.Context, e *converge.Engine, h host.Host) (err error) {
	var res converge.Result
	defer func() {
		if res.Reboot == "" && !(errors.Is(err, converge.ErrStopped) && res.Run != "") {
			err = cmp.Or(err, c.run.Uncordon(ctx, &e.Spec))
		}
	}()
	if none, err := c.noGPU(ctx, e, h, justPlan); none || err != nil {
		c.ran(res)
		return err
	}
	voice, ctx := c.voice(ctx)
	stop, done := onSignal(c.stopping)
	defer done()
	e.Tell, e.Stop = voice.tell, stop
	began := h.Now()
	res, err = c.run.Apply(ctx)
	voice.close()
	c.ran(res)
	if err != nil && !(trouble.Passes(err) && waitsFor(res, host.InNewProcess)) {
		return err
	}
	select {
	case <-stop:
		c.run.Reboots = false // an operator who stops a run does not want the reboot either
	default:
	}
	if c.output != "json" {
		c.answer(c.applied(res, h.Now().Sub(began).Seconds()))
		if waitsFor(res, host.AfterReboot) && !c.run.Reboots {
			c.answer(fmt.Sprintf("A reboot is needed: %s.", res.Reboot))
		}
		c.atFirstBoot(ctx, h, res.Deferred)
		if c.rootDir != "/" && !c.root {
			c.answer("Pack this tree as root:root (tar --owner=0 --group=0): at its first boot gpuadm trusts no other user's files.")
		}
	}
	switch {
	case res.Held != "" && !c.booting: // a held boot has succeeded: the gate opens
		return exit(exitPending)
	case res.Reboot == "":
		return c.inNewProcess(ctx, res, stop)
	case c.run.Reboots:
		return reboot(ctx, h)
	}
	return exit(exitReboot)
}

// inNewProcess continues in a new process if gpuadm has replaced the driver's library, which the
// loader does not load twice.
func (c *common) inNewProcess(ctx context.Context, res converge.Result, stop <-chan struct{}) error {
	if c.restartSelf == nil || !waitsFor(res, host.InNewProcess) {
		return nil
	}
	select {
	case <-stop:
		return nil
	default:
	}
	end, bounded := ctx.Deadline()
	if !bounded {
		return c.restartSelf()
	}
	// The time that is left; 0 would mean no deadline.
	return c.restartSelf("--deadline=" + max(time.Until(end), time.Millisecond).String())
}

// waitsFor says whether a change is deferred until an event.
func waitsFor(res converge.Result, event host.When) bool {
	return slices.ContainsFunc(res.Deferred, func(ch converge.Change) bool { return ch.When == event })
}

// applied returns an apply's last sentence.
func (c *common) applied(res converge.Result, seconds float64) string {
	switch {
	case len(res.Undone) > 0:
		return fmt.Sprintf("%s undone: this finishes the undo that was cut short. Held since the undo of run %s. To continue: %s",
			trouble.Count(len(res.Undone), "change"), res.Held, c.typed("apply"))
	case res.Held != "":
		return fmt.Sprintf("Held since the undo of run %s: nothing was done. To continue: %s", res.Held, c.typed("apply"))
	case res.Newer != "":
		return fmt.Sprintf("gpuadm %s changed this machine last, and this is the older %s: nothing was done.", res.Newer, version())
	case res.Reboot != "" && c.run.Reboots:
		return fmt.Sprintf("Rebooting: %s. The boot unit continues.", res.Reboot)
	case res.Reboot != "" && !waitsFor(res, host.AfterReboot):
		return fmt.Sprintf("A reboot is needed: %s. Reboot, then: %s", res.Reboot, c.typed("apply"))
	case res.Run == "" && len(res.Deferred) > 0:
		return fmt.Sprintf("Nothing to do now; %s.", deferred(res.Deferred))
	case res.Run == "":
		return "Nothing to do."
	}
	s := fmt.Sprintf("%s made in %.1f s, run %s", trouble.Count(len(res.Made), "change"), seconds, res.Run)
	if services := paused(res.Made); len(services) > 0 {
		s += "; paused and resumed " + strings.Join(services, ", ")
	}
	if len(res.Deferred) > 0 {
		s += "; " + deferred(res.Deferred)
	}
	if !res.Restores {
		return s + ". It left nothing to undo."
	}
	return s + ". To undo: " + c.typed("undo --to "+res.Run)
}

// atFirstBoot warns of an image with changes that are deferred until first boot, where no unit will
// make them.
func (c *common) atFirstBoot(ctx context.Context, h host.Host, postponed []converge.Change) {
	if c.rootDir == "/" || !slices.ContainsFunc(postponed, func(ch converge.Change) bool { return !ch.Follows && ch.When == host.AtFirstBoot }) {
		return
	}
	// In a folder the unit's links alone say whether it is enabled.
	if u, err := h.Unit(ctx, stages.BootUnit); err != nil && !errors.As(err, new(host.Later)) || u.Enabled == "enabled" {
		return
	}
	c.answer(fmt.Sprintf("First-boot steps will not run: the image has no %s. To install it: %s", stages.BootUnit, strings.Replace(c.typed("install"), "install", "apply --install", 1)))
}

// stopping prints an answer to a signal: the current change may take minutes.
func (c *common) stopping() {
	if c.tty(c.stderr) {
		printf(c.stderr, "\n") // after ^C
	}
	printf(c.stderr, "Stopping as soon as this change is done.\n")
}

// undo runs an undo and prints its result.
func (c *common) undo(ctx context.Context, e *converge.Engine, h host.Host, to string, leave []string) error {
	voice, ctx := c.voice(ctx)
	stop, done := onSignal(c.stopping)
	defer done()
	e.Tell, e.Stop = voice.tell, stop
	res, err := c.run.Undo(ctx, to, leave)
	voice.close()
	c.ran(res)
	if err != nil {
		return err
	}
	if len(res.Damaged) > 0 { // the run's last warning has named them
		err = exit(exitCannot)
	} else if res.Reboot != "" {
		err = exit(exitReboot)
	}
	if c.output == "json" {
		return err
	}
	if res.Run == "" {
		printf(c.stdout, "%s\n", nothingToUndo(to))
		return err
	}
	s := trouble.Count(len(res.Made), "change") + " undone"
	if len(res.Left) > 0 {
		s += fmt.Sprintf(", %d left", len(res.Left))
	}
	if _, err := machineSpec(h); errors.Is(err, errNoSpec) { // undo does not know which file an operator gave to apply
		printf(c.stdout, "%s. Unattended applies are held until an operator applies a spec.\n", s)
	} else {
		printf(c.stdout, "%s. Unattended applies are held; to lift the hold: %s\n", s, c.typed("apply"))
	}
	if res.Reboot != "" {
		printf(c.stdout, "Some of it takes effect after a reboot: %s.\n", res.Reboot)
	}
	return err
}
