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
	dryRun     bool
	unattended bool
	boot       bool
	install    bool
	reboot     bool
	skip       []string
	allow      []string
	deadline   time.Duration
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
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.runApply(cmd.Context(), args, a)
		},
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
	if err := c.checkFlags(a); err != nil {
		return err
	}

	read := c.engine
	if a.boot {
		read = c.engineAtBoot
	}
	e, h, err := read(ctx, args, a.skip)
	if err != nil && a.boot {
		return c.bootWithoutSpec(err)
	}
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
		c.shown = args
		c.planVerb = "apply --dry-run"
		return c.planWith(ctx, e, h, false)
	}

	if err := c.mayTouch("apply"); err != nil {
		return err
	}
	if err := trustInstalled(h, e); err != nil {
		return err
	}

	e.Allow = a.allow
	e.Unattended = a.unattended || a.boot
	run := c.apply
	if a.boot {
		run = c.boot
	}
	return withDeadline(ctx, a.deadline, func(ctx context.Context) error {
		if a.reboot {
			if err := c.mayReboot(ctx); err != nil {
				return err
			}
		}
		return run(ctx, e, h)
	})
}

// withDeadline calls a function with a deadline; 0 is none. If the deadline ends the function, the
// error is overdue.
func withDeadline(ctx context.Context, deadline time.Duration, do func(context.Context) error) error {
	if deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}

	err := do(ctx)
	hasPassed := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if hasPassed && errors.Is(err, context.DeadlineExceeded) {
		return overdue{err}
	}
	return err
}

// checkFlags refuses flags that apply cannot obey.
func (c *common) checkFlags(a applyFlags) error {
	if err := allowable(a.allow); err != nil {
		return err
	}
	if a.deadline < 0 {
		return usage{fmt.Errorf("cannot use --deadline %v: it takes a time such as 10m, or 0 for never", a.deadline)}
	}
	if a.reboot {
		return c.rebootable()
	}
	return nil
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
		What: fmt.Sprintf("cannot continue after a reboot: %s is not installed", stages.BootUnit),
		Because: []string{
			fmt.Sprintf("%s takes effect only after a reboot, and no unit would then make the other changes", ch),
		},
		Undone: []string{trouble.NothingTouched},
		Try:    []string{c.typed("apply") + " --install --reboot: it installs the unit first"},
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
	known := strings.Split(allowed, ", ")
	for _, what := range words {
		if !slices.Contains(known, what) {
			return notOneOf("allow", what, "--allow", known)
		}
	}

	return nil
}

// mayTouch requires root for a change of the live machine. For a root folder the right to write
// there is enough.
func (c *common) mayTouch(verb string) error {
	if c.root || c.rootDir != "/" {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot %s on this machine: only root may", verb),
		Try:  []string{c.again()},
	}
}

