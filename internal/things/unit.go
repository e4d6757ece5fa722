// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// unit is a systemd unit in two words: "enabled active". In a root folder, where nothing runs, the
// second word is "-" and stays so: gpuadm makes the links that enable the unit, and first boot
// starts it.
type unit string

// UnitWords are the two words of a unit's state: whether it is enabled, and whether it runs. Both
// are "" for a missing unit.
func UnitWords(state converge.State) (enabled, active string) {
	enabled, active, _ = strings.Cut(string(state), " ")
	return enabled, active
}

// UnitState is the state of a unit's two words.
func UnitState(enabled, active string) converge.State {
	return converge.State(enabled + " " + active)
}

// NewUnit names a unit.
func NewUnit(name string) converge.Thing { return unit(name) }

// Running wants a unit enabled and running.
func Running(name, why string) converge.Want { return wantUnit(name, "active", why) }

// Enabled wants a unit enabled, running or not.
func Enabled(name, why string) converge.Want { return wantUnit(name, "", why) }

func wantUnit(name, wantActive, why string) converge.Want {
	to := func(found converge.State) (converge.State, error) {
		if found == "" {
			return "", host.Later{Until: "its installation"}
		}
		enabled, active := UnitWords(found)
		if MasksUnit(enabled) {
			unmask := "sudo systemctl unmask "
			if enabled == maskedUntilReboot {
				unmask += "--runtime "
			}
			return "", &trouble.Error{
				What: fmt.Sprintf("cannot start %s: the unit is masked", name),
				Try:  []string{unmask + name},
			}
		}

		if enabled == "disabled" { // other units enable those that are static, generated, alias and the like
			enabled = "enabled"
		}
		if active != "-" && wantActive != "" {
			active = wantActive
		}
		return UnitState(enabled, active), nil
	}

	return converge.Want{Thing: unit(name), Why: why, To: to}
}

// Masked wants a unit disabled, stopped and masked: then nothing starts it, not even a package's
// script. It leaves a unit alone that is not installed.
func Masked(name, why string) converge.Want {
	to := func(found converge.State) (converge.State, error) {
		if found == "" {
			return "", nil
		}
		_, active := UnitWords(found)
		if active != "-" {
			active = "inactive"
		}
		return UnitState("masked", active), nil
	}

	return converge.Want{Thing: unit(name), Why: why, To: to}
}

// Unmasked has a want of Running unmask the unit, in place of refusing.
func Unmasked(w converge.Want) converge.Want {
	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		enabled, active := UnitWords(found)
		if enabled == "masked" {
			found = UnitState("disabled", active)
		}
		return to(found)
	}

	return w
}

func (u unit) Ref() converge.Ref { return converge.Ref{Kind: "unit", Name: string(u)} }

func (u unit) Look(ctx context.Context, v host.View) (converge.State, error) {
	info, err := v.Unit(ctx, string(u))
	later := errors.As(err, &host.Later{}) // nothing runs in a root folder
	if err != nil && !later {
		return "", err
	}
	if info.Load == "not-found" {
		return "", nil
	}

	active := "inactive"
	if later {
		active = "-"
	} else if runs(info) {
		active = "active"
	}

	return UnitState(info.Enabled, active), nil
}

// runs reports whether a unit is active or changes to it.
func runs(u host.Unit) bool {
	return u.Active == "active" || u.Active == "activating" || u.Active == "reloading"
}

// SamePart is converge.Partial's: a boot starts what gpuadm has enabled, and a timer's
// service ends.
func (u unit) SamePart(before, after, found converge.State) bool {
	wasEnabled, wasActive := UnitWords(before)
	if before == "" {
		wasEnabled = "disabled"
		wasActive = "inactive"
	}
	madeEnabled, madeActive := UnitWords(after)
	enabled, active := UnitWords(found)
	if found == "" || after == "" {
		return found == after
	}

	sameEnabled := madeEnabled == wasEnabled || enabled == madeEnabled
	sameActive := madeActive == wasActive || active == madeActive
	return sameEnabled && sameActive
}

