// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
	"path"
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
// are "" for a unit that is not there.
func UnitWords(state converge.State) (enabled, active string) {
	enabled, active, _ = strings.Cut(string(state), " ")
	return enabled, active
}

// UnitState is the state of a unit's two words.
func UnitState(enabled, active string) converge.State { return converge.State(enabled + " " + active) }

// NewUnit names a unit.
func NewUnit(name string) converge.Thing { return unit(name) }

// Running wants a unit enabled and running.
func Running(name, why string) converge.Want { return wantUnit(name, "active", why) }

// Masked wants a unit disabled, stopped and masked: then nothing starts it, not even a package's
// script. It leaves a unit alone that is not installed.
func Masked(name, why string) converge.Want {
	return converge.Want{Thing: unit(name), Why: why, To: func(found converge.State) (converge.State, error) {
		if found == "" {
			return "", nil
		}
		_, active := UnitWords(found)
		if active != "-" {
			active = "inactive"
		}
		return UnitState("masked", active), nil
	}}
}

// Unmasked has a want of Running unmask the unit, in place of refusing.
func Unmasked(w converge.Want) converge.Want {
	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		if enabled, active := UnitWords(found); enabled == "masked" {
			found = UnitState("disabled", active)
		}
		return to(found)
	}
	return w
}

// Enabled wants a unit enabled, running or not.
func Enabled(name, why string) converge.Want { return wantUnit(name, "", why) }

func wantUnit(name, active, why string) converge.Want {
	return converge.Want{Thing: unit(name), Why: why, To: func(found converge.State) (converge.State, error) {
		f, a := UnitWords(found)
		switch {
		case found == "":
			return "", host.Later{Until: "its installation"}
		case f == "masked":
			return "", &trouble.Error{What: fmt.Sprintf("cannot start %s: the unit is masked", name), Try: []string{"systemctl unmask " + name}}
		}
		if f == "disabled" { // static, generated, alias and the like are enabled by others
			f = "enabled"
		}
		if a != "-" && active != "" {
			a = active
		}
		return UnitState(f, a), nil
	}}
}

func (u unit) Ref() converge.Ref { return converge.Ref{Kind: "unit", Name: string(u)} }

func (u unit) Look(ctx context.Context, v host.View) (converge.State, error) {
	info, err := v.Unit(ctx, string(u))
	later := errors.As(err, &host.Later{})
	if err != nil && !later {
		return "", err
	}
	if info.Load == "not-found" {
		return "", nil
	}
	active := "inactive"
	switch {
	case later:
		active = "-"
	case info.Active == "active" || info.Active == "reloading" || info.Active == "activating":
		active = "active"
	}
	return UnitState(info.Enabled, active), nil
}

// TakeOut reverts each of the two words that gpuadm changed, and leaves the other: a unit that
// gpuadm enabled, and that a boot has started since, is disabled and continues to run. A unit that
// was not there before gpuadm counts as disabled and inactive: undo removes its files separately.
func (u unit) TakeOut(_ host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	f, b, a := strings.Fields(string(found)), strings.Fields(string(before)), strings.Fields(string(after))
	if len(b) == 0 && len(f) == 2 {
		b = []string{"disabled", "inactive"}
		if f[1] == "-" {
			b[1] = "-"
		}
	}
	if len(f) != 2 || len(b) != 2 || len(a) != 2 {
		return "", nil, fmt.Errorf("cannot read state %q, %q or %q: not one of a unit", found, before, after)
	}
	for i := range f {
		switch {
		case b[i] == a[i], f[i] == b[i]:
		case f[i] == a[i], f[i] == "disabled" && (a[i] == "masked" || b[i] == "masked"): // a unit is disabled before it is masked, and after it is unmasked
			f[i] = b[i]
		default:
			left = append(left, fmt.Sprintf("unit %s is %s, gpuadm had made it %s", string(u), f[i], a[i]))
		}
	}
	return converge.State(strings.Join(f, " ")), left, nil
}

func (u unit) Make(ctx context.Context, h host.Host, to converge.State) error {
	now, err := u.Look(ctx, h)
	if err != nil {
		return err
	}
	file, active := UnitWords(to)
	fileNow, activeNow := UnitWords(now)
	var c host.UnitChange
	if active != activeNow && active != "-" {
		c.Job = map[string]string{"active": "start", "inactive": "stop"}[active]
	}
	if fileNow == "masked" && (file != "masked" || c.Job == "start") {
		if err := h.SetUnit(ctx, string(u), host.UnitChange{File: "unmask"}); err != nil {
			return err
		}
	}
	if file == "masked" {
		return u.mask(ctx, h, fileNow, c.Job)
	}
	if file != fileNow {
		verb, ok := map[string]string{"enabled": "enable", "disabled": "disable"}[file]
		if !ok {
			return fmt.Errorf("cannot make %s %s: systemd knows no way to", string(u), file)
		}
		c.File = verb
	}
	return h.SetUnit(ctx, string(u), c)
}

// mask disables and stops a unit before it masks it: a mask alone leaves the links of [Install],
// and a running unit.
func (u unit) mask(ctx context.Context, h host.Host, fileNow, job string) error {
	for _, c := range []host.UnitChange{{File: "disable"}, {Job: job}, {File: "mask"}} {
		if c == (host.UnitChange{}) || c.File == "disable" && fileNow != "enabled" {
			continue
		}
		if err := h.SetUnit(ctx, string(u), c); err != nil {
			return err
		}
	}
	return nil
}

// unitFiles are units whose present files systemd must have read: it starts them by its own copy of
// the files, also after gpuadm has restored the files. Its states are "read" and "outdated".
type unitFiles string

// UnitFilesRead wants systemd to have read the files of these units.
func UnitFilesRead(why string, units ...string) converge.Want {
	return converge.Following(unitFiles(strings.Join(units, " ")), why)
}

// NewUnitFiles builds the thing again from its name.
func NewUnitFiles(name string) converge.Thing { return unitFiles(name) }

func (f unitFiles) Ref() converge.Ref { return converge.Ref{Kind: "unit-files", Name: string(f)} }

func (f unitFiles) Look(ctx context.Context, v host.View) (converge.State, error) {
	for _, name := range strings.Fields(string(f)) {
		u, err := v.Unit(ctx, name)
		if err != nil {
			return "", err
		}
		if u.Outdated {
			return "outdated", nil
		}
	}
	return "read", nil
}

func (f unitFiles) Make(ctx context.Context, h host.Host, to converge.State) error {
	name, _, _ := strings.Cut(string(f), " ")
	return h.SetUnit(ctx, name, host.UnitChange{File: "read"})
}

// Affected says that a change to a unit's file makes systemd's copy outdated. It returns found if
// the copy was looked at: enabling a unit, which comes first, has systemd read all files anyway.
func (f unitFiles) Affected(found converge.State, by converge.Change) converge.State {
	if found != "" || by.Kind != "file" {
		return found
	}
	for _, name := range strings.Fields(string(f)) {
		if path.Base(by.Name) == name || path.Base(path.Dir(by.Name)) == name+".d" {
			return "outdated"
		}
	}
	return found
}

// Current says that systemd must read outdated files.
func (f unitFiles) Current(found converge.State) converge.State {
	if found == "outdated" {
		return "read"
	}
	return found
}

// DriverLoads waits for a unit that loads the driver.
func DriverLoads(unit string) trouble.Wait {
	return trouble.Wait{For: unit + " loads the NVIDIA driver", Try: []string{"journalctl -u " + unit}}
}
