// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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

// breaks are the words that --allow and [disruption] allow take; --allow takes all as well.
const breaks = "restart-runtime, stop-containers, stop-clients, lose-partitions, reset-gpu, reboot, downgrade-gpuadm"

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
		Use:   "apply [STAGE…]",
		Short: "converge the machine to node.toml",
		Long: `Apply converges the machine to node.toml, stage by stage. It plans everything
first: if any change cannot be made, it touches nothing. It writes each change to
the journal before it makes it, and verifies it afterwards. If a change fails,
apply rolls back what its stage changed.

A second apply does nothing. After a crash or a reboot, run apply again: it
continues where it was.

Apply takes a GPU from a running process only with --allow, or as policy in
[disruption] says. Some changes take effect only after a reboot. Apply then stops with exit code 4; with --reboot
it reboots, and the boot unit continues before kubelet starts.

In a root folder nothing runs. Changes that need the running machine are deferred
until its first boot, and apply names them; gpuadm bake also installs packages. Pack a tree that was prepared without
root as root:root: gpuadm refuses files that users other than root can write to.`,
		Example:           "  gpuadm apply\n  gpuadm apply runtime --root /mnt/image -f node.toml\n  gpuadm apply --deadline 10m --unattended",
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

// runApply does what the flags say.
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
		installFirst(e)
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
		if err := c.mayReboot(ctx, e, h); err != nil {
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

// allowable refuses unknown words of --allow.
func allowable(words []string) error {
	for _, what := range words {
		if !slices.Contains(strings.Split(allowed, ", "), what) {
			return usage{fmt.Errorf("cannot allow %q: --allow takes %s", what, allowed)}
		}
	}
	return nil
}

// mayTouch asks for root before the live machine is touched; a root folder needs only the right to write there.
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
	name, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program's own file: %w", err)
	}
	binary, err := c.read(name)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", name, cause(err))
	}
	e.Stages = installed(e.Stages, stages.Install(binary))
	c.chosen = append(c.chosen, "--install")
	return nil
}
