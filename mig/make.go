// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	if d, err = h.Driver(ctx); err != nil {
		return err
	}
	g.driverCache.set(&d)
	return nil
}

// makePlans pauses the services that hold GPUs, ends the processes that the operator has allowed to
// end, executes the plans, and starts the services again.
func makePlans(ctx context.Context, h host.Host, d *host.Driver, plans []Plan, all []converge.Change) error {
	run := Runner{Device: h, Found: d}
	if !disturbs(plans) {
		return explain(run.Run(ctx, plans...), nil)
	}
	if err := refuseUsers(ctx, h, d, plans, all); err != nil {
		return err
	}
	err := things.Pause(ctx, h, pausedFor(plans))
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
	run.Holders = func(ctx context.Context, gpus []string) ([]string, error) { return holding(ctx, h, d, gpus) }
	err = run.Run(ctx, plans...)
	var held []string // asked before the services start again
	if refused := (*host.GPUError)(nil); errors.As(err, &refused) && refused.Code == "IN_USE" {
		var failed error
		if held, failed = holding(context.WithoutCancel(ctx), h, d, names(plans)); failed != nil {
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

// planTo lists the steps of one GPU to its desired state.
func planTo(d *host.Driver, c converge.Change) (Plan, error) {
	at, known := find(d, c.Name)
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
	m, err := Of(at)
	if err != nil {
		return Plan{}, err
	}
	steps, err := m.Steps(StateOf(at), target)
	return Plan{c.Name, steps}, err
}

// Sweep starts the services that a killed run had paused.
func (g gpu) Sweep(h host.Host) error { return things.Resume(context.Background(), h) }

func changesMode(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool { return s.Do == ModeOn || s.Do == ModeOff || s.Do == Reset })
}

// disturbs reports whether the plans take instances or GPUs from processes.
func disturbs(plans []Plan) bool {
	return slices.ContainsFunc(plans, func(p Plan) bool {
		return changesMode(p.Steps) || slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Do == DestroyInstance || s.Do == DestroyCompute })
	})
}

// explain turns a Failure into a trouble.Error. If a GPU is in use, it names the processes that
// have a device open.
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

// Exit statuses of nvidia-smi. Sources: RETURN VALUE in its manual,
// https://docs.nvidia.com/deploy/nvidia-smi/index.html and
// https://manpages.ubuntu.com/manpages/noble/man1/nvidia-smi.1.html.
const (
	smiUnavailable  = 3 // the operation is not available on the device
	smiNoPermission = 4
)

// Unreset reports GPUs that still wait for a reset to change their MIG mode.
type Unreset struct {
	GPUs    []string // PCI addresses
	Err     error    // the error of the reset; nil if it reported success
	Holders []string // processes that have a device of these GPUs open
}

// Boot reports whether only a reboot changes the mode: the driver asks for a reset, and a reset is
// not available on this machine or has no effect: "VM reboot is required" for a GPU that is passed
// through, says nvml.h at nvmlDeviceSetMigMode; on Azure's A100 a reset may end well and change
// nothing (cse_main.sh in https://github.com/Azure/AgentBaker).
func (u *Unreset) Boot() bool {
	command := (*host.CommandError)(nil)
	switch {
	case u.Err == nil:
		return true
	case !errors.As(u.Err, &command):
		return false
	case command.Code == smiUnavailable:
		return true
	}
	return command.Code > 0 && command.Code != smiNoPermission && len(u.Holders) == 0
}

func (u *Unreset) Error() string {
	why, _ := u.says()
	return why
}

func (u *Unreset) Unwrap() error { return u.Err }

// says returns the cause, and what to do about it.
func (u *Unreset) says() (why string, try []string) {
	names := "GPU " + strings.Join(u.GPUs, " and ")
	try = []string{"end what uses the GPU, then run the same command again"}
	command := (*host.CommandError)(nil)
	errors.As(u.Err, &command)
	switch {
	case u.Err == nil:
		return names + " was reset, and its MIG mode is as before: on some virtual machines only a restart of the machine changes it", try
	case errors.Is(u.Err, fs.ErrNotExist):
		return "cannot reset " + names + ": nvidia-smi is not installed",
			[]string{"install nvidia-smi (Debian and Ubuntu: nvidia-utils or nvidia-smi), or reset the GPU by hand, then run the same command again"}
	case command != nil && command.Code == smiUnavailable:
		return "cannot reset " + names + ": this machine cannot reset its GPUs: " + u.Err.Error(), try
	case command != nil && command.Code == smiNoPermission:
		return "cannot reset " + names + ": no permission", []string{"run gpuadm as root, and in a container with all capabilities"}
	case len(u.Holders) > 0:
		return "cannot reset " + names + ": it is in use", try
	}
	return "cannot reset " + names + ": " + u.Err.Error(), try
}

