// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// boot is apply for the boot unit.
func (c *common) boot(ctx context.Context, e *converge.Engine, h host.Host) error {
	c.booting = true
	code := error(nil)
	err := c.run.Boot(ctx, func(ctx context.Context) error {
		err := c.apply(ctx, e, h)
		if errors.As(err, new(exit)) {
			code, err = err, nil
		}
		return err
	})
	if g := (*agent.GaveUp)(nil); errors.As(err, &g) {
		return c.gaveUp(g)
	}
	return cmp.Or(err, code)
}

// say prints an event of an unattended run.
func (c *common) say(e agent.Event) {
	switch e.What {
	case agent.Waiting:
		printf(c.stderr, "gpuadm: waiting until %s at the latest: %s\n", e.Until.Format("15:04:05"), e.Err)
	case agent.Retrying:
		printf(c.stderr, "gpuadm: attempt %d of %d failed, the next is in %v: %v\n", e.Try, agent.Tries, e.Pause, e.Err)
	case agent.Unreported:
		printf(c.stderr, "gpuadm: cannot report to the cluster: %v\n", e.Err)
	case agent.Unlabelled:
		printf(c.stderr, "gpuadm: cannot tell the GPUs' clients of the partitions: %v\n", e.Err)
	case agent.Warning:
		failureOf(e.Err).print(c.env)
	}
}

// gaveUp logs why a boot's apply has failed, with the unit's name: journald often cannot assign the
// last lines of a process to its unit.
func (c *common) gaveUp(g *agent.GaveUp) error {
	f := failureOf(g.Err)
	f.advise(c.env, g.Err)
	held := "kubelet does not start until " + trouble.Command("apply") + " succeeds"
	if g.Started {
		held = "pods are kept away as before until " + trouble.Command("apply") + " succeeds"
	}
	f.Because = append(f.Because, fmt.Sprintf("%d attempts failed since boot; %s", agent.Tries, held))
	if !c.toJournal() {
		return &trouble.Error{What: f.Error, Because: f.Because, Undone: f.Undone, Try: f.Try, Err: g.Err}
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
		Args:  noArgs,
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
				case <-time.After(agent.WaitPause):
				}
			}
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until kubelet may start")
	return cmd
}

// gate returns an error that says why kubelet may not start; nil if it may.
func (c *common) gate(ctx context.Context) error {
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	if agent.BootSucceeded(ctx, h) {
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
	if none, err := c.noGPU(ctx, e, h, justPlan); none || err != nil {
		return err
	}
	shut, err := c.run.Gate(ctx)
	if err != nil || shut == nil {
		return err
	}
	t := closed(shut)
	if c.toJournal() {
		return gateLine(t)
	}
	return t
}

// closed returns the error for a closed gate.
func closed(s *agent.Closed) *trouble.Error {
	t := &trouble.Error{What: fmt.Sprintf("cannot let kubelet start: %s", trouble.Count(s.Now()+len(s.Alone), "change")+" pending"), Try: []string{trouble.Command("apply") + "; systemd then starts kubelet"}}
	for _, ch := range s.Alone {
		t.Because = append(t.Because, ch.Waits)
	}
	if s.Cut {
		t.What = fmt.Sprintf("cannot let kubelet start: run %s was cut short", s.Unfinished)
	}
	if s.Cut && s.Undoing {
		t.What = fmt.Sprintf("cannot let kubelet start: the undo in run %s was cut short", s.Unfinished)
		t.Try = []string{trouble.Command("undo") + ", which finishes it, or " + trouble.Command("apply") + "; systemd then starts kubelet"}
	} else if cannot := s.Cannot(); len(cannot) > 0 {
		t.What, t.Try = "cannot let kubelet start: the node cannot converge", nil
		for _, ch := range joined(cannot) {
			t.Because, t.Try = append(t.Because, ch.Cannot), append(t.Try, ch.Try...)
		}
		t.Try = append(t.Try, "then "+trouble.Command("apply")+"; systemd then starts kubelet")
	}
	if s.Damage != "" {
		t.Because = append(t.Because, s.Damage)
	}
	return t
}

// gateLine says in one line why kubelet may not start: kubelet's Restart= runs the gate every few
// seconds, and more lines would fill the journal.
func gateLine(t *trouble.Error) error {
	line := t.What
	if len(t.Because) > 0 {
		line += ": " + t.Because[0]
	}
	return &trouble.Error{What: line + "; " + trouble.Command("status") + " says how to fix it"}
}
