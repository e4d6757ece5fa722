// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// boot is apply for the boot unit.
func (c *common) boot(ctx context.Context, e *converge.Engine, h host.Host) error {
	c.booting = true
	c.warnOfSpec("this boot goes")
	var code error // of an apply that has succeeded
	err := c.run.Boot(ctx, func(ctx context.Context) error {
		err := c.apply(ctx, e, h)
		if errors.As(err, new(exit)) {
			code = err
			return nil
		}
		return err
	})

	var gaveUp *agent.GaveUp
	if errors.As(err, &gaveUp) {
		return c.gaveUp(gaveUp)
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

// gaveUp logs why a boot's apply has failed.
func (c *common) gaveUp(g *agent.GaveUp) error {
	f := failureOf(g.Err)
	f.advise(c.env, g.Err)
	code := exit(exitCannot)
	if trouble.IsUnknown(g.Err) {
		code = exitAgain
	}
	held := "kubelet does not start until " + trouble.Command("apply") + " succeeds"
	switch {
	case g.Started:
		held = "pods are kept away as before until " + trouble.Command("apply") + " succeeds"
	case g.Open:
		held = "kubelet starts, since gate is open in [join], and the node is not ready until " +
			trouble.Command("apply") + " succeeds"
	}

	f.Because = append(f.Because, fmt.Sprintf("%d attempts failed since boot; %s", agent.Tries, held))
	if c.broken != nil {
		f.Because = append(f.Because, c.broken.trouble("this boot went").Error())
	}
	if !c.toJournal() {
		return &trouble.Error{
			What:    f.Error,
			Because: f.Because,
			Undone:  f.Undone,
			Try:     f.Try,
			Err:     g.Err,
		}
	}

	c.loudly(f)
	return code
}
