// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

// apply runs an apply and says how it went.
func (c *common) apply(ctx context.Context, e *converge.Engine, h host.Host) error {
	if none, err := c.noGPU(ctx, e, h); none || err != nil {
		return err
	}
	voice := c.voice()
	stop, done := onSignal()
	defer done()
	e.Tell, e.Stop = voice.tell, stop
	began := h.Now()
	res, err := e.Apply(ctx, h)
	voice.close()
	c.at = res.Stage
	c.tellCluster(ctx, e, h, cloud.Outcome{Made: res.Made, Stage: res.Stage, Err: err})
	if err != nil && !(converge.Passes(err) && onlyANewProcess(res)) {
		return err
	}
	select {
	case <-stop:
		c.reboots = false // whoever stops a run wants no reboot either
	default:
	}
	if c.output != "json" {
		c.answer(c.applied(res, h.Now().Sub(began).Seconds()))
		c.atFirstBoot(ctx, h, res.Later)
	}
	switch {
	case res.Reboot == "":
		return c.anew(ctx, res, stop)
	case c.reboots:
		return reboot(ctx, h)
	}
	return exit(exitReboot)
}

// tellCluster leaves word with the cluster of how an apply went. What keeps it from that is no fault of the apply's.
func (c *common) tellCluster(ctx context.Context, e *converge.Engine, h host.Host, o cloud.Outcome) {
	if c.rootDir != "/" || errors.Is(o.Err, converge.ErrStopped) || o.Err != nil && !o.GaveUp && o.Err.Error() == c.told {
		return
	}
	c.told = ""
	if o.Err != nil {
		c.told = o.Err.Error() // the boot unit tries again and again: once is enough
	}
	if o.Err == nil && len(o.Made) == 0 {
		return
	}
	// A run whose time is over has a word to leave all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	f, err := e.Facts(ctx, h)
	if err == nil {
		err = cloud.Report(ctx, c.node, h, e.Spec, f, o)
	}
	if err != nil && c.verbose {
		fmt.Fprintf(c.stderr, "gpuadm: cannot tell the cluster: %s\n", printable(err.Error()))
	}
}

// anew goes on in a new process where only that can: the driver's library was replaced while this one ran, and the loader
// does not load it twice.
func (c *common) anew(ctx context.Context, res converge.Result, stop <-chan struct{}) error {
	if c.startAnew == nil || !onlyANewProcess(res) {
		return nil
	}
	select {
	case <-stop:
		return nil
	default:
	}
	end, bounded := ctx.Deadline()
	if !bounded {
		return c.startAnew()
	}
	// What is left of it, not all of it once more; and 0 would be none.
	return c.startAnew("--deadline=" + max(time.Until(end), time.Millisecond).String())
}

// onlyANewProcess says whether something of an apply is left to a new process.
func onlyANewProcess(res converge.Result) bool {
	return slices.ContainsFunc(res.Later, func(ch converge.Change) bool { return ch.When == host.InNewProcess })
}

// applied is an apply's last sentence.
func (c *common) applied(res converge.Result, seconds float64) string {
	switch {
	case len(res.Undone) > 0:
		return fmt.Sprintf("%s undone: the undo that was cut short is finished. Held since the undo of run %s. To go on: %s",
			count(len(res.Undone), "change"), res.Held, c.typed("apply"))
	case res.Held != "":
		return fmt.Sprintf("Held since the undo of run %s: nothing was done. To go on: %s", res.Held, c.typed("apply"))
	case res.Reboot != "" && c.reboots:
		return fmt.Sprintf("Rebooting: %s. The boot unit goes on.", res.Reboot)
	case res.Reboot != "":
		return fmt.Sprintf("A reboot is needed: %s. Reboot, then: %s", res.Reboot, c.typed("apply"))
	case res.Run == "" && len(res.Later) > 0:
		return fmt.Sprintf("Nothing to do now; %s.", waits(res.Later))
	case res.Run == "":
		return "Nothing to do."
	}
	s := fmt.Sprintf("%s made in %.1f s, run %s", count(len(res.Made), "change"), seconds, res.Run)
	if len(res.Later) > 0 {
		s += "; " + waits(res.Later)
	}
	return s + ". To put it back: " + c.typed("undo")
}

// atFirstBoot says of an image in which something is left for the first boot if nobody will be there to make it.
func (c *common) atFirstBoot(ctx context.Context, h host.Host, later []converge.Change) {
	if c.rootDir == "/" || !slices.ContainsFunc(later, func(ch converge.Change) bool { return !ch.Settles && ch.When == host.AtFirstBoot }) {
		return
	}
	// In a folder the links are what can be seen of a unit.
	if u, err := h.Unit(ctx, stages.BootUnit); err != nil && !errors.As(err, new(host.Later)) || u.Enabled == "enabled" {
		return
	}
	c.answer(fmt.Sprintf("Nobody goes on at first boot: the image has no %s. To put it there: %s", stages.BootUnit, strings.Replace(c.typed("install"), "install", "apply --install", 1)))
}

// undo runs an undo and says how it went.
func (c *common) undo(ctx context.Context, e *converge.Engine, h host.Host, to string, leave []string) error {
	voice := c.voice()
	stop, done := onSignal()
	defer done()
	e.Tell, e.Stop = voice.tell, stop
	res, err := e.Undo(ctx, h, to, leave)
	voice.close()
	if err != nil {
		return err
	}
	if c.output == "json" {
		return nil
	}
	if res.Run == "" {
		fmt.Fprintln(c.stdout, "Nothing to undo.")
		return nil
	}
	s := count(len(res.Made), "change") + " put back"
	if len(res.Left) > 0 {
		s += fmt.Sprintf(", %d left", len(res.Left))
	}
	fmt.Fprintf(c.stdout, "%s. Unattended applies are held; to lift it: %s\n", s, c.typed("apply"))
	if res.Reboot != "" {
		fmt.Fprintf(c.stdout, "Some of it holds after a reboot: %s.\n", res.Reboot)
		return exit(exitReboot)
	}
	return nil
}
