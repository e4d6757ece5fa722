// SPDX-License-Identifier: Apache-2.0

// Package cdi holds two kinds through which containers get GPUs: the CDI spec that NVIDIA's toolkit
// writes (cdi.go; spec.go reads it, other.go reads the other specs), and the links to device nodes
// that systemd needs (links.go).
package cdi

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

// From 1.18.0 on, a service of NVIDIA's Container Toolkit writes the CDI spec. It does not run when
// partitions change.
// Sources: deployments/systemd in https://github.com/NVIDIA/nvidia-container-toolkit at v1.18.0,
// v1.19.0, v1.19.1 and v1.20.1; its "systemd unit for CDI refresh" in
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html.
const (
	Unit = "nvidia-cdi-refresh.service"
	Path = "nvidia-cdi-refresh.path"

	cdiDefault = "/var/run/cdi/nvidia.yaml"
	cdiEnv     = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
	cdiOutput  = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH" // in cdiEnv
)

// States of the spec; after "outdated" come a colon and why. gpuadm reads the file, and not the
// unit's result: systemd may skip the unit for one of its conditions.
const (
	cdiNone     = "none" // nothing writes one here, or there is no device to offer
	cdiCurrent  = "current"
	cdiOutdated = "outdated"
)

// beingWritten is the problem of a spec whose service runs now.
const beingWritten = "it is being written"

// cdi is the spec that the toolkit's service writes. It is current if it has the devices that the
// driver has, in the driver's version.
type cdi struct {
	// ofOwn says that the machine has a driver of its own, which answers before kubelet runs:
	// without its answer the spec's state is unknown. A driver container comes after kubelet.
	ofOwn bool
}

// Spec wants the spec to be current, if the toolkit's service is installed, or gpuadm has generated
// one.
func Spec() converge.Want {
	return converge.Following(cdi{}, "containers get the GPUs through it, and a change of partitions does not update it")
}

// SpecOfOwnDriver is Spec on a machine with a driver of its own.
func SpecOfOwnDriver() converge.Want {
	w := Spec()
	w.Thing = cdi{ofOwn: true}
	return w
}

// Problem is what is wrong with a spec of this state; "" if nothing is.
func Problem(state converge.State) string {
	_, problem, _ := strings.Cut(string(state), cdiOutdated+": ")
	return problem
}

// IsBeingWritten says whether the toolkit's service writes the spec now: then it is neither right
// nor wrong. After a failure systemd starts the service again: it then writes none.
func IsBeingWritten(ctx context.Context, v host.View) bool {
	u, err := v.Unit(ctx, Unit)
	return err == nil && writes(u)
}

// writes reports whether the service runs now.
func writes(u host.Unit) bool {
	return u.Active == "activating" && !strings.HasPrefix(u.Sub, "auto-restart")
}

// Run wants the spec to be written again after partitions have changed, if Spec keeps one.
func Run() converge.Want {
	w := Spec()
	w.Thing = New(Unit)
	return w
}

// New builds a thing of the kind again.
func New(name string) converge.Thing {
	switch name {
	case Unit:
		return besideOthers{
			Follower: cdi{},
			name:     name,
			affected: byPartitions(cdiOutdated + ": partitions change"),
		}
	case refresh{}.Ref().Name:
		return refresh{}
	case generated{}.Ref().Name:
		return generated{}
	}
	return besideOthers{
		Follower: cdi{},
		name:     cdi{}.Ref().Name,
		affected: byDriver,
	}
}

func (cdi) Ref() converge.Ref { return converge.Ref{Kind: "cdi", Name: "spec"} }

func (c cdi) Look(ctx context.Context, v host.View) (converge.State, error) {
	u, err := v.Unit(ctx, Unit)
	switch {
	case u.Load == "masked":
		return cdiNone, nil
	case u.Load == "not-found":
		if state, err := (generated{}).Look(ctx, v); err != nil || state != generatedThere {
			return cdiNone, err
		}
	case err != nil:
		return "", err
	}

	d, want, err := devicesNow(ctx, v, c.ofOwn)
	if err != nil {
		return "", err
	}
	if len(want) == 0 {
		return cdiNone, nil
	}

	name := Output(v)
	problem := beingWritten
	if !writes(u) { // else it may have asked the driver before the partitions changed
		problem, err = cdiProblem(v, name, d, want)
	}
	if err != nil || problem == "" {
		return cdiCurrent, err
	}
	waits, err := waitsForTarget(ctx, v, u)
	if err != nil {
		return "", err
	}
	if waits {
		return "", host.Later{Until: "once multi-user.target is reached: " + Unit + " is ordered after it"}
	}

	return converge.State(cdiOutdated + ": " + name + ": " + problem), nil
}

