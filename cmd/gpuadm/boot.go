// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
)

const (
	bootTries = 3                // how often a boot's apply is tried before it gives up
	bootPause = 10 * time.Second // before the second try; twice that before the third
	busyPause = 2 * time.Second  // while another run is in progress
	busyLimit = 10 * time.Minute // then the boot continues without it
	// The boot waits as long as Karpenter and AKS give a node to register.
	waitLimit = 15 * time.Minute
	waitPause = 5 * time.Second
)

// boot is apply as the boot unit calls it. It tries again inside the process: a oneshot unit with Restart= would let
// kubelet start meanwhile below systemd 254.
func (c *common) boot(ctx context.Context, e *converge.Engine, h host.Host) error {
	c.booting = true
	began, lastWait := time.Now(), ""
	for try := 1; ; {
		err := c.apply(ctx, e, h)
		pause := time.Duration(try) * bootPause
		switch busy := (*host.Busy)(nil); {
		case err == nil, errors.As(err, new(exit)), errors.Is(err, converge.ErrStopped), ctx.Err() != nil:
			return err
		case errors.As(err, &busy) && time.Since(began) < busyLimit:
			pause = busyPause
		case trouble.Passes(err) && time.Since(began) < waitLimit:
			if lastWait != err.Error() {
				lastWait = err.Error()
				printf(c.stderr, "gpuadm: waiting until %s at the latest: %s\n", began.Add(waitLimit).Format("15:04:05"), lastWait)
			}
			pause = waitPause
		case try == bootTries:
			c.tellCluster(ctx, e, h, node.Outcome{Stage: c.at, Err: err, GaveUp: true})
			return c.gaveUp(ctx, h, err)
		default:
			printf(c.stderr, "gpuadm: attempt %d of %d failed, the next is in %v: %v\n", try, bootTries, pause, err)
			try++
		}
		if host.Pause(ctx, pause) != nil {
			return err
		}
	}
}

// gaveUp logs why a boot's apply has failed, with the unit's name: journald often cannot assign the last lines of a process to its
// unit.
func (c *common) gaveUp(ctx context.Context, h host.Host, err error) error {
	f := failureOf(err)
	f.advise(c.env, err)
	held := "kubelet does not start until " + trouble.Command("apply") + " succeeds"
	if u, err := h.Unit(ctx, stages.BootUnit); err == nil && u.Active == "active" {
		held = "pods are kept away as before until " + trouble.Command("apply") + " succeeds"
	}
	f.Because = append(f.Because, fmt.Sprintf("%d attempts failed since boot; %s", bootTries, held))
	if !c.toJournal() {
		return &trouble.Error{What: f.Error, Because: f.Because, Undone: f.Undone, Try: f.Try, Err: err}
	}
	var text strings.Builder
	c.stderr = &text
	f.print(c.env)
	v := newLogVoice(c)
	for _, line := range strings.Split(strings.TrimSpace(text.String()), "\n") {
		v.log.Error(line)
	}
	return exit(exitCannot)
}

