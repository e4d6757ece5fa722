// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Make takes the fewest steps from the GPU's current state.
func (g gpu) Make(ctx context.Context, h host.Host, to converge.State) error {
	return g.MakeAll(ctx, h, []converge.Change{{Ref: g.Ref(), After: to}})
}

// MakeAll changes several GPUs together, so that one reset serves all that need one. A GPU whose mode only a reboot changes waits
// for it, and the others get their partitions.
func (g gpu) MakeAll(ctx context.Context, h host.Host, all []converge.Change) error {
	g.driverCache.set(nil)
	ctx, end := host.KeepDriver(ctx)
	defer end()
	d, err := h.Driver(ctx)
	if err != nil {
		return err
	}
	var ways []Way
	for _, c := range all {
		w, err := wayTo(&d, c)
		if err != nil {
			return err
		}
		ways = append(ways, w)
	}
	if err := makeWays(ctx, h, &d, ways, all); err != nil {
		return err
	}
	if d, err = h.Driver(ctx); err != nil {
		return err
	}
	g.driverCache.set(&d)
	return nil
}

// makeWays executes the ways while the services that hold GPUs are paused, after it has ended the processes that may be ended.
func makeWays(ctx context.Context, h host.Host, d *host.Driver, ways []Way, all []converge.Change) error {
	run := Runner{Device: h, Found: d}
	if !disturbs(ways) {
		return explain(run.Run(ctx, ways...), nil)
	}
	if err := watched(ctx, h, ways); err != nil {
		return err
	}
	if err := refuseUsers(ctx, h, d, ways, all); err != nil {
		return err
	}
	err := things.Pause(ctx, h, pausedFor(ways))
	if err == nil {
		err = endUsers(ctx, h, d, ways)
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
	run.Holders = func(ctx context.Context, gpus []string) ([]string, error) { return holding(ctx, h, d, gpus) }
	err = run.Run(ctx, ways...)
	var held []string // before the services run again
	if refused := (*host.GPUError)(nil); errors.As(err, &refused) && refused.Code == "IN_USE" {
		var failed error
		if held, failed = holding(context.WithoutCancel(ctx), h, d, names(ways)); failed != nil {
			held = []string{failed.Error()}
		}
	}
	if resumed := things.Resume(context.WithoutCancel(ctx), h); resumed != nil {
		return host.Join(explain(err, held), resumed)
	}
	if unreset := (*Unreset)(nil); errors.As(err, &unreset) && !errors.As(err, new(*Failure)) {
		return host.Reboot{Why: unreset.Error()}
	}
	return explain(err, held)
}

// wayTo lists the steps of one GPU to its desired state.
func wayTo(d *host.Driver, c converge.Change) (Way, error) {
	at, known := find(d, c.Name)
	if !known {
		return Way{}, &trouble.Error{
			What: fmt.Sprintf("cannot partition GPU %s: the driver does not know it", c.Name),
			Try:  []string{"lspci -d 10de: says whether it is still on the bus; dmesg says why it may have fallen off"},
		}
	}
	target, err := ParseState(string(c.After))
	if err != nil {
		return Way{}, err
	}
	m, err := Of(at)
	if err != nil {
		return Way{}, err
	}
	steps, err := m.Steps(StateOf(at), target)
	return Way{c.Name, steps}, err
}

// Sweep starts the services that a killed run had paused.
func (g gpu) Sweep(h host.Host) error { return things.Resume(context.Background(), h) }

func changesMode(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool { return s.Do == ModeOn || s.Do == ModeOff || s.Do == Reset })
}

// disturbs reports whether the ways take something from the users of a GPU.
func disturbs(ways []Way) bool {
	return slices.ContainsFunc(ways, func(w Way) bool {
		return changesMode(w.Steps) || slices.ContainsFunc(w.Steps, func(s Step) bool { return s.Do == DestroyInstance || s.Do == DestroyCompute })
	})
}

// explain turns a failure into the engine's error. It names the processes that have a device open, if a GPU is in use.
func explain(err error, held []string) error {
	f := (*Failure)(nil)
	if !errors.As(err, &f) {
		return err
	}
	t := &trouble.Error{What: f.Error(), Err: err}
	for _, g := range append([]RolledBack{f.RolledBack}, f.Others...) {
		for _, s := range g.Undone {
			t.Undone = append(t.Undone, s.of(g.GPU))
		}
		if g.Restored() {
			t.Because = append(t.Because, fmt.Sprintf("GPU %s is in its former state: %s", g.GPU, g.Before))
		} else {
			t.Because = append(t.Because, fmt.Sprintf("GPU %s was %q and is %q now", g.GPU, g.Before, g.After))
		}
		for _, err := range g.Left {
			t.Because = append(t.Because, err.Error())
		}
	}
	refused, unreset := (*host.GPUError)(nil), (*Unreset)(nil)
	switch {
	case errors.As(f.Err, &unreset):
		t.What, t.Try = unreset.says()
		t.Because = append(trouble.Few(unreset.Holders, 6), t.Because...)
	case errors.As(f.Err, &refused) && refused.Code == "IN_USE":
		t.Because = append(trouble.Few(held, 6), t.Because...)
		t.Try = []string{"end what uses the GPU (nvidia-smi lists processes, " + trouble.Command("plan") + " names who has a device open), then run the same command again"}
	}
	return t
}
