// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func newGate(c *common) *cobra.Command {
	wait := false
	cmd := &cobra.Command{
		Use:   "gate",
		Short: "say whether kubelet may start",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait {
				return c.waitForGate(cmd.Context())
			}
			return c.gate(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until kubelet may start")
	return cmd
}

// waitForGate waits until kubelet may start, and prints each reason once.
func (c *common) waitForGate(ctx context.Context) error {
	printed := ""
	for {
		err := c.gate(ctx)
		if err == nil {
			return nil
		}
		why := err.Error()
		if why != printed {
			printf(c.stderr, "gpuadm: waiting: %s\n", why)
			printed = why
		}

		select {
		case <-ctx.Done():
			return err
		case <-time.After(agent.WaitPause):
		}
	}
}

// gate returns an error that says why kubelet may not start; nil if it may. Kubelet's Restart= runs
// the gate every few seconds: in the journal the error is one line.
func (c *common) gate(ctx context.Context) error {
	err := c.closedGate(ctx, view.Patiently)
	var t *trouble.Error
	switch {
	case err == nil:
		c.warnOfSpec("the gate goes")
	case c.toJournal() && errors.As(err, &t):
		return gateLine(t)
	}

	return err
}

// closedGate returns an error that says why kubelet may not start; nil if it may. within is a
// machine on which nothing is waited for without a limit.
func (c *common) closedGate(ctx context.Context, within func(host.View) host.View) error {
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return err
	}
	if agent.BootSucceeded(ctx, h) {
		return nil
	}
	_, err = h.Lstat(path.Join(specHome, "node.toml"))
	hasNone := errors.Is(err, fs.ErrNotExist) && dangling(h, specHome) == nil
	if hasNone && len(c.files) == 0 {
		return nil
	}

	e, h, err := c.engineAtBoot(ctx, nil, nil)
	if none := new(noSpecAtBoot); errors.As(err, &none) {
		return usage{none.trouble("cannot let kubelet start")}
	}
	if err != nil {
		return err
	}
	if err := trustInstalled(h, e); err != nil {
		return err
	}
	if none, err := c.noGPU(ctx, e, h, justPlan); none || err != nil {
		return err
	}

	shut, err := c.run.Gate(ctx, within(c.run.Host))
	if err != nil || shut == nil {
		return err
	}
	t := closed(shut)
	if c.broken != nil {
		spec := c.broken.trouble("the gate goes")
		t.Because = append(t.Because, spec.What+", so "+spec.Because[0])
		t.Try = append(fixSpec(c.broken.why), t.Try...)
	}

	return t
}

// closed returns the error for a closed gate.
func closed(s *agent.Closed) *trouble.Error {
	const thenStarts = "; systemd then starts kubelet"
	pending := trouble.Count(s.Now()+len(s.Alone), "change") + " pending"
	t := &trouble.Error{
		What: "cannot let kubelet start: " + pending,
		Try:  []string{trouble.Command("apply") + thenStarts},
	}
	for _, ch := range s.Alone {
		t.Because = append(t.Because, ch.Waits)
	}

	for _, ch := range s.Unseen() {
		t.Because = append(t.Because, "cannot read the state of "+ch.String()+": "+ch.Unknown)
		t.Err = &trouble.Unknown{What: ch.String(), Err: errors.New(ch.Unknown)}
	}

	cannot := s.Cannot()
	switch {
	case s.Cut && s.Undoing:
		t.What = fmt.Sprintf("cannot let kubelet start: the undo in run %s was cut short", s.Unfinished)
		finishes := trouble.Command("undo") + ", which finishes it"
		t.Try = []string{finishes + ", or " + trouble.Command("apply") + thenStarts}
	case len(cannot) > 0:
		t.What = "cannot let kubelet start: the node cannot converge"
		t.Try = nil
		for _, ch := range joined(cannot) {
			t.Because = append(t.Because, ch.Cannot)
			t.Try = append(t.Try, ch.Try...)
		}

		t.Try = append(t.Try, "then "+trouble.Command("apply")+thenStarts)
	case s.State == converge.EndsReboot:
		t.What = "cannot let kubelet start: a reboot is needed"
		t.Because = append(t.Because, s.NeedsReboot())
		t.Try = []string{"sudo reboot, then " + trouble.Command("apply") + thenStarts}
	case s.Unknown > 0:
		t.What = "cannot let kubelet start: not known whether the node is converged"
	case s.Cut:
		t.What = fmt.Sprintf("cannot let kubelet start: run %s was cut short", s.Unfinished)
	}

	if s.Damage != "" {
		t.Because = append(t.Because, s.Damage)
	}
	return t
}

// gateLine says in one line why kubelet may not start.
func gateLine(t *trouble.Error) error {
	line := t.What
	if len(t.Because) > 0 {
		line += ": " + t.Because[0]
	}
	return &trouble.Error{
		What: line + "; " + trouble.Command("status") + " says how to fix it",
		Err:  t.Err,
	}
}