func newGate(c *common) *cobra.Command {
	wait := false
	cmd := &cobra.Command{
		Use:   "gate",
		Short: "say whether kubelet may start",
		Long: `Gate exits with 0 if kubelet may start: this boot's apply has succeeded, or the
machine is converged by now, or an undo holds applies. Kubelet's unit runs it before
each start, so kubelet starts by itself on a node that was repaired. With --wait it
asks again until kubelet may start, as EKS's nodeadm-run needs it: systemd starts all
that a unit requires at each of its restarts.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for said := ""; ; {
				err := c.gate(cmd.Context())
				if err == nil || !wait {
					return err
				}
				if why := err.Error(); why != said {
					printf(c.stderr, "gpuadm: waiting: %s\n", why)
					said = why
				}
				select {
				case <-cmd.Context().Done():
					return err
				case <-time.After(waitPause):
				}
			}
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until kubelet may start")
	return cmd
}

// gate says why kubelet may not start; nil if it may.
func (c *common) gate(ctx context.Context) error {
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	if u, err := h.Unit(ctx, stages.BootUnit); err == nil && u.Active == "active" {
		return nil
	}
	if _, err := h.Lstat(path.Join(specHome, "node.toml")); errors.Is(err, fs.ErrNotExist) && len(c.files) == 0 {
		return nil // this machine has no spec
	}
	e, h, err := c.engine(ctx, nil, nil)
	if err != nil {
		return err
	}
	if err := trustInstalled(h, e); err != nil {
		return err
	}
	before := stages.BeforeKubelet()
	if instance.Detect(h).Managed == "eks" {
		before = stages.BeforeNodeadm() // which starts kubelet, and reads its configuration then
	}
	e.Stages = slices.DeleteFunc(before, func(st converge.Stage) bool { return st.Name == "guard" })
	e.Before = e.Stages // kubelet starts whether the API server answers or not
	if none, err := c.noGPU(ctx, e, h, justPlan); none || err != nil {
		return err
	}
	if e.Spec.Join.Gate == "open" {
		return nil // the node joins, and a taint keeps pods away
	}
	s, err := e.Pending(ctx, h)
	cut := s.Unfinished != "" && !atWork(h)
	if err != nil || !cut && (s.Held != "" || s.Now() == 0 && len(alone(s)) == 0) {
		return err
	}
	t := closed(s, cut)
	if c.toJournal() {
		return gateLine(t)
	}
	return t
}

// alone are the GPUs' changes that wait while those of the other GPUs were made.
func alone(s converge.Status) []converge.Change {
	return slices.DeleteFunc(slices.Clone(s.Changes), func(ch converge.Change) bool { return ch.Stage != mig.Stage.Name || ch.Waits == "" })
}

// closed says why kubelet may not start on a machine of this status.
func closed(s converge.Status, cut bool) *trouble.Error {
	t := &trouble.Error{What: fmt.Sprintf("cannot let kubelet start: %s", count(s.Now()+len(alone(s)), "change")+" pending"), Try: []string{trouble.Command("apply") + "; kubelet then starts by itself"}}
	for _, ch := range alone(s) {
		t.Because = append(t.Because, ch.Waits)
	}
	if cut {
		t.What = fmt.Sprintf("cannot let kubelet start: run %s was cut short", s.Unfinished)
	}
	if cut && s.Undoing {
		t.What = fmt.Sprintf("cannot let kubelet start: the undo in run %s was cut short", s.Unfinished)
		t.Try = []string{trouble.Command("undo") + ", which finishes it, or " + trouble.Command("apply") + "; kubelet then starts by itself"}
	} else if cannot := s.Cannot(); len(cannot) > 0 {
		t.What, t.Try = "cannot let kubelet start: the node cannot converge", nil
		for _, ch := range cannot {
			t.Because, t.Try = append(t.Because, ch.Cannot), append(t.Try, ch.Try...)
		}
		t.Try = append(t.Try, "then "+trouble.Command("apply")+"; kubelet then starts by itself")
	}
	if s.Damage != "" {
		t.Because = append(t.Because, s.Damage)
	}
	return t
}

// gateLine says in one line why kubelet may not start: kubelet's Restart= runs the gate every few seconds, and more lines would
// fill the journal.
func gateLine(t *trouble.Error) error {
	line := t.What
	if len(t.Because) > 0 {
		line += ": " + t.Because[0]
	}
	return &trouble.Error{What: line + "; " + trouble.Command("status") + " says how to fix it"}
}

// atWork says whether an unfinished run is in progress, and not cut short: most often the run that starts kubelet.
func atWork(h host.Host) bool {
	unlock, err := h.Lock()
	if err == nil {
		unlock()
	}
	return errors.As(err, new(*host.Busy))
}