// reset resets those of the GPUs that still wait for it: the driver may have reset some itself, or
// an operator since the plan. It asks the driver before and after, since a reset can have no
// effect, or work and still report an error.
func (r *runner) reset(ctx context.Context, asked []*gpuRun) error {
	if len(asked) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	waiting := pending(asked)
	if len(waiting) == 0 {
		return nil
	}
	failed := r.ResetGPUs(ctx, waiting...)
	if err := r.look(ctx); err != nil {
		return host.Join(failed, err)
	}
	waiting = pending(asked)
	if len(waiting) == 0 {
		return nil
	}
	u := &Unreset{GPUs: waiting, Err: failed}
	if failed != nil && r.Holders != nil {
		var err error
		if u.Holders, err = r.Holders(ctx, waiting); err != nil {
			return host.Join(failed, err)
		}
	}
	return u
}

// pending names the GPUs that wait for a reset.
func pending(all []*gpuRun) (names []string) {
	for _, g := range all {
		if g.now.Mode != g.now.Pending {
			names = append(names, g.GPU)
		}
	}
	return names
}

// leave drops the remaining steps of GPUs whose mode changes at the next boot; the others continue.
func (r *runner) leave(u *Unreset) {
	r.unreset = u
	for _, g := range r.gpus {
		if slices.Contains(u.GPUs, g.GPU) {
			g.Steps = nil
		}
	}
}

// RolledBack is how one GPU was rolled back.
type RolledBack struct {
	GPU    string // PCI address
	Before State  // the state before the run
	After  State  // the state now; the zero State if it does not answer
	Undone []Step // the steps that restored it
	Left   []error
}

// Restored says whether the GPU is in its former state.
func (t *RolledBack) Restored() bool {
	return t.After.String() == t.Before.String() && len(t.Left) == 0
}

// Failure is what Run returns when a step failed: all GPUs were rolled back, as far as that was
// possible.
type Failure struct {
	RolledBack              // the GPU of the failed step
	Step       Step         // the one that failed
	Err        error        // why
	Others     []RolledBack // the other GPUs
}

func (f *Failure) Error() string { return fmt.Sprintf("cannot %s: %v", f.Step.of(f.GPU), f.Err) }

func (f *Failure) Unwrap() error { return f.Err }

// back rolls the GPUs back. It asks the driver first, since a step may have worked though it
// returned an error. It continues after an error: most of the old layout is better than none. At
// the end it asks the driver again.
func (r *runner) back(ctx context.Context) []RolledBack {
	rolledBack := make([]RolledBack, len(r.gpus))
	at := map[*gpuRun]*RolledBack{}
	for i, g := range r.gpus {
		rolledBack[i] = RolledBack{GPU: g.GPU, Before: StateOf(g.before)}
		at[g] = &rolledBack[i]
	}
	if err := r.look(ctx); err != nil {
		rolledBack[0].Left = append(rolledBack[0].Left, err)
		return rolledBack
	}
	failed := map[*gpuRun][]Step{}
	for _, g := range r.gpus {
		// A reset is needed only if the modes differ.
		g.Steps = stepsBetween(exactly(g.now), exactly(g.before), g.now.Mode != g.before.Mode && g.before.Arch == "ampere")
	}
	_, _, _ = r.walk(ctx, func(g *gpuRun, s Step, err error) {
		failed[g] = append(failed[g], s)
		at[g].Left = append(at[g].Left, fmt.Errorf("cannot %s: %w", s, err))
	})
	for _, g := range r.gpus {
		at[g].Undone = slices.DeleteFunc(g.Steps, func(s Step) bool { return slices.Contains(failed[g], s) })
	}
	if err := r.look(ctx); err != nil {
		rolledBack[0].Left = append(rolledBack[0].Left, err)
		return rolledBack
	}
	for _, g := range r.gpus {
		at[g].After = StateOf(g.now)
	}
	return rolledBack
}

// exactly is a GPU's state, with the places of compute instances.
func exactly(g host.GPU) geometry {
	out := geometry{mode: mode(g.Mode), next: mode(g.Pending)}
	for _, i := range g.Instances {
		p := piece{name: fmt.Sprintf("?%d", i.Profile), profile: i.Profile, at: i.At, busy: len(i.Clients) > 0}
		for _, q := range g.Profiles {
			if q.ID == i.Profile {
				p.name = strings.TrimPrefix(q.Name, "MIG ")
			}
		}
		for _, c := range i.Compute {
			p.compute = append(p.compute, bit{slices: computeSlices(g, i.Profile, c), profile: c.Profile, spot: c.At})
		}
		out.pieces = append(out.pieces, p)
	}
	return out
}
