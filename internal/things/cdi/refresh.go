// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// States of the toolkit's units; after "given up" come a colon and why.
const (
	refreshNone    = "none" // they are not installed, or are masked
	refreshReady   = "ready"
	refreshGivenUp = "given up"
)

// refresh is whether systemd would have the spec written again. It gives up on the service after
// five failures in ten seconds, and then on the unit that watches for a new driver: that happens
// while the module is there and the driver's libraries are not yet. From 1.20.1 on a udev rule
// starts the service, too, when the module is loaded.
// Sources: https://github.com/Azure/AgentBaker/pull/9150 and pull 8736;
// https://github.com/NVIDIA/nvidia-container-toolkit/issues/1611; deployments/systemd and
// deployments/udev there.
type refresh struct{}

// Refresh wants systemd to have the spec written again when the driver changes.
func Refresh() converge.Want {
	return converge.Following(refresh{}, "after failures systemd runs "+Unit+" and "+Path+" no more")
}

// GivenUp says what systemd has given up; "" if nothing.
func GivenUp(state converge.State) string {
	_, what, _ := strings.Cut(string(state), refreshGivenUp+": ")
	return what
}

func (refresh) Ref() converge.Ref { return converge.Ref{Kind: "cdi", Name: "refresh"} }

func (refresh) Look(ctx context.Context, v host.View) (converge.State, error) {
	units, err := failedUnits(ctx, v)
	switch {
	case err != nil:
		return "", err
	case units == nil:
		return refreshNone, nil
	case len(units) == 0:
		return refreshReady, nil
	}

	return converge.State(refreshGivenUp + ": " + strings.Join(units, " and ")), nil
}

// failedUnits are those of the toolkit's units that have failed; nil if the toolkit has none.
func failedUnits(ctx context.Context, v host.View) (failed []string, err error) {
	for _, name := range []string{Unit, Path} {
		u, err := v.Unit(ctx, name)
		if u.Load == "not-found" || u.Load == "masked" {
			continue
		}
		if err != nil {
			return nil, err
		}
		if failed == nil {
			failed = []string{}
		}
		if u.Active == "failed" {
			failed = append(failed, name)
		}
	}
	return failed, nil
}

// Make has systemd forget the failures, and then watch again. It does not run the service: only a
// spec that is wrong needs that, and two runs at once would be a race.
func (refresh) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != refreshReady {
		return nil
	}
	failed, err := failedUnits(ctx, h)
	if err != nil {
		return err
	}

	for _, name := range failed {
		job := "reset-failed"
		if name == Path {
			job = "start"
		}
		if err := h.SetUnit(ctx, name, host.UnitChange{Job: job}); err != nil {
			return err
		}
	}

	return nil
}

// Affected returns found: no change of gpuadm's makes the service fail.
func (refresh) Affected(found converge.State, _ converge.Change) converge.State {
	return found
}

// Current says that systemd must not have given up.
func (refresh) Current(found converge.State) converge.State {
	if GivenUp(found) != "" {
		return refreshReady
	}
	return found
}

// Rule is the file of the udev rule that starts the toolkit's service when the driver's module is
// loaded; "" if there is none.
func Rule(v host.View) string {
	folders := []string{
		"/etc/udev/rules.d", "/run/udev/rules.d",
		"/usr/lib/udev/rules.d", "/lib/udev/rules.d",
	}
	for _, folder := range folders {
		names, _ := v.ReadDir(folder)
		for _, name := range names {
			file := path.Join(folder, name)
			text, err := v.ReadFile(file)
			if err == nil && strings.Contains(string(text), Unit) {
				return file
			}
		}
	}
	return ""
}