// TakeOut reverts each of the two words that gpuadm changed, and leaves the other: a unit that
// gpuadm enabled, and that a boot has started since, is disabled and continues to run. A unit that
// was missing before gpuadm counts as disabled and inactive: undo removes its files separately.
func (u unit) TakeOut(_ host.View, found, before, after converge.State) (converge.State, []string, error) {
	now := strings.Fields(string(found))
	was := strings.Fields(string(before))
	made := strings.Fields(string(after))
	if len(was) == 0 && len(now) == 2 {
		was = []string{"disabled", "inactive"}
		if now[1] == "-" {
			was[1] = "-"
		}
	}

	if len(now) != 2 || len(was) != 2 || len(made) != 2 {
		return "", nil, fmt.Errorf("cannot read state %q, %q or %q: not one of a unit", found, before, after)
	}

	var left []string
	for i := range now {
		// A unit is disabled before it is masked, and after it is unmasked.
		halfMasked := now[i] == "disabled" && (made[i] == "masked" || was[i] == "masked")
		switch {
		case was[i] == made[i], now[i] == was[i]:
		case now[i] == made[i], halfMasked:
			now[i] = was[i]
		default:
			left = append(left, fmt.Sprintf("unit %s is %s, gpuadm had made it %s", string(u), now[i], made[i]))
		}
	}

	return converge.State(strings.Join(now, " ")), left, nil
}

func (u unit) Make(ctx context.Context, h host.Host, to converge.State) error {
	found, err := u.Look(ctx, h)
	if err != nil {
		return err
	}
	enabled, active := UnitWords(to)
	enabledNow, activeNow := UnitWords(found)

	job := ""
	if active != activeNow {
		job = jobFor(active)
	}
	if enabledNow == "masked" && (enabled != "masked" || job == "start") {
		if err := h.SetUnit(ctx, string(u), host.UnitChange{File: "unmask"}); err != nil {
			return err
		}
	}

	if enabled == "masked" {
		return u.mask(ctx, h, enabledNow, job)
	}

	change := host.UnitChange{Job: job}
	switch {
	case enabled == enabledNow:
	case enabled == "enabled":
		change.File = "enable"
	case enabled == "disabled":
		change.File = "disable"
	case enabledNow != "masked": // else its file says it again, such as static
		return fmt.Errorf("cannot make %s %s: systemd knows no way to", string(u), enabled)
	}

	return h.SetUnit(ctx, string(u), change)
}

// jobFor is systemd's job that makes a unit active or inactive; "" for a root folder.
func jobFor(active string) string {
	switch active {
	case "active":
		return "start"
	case "inactive":
		return "stop"
	}
	return ""
}

// mask disables and stops a unit before it masks it: a mask alone leaves the links of [Install],
// and a running unit.
func (u unit) mask(ctx context.Context, h host.Host, enabledNow, job string) error {
	var changes []host.UnitChange
	if enabledNow == "enabled" {
		changes = append(changes, host.UnitChange{File: "disable"})
	}
	if job != "" {
		changes = append(changes, host.UnitChange{Job: job})
	}
	changes = append(changes, host.UnitChange{File: "mask"})

	for _, c := range changes {
		if err := h.SetUnit(ctx, string(u), c); err != nil {
			return err
		}
	}

	return nil
}

// judgedUnit is a unit with a verdict, which gpuadm asks before it starts the unit.
type judgedUnit struct {
	unit
	verdict PrecheckFunc
}

// StartJudged has a want of Running ask a verdict before the start.
func StartJudged(w converge.Want, by PrecheckFunc) converge.Want {
	w.Thing = judgedUnit{unit: w.Thing.(unit), verdict: by}
	return w
}

// Validate asks the verdict where the change starts the unit.
func (j judgedUnit) Validate(ctx context.Context, v host.View, found, after converge.State) error {
	_, was := UnitWords(found)
	_, active := UnitWords(after)
	if active != "active" || was == active {
		return nil
	}
	return Verdict(ctx, v, host.Unit{}, string(j.unit), j.verdict)
}

func (j judgedUnit) Make(ctx context.Context, h host.Host, to converge.State) error {
	found, err := j.Look(ctx, h)
	if err == nil {
		err = j.Validate(ctx, h, found, to)
	}
	if err != nil {
		return err
	}
	return j.unit.Make(ctx, h, to)
}

// DriverLoads waits for a unit that loads the driver.
func DriverLoads(unit string) trouble.Wait {
	return trouble.Wait{
		For: unit + " loads the NVIDIA driver",
		Try: []string{"journalctl -u " + unit},
	}
}
