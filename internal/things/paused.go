// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// pausedFile lists the services that were stopped for a change and shall run again. It lies in /run: after a boot
// systemd starts what is enabled by itself.
const pausedFile = "/run/gpuadm-paused"

// Pause stops those of the units that run, and notes them first: a run that is killed before Resume leaves word of them.
func Pause(ctx context.Context, h host.Host, units []string) error {
	var running []string
	for _, name := range units {
		u, err := h.Unit(ctx, name)
		if err != nil {
			return err
		}
		if u.Active == "active" || u.Active == "activating" {
			running = append(running, name)
		}
	}
	if len(running) == 0 {
		return nil
	}
	before, err := pausedUnits(h)
	if err != nil {
		return err
	}
	list := strings.Join(append(before, running...), "\n") + "\n"
	if err := h.WriteFile(pausedFile, []byte(list), host.Attr{Mode: 0o644}); err != nil {
		return err
	}
	for _, name := range running {
		if err := h.SetUnit(ctx, name, host.UnitChange{Job: "stop"}); err != nil {
			return err
		}
	}
	return nil
}

// Resume starts what was paused, last stopped first. All are tried; the error names those that did not start.
func Resume(ctx context.Context, h host.Host) error {
	units, err := pausedUnits(h)
	if err != nil || len(units) == 0 {
		return err
	}
	var failed error
	for i := range units {
		name := units[len(units)-1-i]
		if err := h.SetUnit(ctx, name, host.UnitChange{Job: "start"}); err != nil {
			failed = errors.Join(failed, fmt.Errorf("cannot start %s again: %w", name, err))
		}
	}
	if failed != nil {
		return failed
	}
	return h.Remove(pausedFile)
}

func pausedUnits(v host.View) ([]string, error) {
	data, err := v.ReadFile(pausedFile)
	if missing(err) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

// paused are the services that a run has stopped and could not start again, because it was killed. Its state is their
// names, "" if there are none.
type paused struct{}

// Resumed wants services running that an earlier run paused.
func Resumed() converge.Want {
	return converge.Want{Thing: paused{}, Why: "an earlier run stopped them for a change, and ended before it could start them again", To: func(converge.State) (converge.State, error) {
		return "", nil
	}}
}

// NewPaused builds the thing again, for undo.
func NewPaused(string) converge.Thing { return paused{} }

func (paused) Kind() string { return "paused" }
func (paused) Name() string { return "services" }

func (paused) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", nil
	}
	units, err := pausedUnits(v)
	return converge.State(strings.Join(units, " ")), err
}

func (paused) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != "" {
		return nil
	}
	return Resume(ctx, h)
}

// Unsettled is as found: whoever pauses resumes.
func (paused) Unsettled(found converge.State, _ converge.Change) converge.State { return found }

// Settled is none.
func (paused) Settled(converge.State) converge.State { return "" }
