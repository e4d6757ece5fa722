// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Make takes the fewest steps from the GPU's current state.
func (g gpu) Make(ctx context.Context, h host.Host, to converge.State) error {
	return g.MakeAll(ctx, h, []converge.Change{{Ref: g.Ref(), After: to}})
}

// MakeAll changes several GPUs together, so that one reset serves all that need one. A GPU whose
// mode only a reboot changes waits for it, and the others get their partitions.
func (g gpu) MakeAll(ctx context.Context, h host.Host, all []converge.Change) error {
	g.driverCache.set(nil)
	ctx, end := host.KeepDriver(ctx)
	defer end()

	d, err := h.Driver(ctx)
	if err != nil {
		return err
	}
	var plans []Plan
	for _, c := range all {
		p, err := planTo(&d, c)
		if err != nil {
			return err
		}
		plans = append(plans, p)
	}

	if err := makePlans(ctx, h, &d, plans, all); err != nil {
		return err
	}

	after, err := h.Driver(ctx)
	if err != nil {
		return err
	}
	g.driverCache.set(&after)

	return nil
}

// makePlans pauses the services that hold GPUs, ends the processes that the operator has allowed to
// end, executes the plans, and starts the services again.
func makePlans(ctx context.Context, h host.Host, d *host.Driver, plans []Plan, all []converge.Change) error {
	run := Runner{Device: h, Found: d}
	disturbs := slices.ContainsFunc(plans, Plan.disturbs)
	units := servicesToPause(plans)
	if !disturbs && len(units) == 0 {
		return explain(run.Run(ctx, plans...), nil)
	}

	if err := refuseUsers(ctx, h, d, plans, all); err != nil {
		return err
	}
	err := things.Pause(ctx, h, units)
	if err == nil {
		err = endUsers(ctx, h, d, plans)
	}
	if err != nil {
		return host.Join(err, things.Resume(context.WithoutCancel(ctx), h))
	}

	run.Idle = func(ctx context.Context, gpus []string, change func() error) error {
		err := things.PausePersistence(ctx, h, gpus, d)
		if err == nil {
			err = change()
		}
		return host.Join(err, things.ResumePersistence(context.WithoutCancel(ctx), h))
	}

	run.Holders = func(ctx context.Context, gpus []string) ([]string, error) {
		return holding(ctx, h, d, gpus)
	}
	err = run.Run(ctx, plans...)

	var held []string // asked before the services start again
	if inUse(err) {
		held = holdersNow(ctx, h, d, plans)
	}
	if resumed := things.Resume(context.WithoutCancel(ctx), h); resumed != nil {
		return host.Join(explain(err, held), resumed)
	}
	var unreset *Unreset
	if errors.As(err, &unreset) && !errors.As(err, new(*Failure)) {
		return host.Reboot{Why: unreset.Error()}
	}

	return explain(err, held)
}

// inUse reports whether the driver refused a step because a process uses the GPU.
func inUse(err error) bool {
	var refused *host.GPUError
	return errors.As(err, &refused) && refused.Code == "IN_USE"
}

// noMIGMode reports whether the driver has no MIG mode for a GPU that could have partitions.
func noMIGMode(err error) bool {
	var refused *host.GPUError
	const call = "nvmlDeviceSetMigMode"
	return errors.As(err, &refused) && refused.Call == call && refused.Code == "NOT_SUPPORTED"
}

// displayMode is what a workstation board asks for before it can be partitioned: it comes in
// display mode graphics. Sources:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/getting-started-with-mig.html (RTX PRO
// 6000 Blackwell, DisplayModeSelector from 1.72.0 on);
// https://github.com/truenas-community-sysexts/nvidia-mig-support.
const displayMode = "set the display mode of a workstation board to compute, with NVIDIA's tool " +
	"(https://developer.nvidia.com/displaymodeselector, 1.72.0 or newer), which switches its displays off: " +
	"sudo ./DisplayModeSelector --gpumode=compute; then reboot, and run the same command again"

// holdersNow names the processes that have a device of the plans' GPUs open, or the error.
func holdersNow(ctx context.Context, h host.Host, d *host.Driver, plans []Plan) []string {
	var addresses []string
	for _, p := range plans {
		addresses = append(addresses, p.GPU)
	}

	held, err := holding(context.WithoutCancel(ctx), h, d, addresses)
	if err != nil {
		return []string{err.Error()}
	}
	return held
}

// planTo lists the steps of one GPU to its desired state.
func planTo(d *host.Driver, c converge.Change) (Plan, error) {
	found, known := find(d, c.Name)
	if !known {
		return Plan{}, &trouble.Error{
			What: fmt.Sprintf("cannot partition GPU %s: the driver does not know it", c.Name),
			Try:  []string{"lspci -d 10de: says whether it is still on the bus; dmesg says why it may have fallen off"},
		}
	}

	target, err := ParseState(string(c.After))
	if err != nil {
		return Plan{}, err
	}
	m, err := Of(found)
	if err != nil {
		return Plan{}, err
	}
	steps, err := m.Steps(StateOf(found), target)

	return Plan{GPU: c.Name, Steps: steps, Stop: strings.Fields(c.Form)}, err
}

// explain turns a Failure into a trouble.Error. If a GPU is in use, it names the processes that
// have a device open.
func explain(err error, held []string) error {
	var f *Failure
	if !errors.As(err, &f) {
		return err
	}

	t := &trouble.Error{What: f.Error(), Err: err}
	for _, g := range append([]RolledBack{f.RolledBack}, f.Others...) {
		for _, s := range g.Undone {
			t.Undone = append(t.Undone, s.on(g.GPU))
		}
		t.Because = append(t.Because, g.result())

		for _, err := range g.Left {
			t.Because = append(t.Because, err.Error())
		}
	}

	var unreset *Unreset
	switch {
	case errors.As(f.Err, &unreset):
		t.What, t.Try = unreset.whatAndTry()
		t.Because = append(trouble.Few(unreset.Holders, 6), t.Because...)
	case noMIGMode(f.Err):
		t.Try = []string{displayMode}
	case inUse(f.Err):
		t.Because = append(trouble.Few(held, 6), t.Because...)
		shows := "nvidia-smi lists processes, " + trouble.Command("plan") + " names who has a device open"
		t.Try = []string{"end what uses the GPU (" + shows + "), then run the same command again"}
	}

	return t
}
