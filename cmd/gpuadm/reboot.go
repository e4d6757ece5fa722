// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

// rebootable refuses an apply --reboot that nobody could go on with: the boot unit works on this machine, by its own spec.
func (c *common) rebootable() error {
	switch {
	case c.rootDir != "/":
		return usage{fmt.Errorf("cannot reboot %s: nothing of that machine runs; leave out --reboot", c.rootDir)}
	case len(c.files) > 0:
		return usage{fmt.Errorf("cannot go on after a reboot with -f: the boot unit reads %s; put the spec there", specHome)}
	}
	return nil
}

// installStage is the name of the stage that installs the boot unit.
const installStage = "install"

// installed adds the install stage: after those that make the GPUs stand, so that kubelet is made to wait only by a node that
// stands, and before those that depend on whether kubelet waits: without that they would have a taint keep pods away.
func installed(chosen []converge.Stage, install converge.Stage) []converge.Stage {
	at := slices.IndexFunc(chosen, func(st converge.Stage) bool {
		return !slices.ContainsFunc(stages.BeforeKubelet(), func(b converge.Stage) bool { return b.Name == st.Name }) || st.Name == "node"
	})
	if at < 0 {
		at = len(chosen)
	}
	return slices.Insert(slices.Clone(chosen), at, install)
}

// installFirst moves the install stage, if it was asked for, to the front: else it would come after the reboot that needs
// what it installs.
func installFirst(e *converge.Engine) {
	i := slices.IndexFunc(e.Stages, func(st converge.Stage) bool { return st.Name == installStage })
	if i > 0 {
		st := e.Stages[i]
		e.Stages = slices.Insert(slices.Delete(e.Stages, i, i+1), 0, st)
	}
}

// mayReboot refuses, before anything is touched, a reboot after which nobody goes on.
func (c *common) mayReboot(ctx context.Context, e *converge.Engine, h host.Host) error {
	c.reboots = true
	if slices.ContainsFunc(e.Stages, func(st converge.Stage) bool { return st.Name == installStage }) {
		return nil
	}
	u, err := h.Unit(ctx, stages.BootUnit)
	if err != nil {
		return fmt.Errorf("cannot look for the boot unit: %w", err)
	}
	if u.Enabled == "enabled" {
		return nil
	}
	c.reboots = false // also if a change asks for a reboot that the plan does not tell of
	p, err := e.Plan(ctx, h)
	if err != nil {
		return err
	}
	for _, ch := range p.Changes {
		if slices.Contains(ch.Breaks, "reboot") && ch.Cannot == "" {
			return &converge.Trouble{
				What:    fmt.Sprintf("cannot go on after a reboot: %s is not installed", stages.BootUnit),
				Because: []string{fmt.Sprintf("%s holds only after a reboot, and no later run would make the rest", ch.String()), "nothing was touched"},
				Try:     []string{c.typed("apply") + " --install --reboot: it installs the unit first"},
			}
		}
	}
	return nil
}

// reboot reboots the machine once all is in the journal. It returns as soon as systemd has begun.
func reboot(ctx context.Context, h host.Host) error {
	if _, err := h.Do(context.WithoutCancel(ctx), "systemctl", "reboot"); err != nil {
		return &converge.Trouble{
			What:    fmt.Sprintf("cannot reboot: %v", err),
			Because: []string{"all that was made is in the journal, and the boot unit goes on after any reboot"},
			Try:     []string{"reboot by hand"},
			Err:     err,
		}
	}
	return exit(exitReboot)
}