// waitsForTarget reports whether systemd would not start the service now. In 1.19.0 the service is
// ordered after multi-user.target, which waits for kubelet, which waits for gpuadm: at boot systemd
// starts it later, after gpuadm has made the partitions.
func waitsForTarget(ctx context.Context, v host.View, u host.Unit) (bool, error) {
	const target = "multi-user.target"
	for _, file := range u.Files {
		text, err := v.ReadFile(file)
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(text)) {
			units, isAfter := strings.CutPrefix(strings.TrimSpace(line), "After=")
			if isAfter && strings.Contains(" "+units+" ", " "+target+" ") {
				t, err := v.Unit(ctx, target)
				return t.Active != "active", err
			}
		}
	}

	return false, nil
}

// Output is the file that the service writes.
func Output(v host.View) string {
	env, err := v.ReadFile(cdiEnv)
	if err != nil {
		return cdiDefault // the unit does not need the file either
	}

	name := cdiDefault
	for line := range strings.Lines(string(env)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == cdiOutput {
			name = strings.Trim(value, `"'`)
		}
	}

	return name
}

func (c cdi) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != cdiCurrent {
		return nil
	}

	lacks, err := LacksService(ctx, h)
	if err != nil {
		return err
	}
	if lacks {
		return c.regenerate(ctx, h)
	}
	return c.refresh(ctx, h)
}

// refresh has the toolkit's service write the spec.
func (c cdi) refresh(ctx context.Context, h host.Host) error {
	failed := h.SetUnit(ctx, Unit, host.UnitChange{Job: "restart"})
	what := ""
	if failed != nil {
		what = failed.Error()
	} else {
		state, err := c.Look(ctx, h)
		if err != nil || state == cdiCurrent {
			return err
		}
		what = fmt.Sprintf("cannot make the CDI spec current: %s ran, and the spec is %s", Unit, state)
	}

	return &trouble.Error{
		What:    what,
		Because: things.LastLines(ctx, h, Unit),
		Try: []string{
			"systemctl status " + Unit + ", which says whether one of its conditions does not hold",
			"cdi = false in [runtime], if containers get the GPUs without CDI here",
		},
		Err: failed,
	}
}

// regenerate has the toolkit's program write the spec, where there is no service.
func (c cdi) regenerate(ctx context.Context, h host.Host) error {
	if err := generate(ctx, h); err != nil {
		return err
	}
	state, err := c.Look(ctx, h)
	if err != nil || state == cdiCurrent {
		return err
	}
	return fmt.Errorf("cannot make the CDI spec current: nvidia-ctk cdi generate ran, and the spec is %s", state)
}

// Affected says that the spec names the libraries of one version of the driver. In the stage that
// changes partitions, Run has the spec written again.
func (cdi) Affected(found converge.State, by converge.Change) converge.State {
	return byDriver(found, by)
}

// Current says that an outdated spec must be current.
func (cdi) Current(found converge.State) converge.State {
	if Problem(found) != "" {
		return cdiCurrent
	}
	return found
}

// besideOthers is a Follower that changes of other stages affect, and so does their undo. If it
// cannot be made, the run names it, and reverts none of these changes; the same thing in the stage
// toolkit then fails.
type besideOthers struct {
	converge.Follower
	name     string // the journal identifies things by kind and name
	affected func(found converge.State, by converge.Change) converge.State
}

func (b besideOthers) Ref() converge.Ref {
	return converge.Ref{Kind: b.Follower.Ref().Kind, Name: b.name}
}

// Make calls the Follower's, and turns a failure into Stays. A run that is interrupted, and a
// host.Later, are not failures.
func (b besideOthers) Make(ctx context.Context, h host.Host, to converge.State) error {
	err := b.Follower.Make(ctx, h, to)
	if err == nil || ctx.Err() != nil || errors.As(err, new(host.Later)) {
		return err
	}
	return converge.Stays{Why: err.Error()}
}

func (b besideOthers) Affected(found converge.State, by converge.Change) converge.State {
	return b.affected(found, by)
}

// byPartitions returns a function of a state and another change: a change of partitions turns the
// state into changed, unless there is nothing to keep current.
func byPartitions(changed converge.State) func(found converge.State, by converge.Change) converge.State {
	return func(found converge.State, by converge.Change) converge.State {
		if by.Kind != "mig" || found == cdiNone {
			return found
		}
		return changed
	}
}

// byDriver is the spec's state after another change: one that brings another driver makes it
// outdated. Without a driver nothing can be written.
func byDriver(found converge.State, by converge.Change) converge.State {
	removes := by.Before != "" && by.After == ""
	if removes || !slices.Contains(by.Brings, "nvidia") || found == cdiNone {
		return found
	}
	return cdiOutdated + ": the driver changes"
}
