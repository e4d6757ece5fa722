// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

// rebootable refuses an apply --reboot that the boot unit cannot continue: it works on this machine, with its own spec.
func (c *common) rebootable() error {
	switch {
	case c.rootDir != "/":
		return usage{fmt.Errorf("cannot reboot %s: that machine does not run; leave out --reboot", c.rootDir)}
	case len(c.files) > 0:
		return usage{fmt.Errorf("cannot continue after a reboot with -f: the boot unit reads %s; write the spec there", specHome)}
	}
	return nil
}

// installStage is the name of the stage that installs the boot unit.
const installStage = "install"

// installed adds the install stage: after the stages that make the GPUs ready, so that kubelet waits only on a node with ready GPUs,
// and before the stages that depend on whether kubelet waits: else they would ask for a taint that keeps pods away.
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

// mayReboot refuses, before anything is touched, a reboot after which no boot unit continues.
func (c *common) mayReboot(ctx context.Context, e *converge.Engine, h host.Host) error {
	c.reboots = true
	if slices.ContainsFunc(e.Stages, func(st converge.Stage) bool { return st.Name == installStage }) {
		return nil
	}
	u, err := h.Unit(ctx, stages.BootUnit)
	if err != nil {
		return fmt.Errorf("cannot check the boot unit: %w", err)
	}
	if u.Enabled == "enabled" {
		return nil
	}
	c.reboots = false // also where a change asks for a reboot that the plan does not show
	p, err := e.Plan(ctx, h)
	if err != nil {
		return err
	}
	for _, ch := range p.Changes {
		if slices.Contains(ch.Breaks, "reboot") && ch.Cannot == "" {
			return &trouble.Error{
				What:    fmt.Sprintf("cannot continue after a reboot: %s is not installed", stages.BootUnit),
				Because: []string{fmt.Sprintf("%s takes effect only after a reboot, and no unit would then make the other changes", ch.String()), "nothing was touched"},
				Try:     []string{c.typed("apply") + " --install --reboot: it installs the unit first"},
			}
		}
	}
	return nil
}

// reboot reboots the machine once all is in the journal. It returns as soon as systemd has begun.
func reboot(ctx context.Context, h host.Host) error {
	if _, err := h.Do(context.WithoutCancel(ctx), "systemctl", "reboot"); err != nil {
		return &trouble.Error{
			What:    fmt.Sprintf("cannot reboot: %v", err),
			Because: []string{"the journal has all changes, and the boot unit continues after any reboot"},
			Try:     []string{"reboot by hand"},
			Err:     err,
		}
	}
	return exit(exitReboot)
}