// addInstall adds the stage that installs this very binary.
func (c *common) addInstall(e *converge.Engine, h host.Host) error {
	spec := path.Join(specHome, "node.toml")
	if _, err := h.Stat(spec); err != nil {
		return &trouble.Error{
			What:    fmt.Sprintf("cannot install the boot unit: %v", err),
			Because: []string{"the boot unit applies " + spec},
			Try:     []string{"write the spec to that file, and leave out -f"},
			Err:     err,
		}
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
	var result converge.Result
	defer func() {
		wasStopped := errors.Is(err, converge.ErrStopped) && result.Run != ""
		if result.Reboot == "" && !wasStopped {
			err = cmp.Or(err, c.run.Uncordon(ctx, &e.Spec))
		}
	}()

	none, err := c.noGPU(ctx, e, h, justPlan)
	if none || err != nil {
		c.ran(result)
		return err
	}

	voice := c.voice()
	stop, done := onSignal(c.stopping)
	defer done()
	e.Tell = voice.tell
	e.Stop = stop
	began := h.Now()
	result, err = c.run.Apply(ctx)
	voice.close()
	c.ran(result)

	continues := trouble.Passes(err) && waitsFor(result, host.InNewProcess)
	if err != nil && !continues {
		return err
	}

	if isClosed(stop) { // an operator who stops a run does not want the reboot either
		c.run.Reboots = false
	}
	if c.output != "json" {
		c.applyAnswer(ctx, h, result, h.Now().Sub(began).Seconds())
	}
	isComplete := result.Held == "" && result.Newer == "" && result.Reboot == ""
	if e.Own && isComplete {
		c.clearFailed(ctx)
	}

	switch {
	case result.Held != "" && !c.booting: // a held boot has succeeded: the gate opens
		return exit(exitPending)
	case result.Reboot == "":
		return c.inNewProcess(ctx, result, stop)
	case c.run.Reboots:
		return reboot(ctx, h)
	}

	return exit(exitReboot)
}

// clearFailed has systemd forget failures that the apply has fixed, and names their units. If that
// fails, the apply has still ended well.
func (c *common) clearFailed(ctx context.Context) {
	cleared, err := c.run.ClearFailed(ctx)
	if err != nil {
		c.say(agent.Event{What: agent.Warning, Err: err})
	}
	if len(cleared) > 0 && c.output != "json" {
		c.answer("No longer failed: " + strings.Join(cleared, ", ") + ".")
	}
}

// applyAnswer prints the result of an apply.
func (c *common) applyAnswer(ctx context.Context, h host.Host, result converge.Result, seconds float64) {
	c.answer(c.applied(result, seconds))
	if waitsFor(result, host.AfterReboot) && !c.run.Reboots {
		c.answer(c.rebootNeeded(result.Reboot))
	}
	c.atFirstBoot(ctx, h, result.Deferred)
	if c.rootDir != "/" && !c.root {
		c.answer("Pack this tree as root:root (tar --owner=0 --group=0): at its first boot gpuadm trusts no other user's files.")
	}
}

// isClosed reports whether a channel without values is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// inNewProcess continues in a new process if gpuadm has replaced the driver's library, which the
// loader does not load twice.
func (c *common) inNewProcess(ctx context.Context, result converge.Result, stop <-chan struct{}) error {
	if c.restartSelf == nil || !waitsFor(result, host.InNewProcess) || isClosed(stop) {
		return nil
	}

	end, bounded := ctx.Deadline()
	if !bounded {
		return c.restartSelf()
	}
	left := max(time.Until(end), time.Millisecond) // 0 would mean no deadline
	return c.restartSelf("--deadline=" + left.String())
}

// waitsFor reports whether a change is deferred until an event.
func waitsFor(result converge.Result, event host.When) bool {
	return slices.ContainsFunc(result.Deferred, func(ch converge.Line) bool {
		return ch.When == event
	})
}

// rebootNeeded says why a reboot is needed, and how to continue.
func (c *common) rebootNeeded(why string) string {
	return fmt.Sprintf("A reboot is needed: %s. To continue: sudo reboot, then: %s", why, c.typed("apply"))
}

// applied returns an apply's last sentence.
func (c *common) applied(result converge.Result, seconds float64) string {
	switch {
	case len(result.Undone) > 0:
		return fmt.Sprintf("%s undone: this finishes the undo that was cut short. Held since the undo of run %s. To continue: %s",
			trouble.Count(len(result.Undone), "change"), result.Held, c.typed("apply"))
	case result.Held != "":
		return fmt.Sprintf("Held since the undo of run %s: nothing was done. To continue: %s", result.Held, c.typed("apply"))
	case result.Newer != "":
		return fmt.Sprintf("gpuadm %s changed this machine last, and this is the older %s: nothing was done.", result.Newer, version())
	case result.Reboot != "" && c.run.Reboots:
		return fmt.Sprintf("Rebooting: %s. The boot unit continues.", result.Reboot)
	case result.Reboot != "" && !waitsFor(result, host.AfterReboot):
		return c.rebootNeeded(result.Reboot)
	case result.Run == "" && len(result.Deferred) > 0:
		return fmt.Sprintf("Nothing to do now; %s.", deferred(result.Deferred))
	case result.Run == "":
		return "Nothing to do."
	}

	made := trouble.Count(len(result.Made), "change")
	s := fmt.Sprintf("%s made in %.1f s, run %s", made, seconds, result.Run)
	services := paused(result.Made)
	if len(services) > 0 {
		s += "; paused and resumed " + strings.Join(services, ", ")
	}
	if len(result.Deferred) > 0 {
		s += "; " + deferred(result.Deferred)
	}
	if !result.Restores {
		return s + ". It left nothing to undo."
	}
	return s + ". To undo: " + c.typed("undo --to "+result.Run)
}

// atFirstBoot warns of an image with changes that are deferred until first boot, if no unit will make
// them.
func (c *common) atFirstBoot(ctx context.Context, h host.Host, lines []converge.Line) {
	waitsForBoot := func(line converge.Line) bool {
		return !line.Follows && line.When == host.AtFirstBoot
	}
	if c.rootDir == "/" || !slices.ContainsFunc(lines, waitsForBoot) {
		return
	}

	// In a folder the unit's links alone say whether it is enabled.
	unit, err := h.Unit(ctx, stages.BootUnit)
	isUnknown := err != nil && !errors.As(err, new(host.Later))
	if isUnknown || unit.Enabled == "enabled" {
		return
	}
	const text = "First-boot steps will not run: the image has no %s. To install it: %s"
	c.answer(fmt.Sprintf(text, stages.BootUnit, c.typed("apply --install")))
}

// stopping prints an answer to a signal: the current change may take minutes.
func (c *common) stopping() {
	if c.tty(c.stderr) {
		printf(c.stderr, "\n") // after ^C
	}
	printf(c.stderr, "Stopping as soon as this change is done.\n")
}
