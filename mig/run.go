// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Device is the part of host.Host that changes partitions. GPUs are named by PCI address.
type Device interface {
	Driver(ctx context.Context) (host.Driver, error)
	SetMIGMode(ctx context.Context, gpu string, on bool) error
	ResetGPUs(ctx context.Context, gpus ...string) error
	CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (id int, err error)
	DestroyInstance(ctx context.Context, gpu string, id int) error
	CreateCompute(ctx context.Context, gpu string, instance, profile int, at host.Span) (id int, err error)
	DestroyCompute(ctx context.Context, gpu string, instance, id int) error
}

// Plan is the steps for one GPU.
type Plan struct {
	GPU   string // PCI address
	Steps []Step
}

// Runner executes plans on the device.
type Runner struct {
	Device
	Found *host.Driver // the driver's present answer; nil: Run asks
	// Idle calls change while the services that hold these GPUs are stopped, since a change of mode
	// may need a reset.
	Idle func(ctx context.Context, gpus []string, change func() error) error
	// Holders names the processes that have a device of these GPUs open.
	Holders func(ctx context.Context, gpus []string) ([]string, error)
}

// Run executes the plans of several GPUs together. One call resets all GPUs that need a reset, and
// no others: GPUs joined by NVLink can only be reset together, and a reset takes a GPU from every
// process that uses it. If a step fails, or the context ends between two steps, Run restores the
// earlier instances at their places on all the GPUs and returns a *Failure. If only a reboot
// changes the mode of some GPUs, the others still get their partitions, and the error is an
// *Unreset.
func (x Runner) Run(ctx context.Context, plans ...Plan) error {
	plans = slices.DeleteFunc(slices.Clone(plans), func(p Plan) bool { return len(p.Steps) == 0 })
	if len(plans) == 0 {
		return nil
	}
	r := &runner{Runner: x}
	for _, p := range plans {
		r.gpus = append(r.gpus, &gpuRun{Plan: p})
	}
	var err error
	if x.Found != nil {
		err = r.see(*x.Found)
	} else {
		err = r.look(ctx)
	}
	if err != nil {
		return err
	}
	for _, g := range r.gpus {
		g.before = g.now
		g.before.Instances = slices.Clone(g.now.Instances) // the runner changes now.Instances
	}
	g, s, err := r.walk(ctx, nil)
	switch {
	case err != nil:
		f := &Failure{Step: s, Err: err}
		for _, t := range r.back(context.WithoutCancel(ctx)) {
			if t.GPU == g.GPU {
				f.RolledBack = t
			} else {
				f.Others = append(f.Others, t)
			}
		}
		return f
	case r.unreset != nil:
		return r.unreset
	}
	return nil
}

// runner executes plans and tracks the GPUs' instances itself: asking the driver after each step
// costs more than the steps.
type runner struct {
	Runner
	gpus    []*gpuRun
	unreset *Unreset // GPUs that wait for a reboot
}

// gpuRun is a GPU with steps under way.
type gpuRun struct {
	Plan
	before, now host.GPU
}

func (r *runner) look(ctx context.Context) error {
	d, err := r.Driver(ctx)
	if err != nil {
		return err
	}
	return r.see(d)
}

// see stores the driver's answer.
func (r *runner) see(d host.Driver) error {
	for _, g := range r.gpus {
		now, known := find(&d, g.GPU)
		if !known {
			return fmt.Errorf("cannot partition GPU %s: the driver does not know it", g.GPU)
		}
		if now.Lost != "" {
			return fmt.Errorf("cannot partition GPU %s: %s", g.GPU, now.Lost)
		}
		g.now = now
		g.now.Instances = slices.Clone(g.now.Instances)
	}
	return nil
}

// walk executes all plans: first up to the change of mode, for all GPUs together; then each to its
// end. It stops at the first error. With failed, it reports each error to that and continues.
func (r *runner) walk(ctx context.Context, failed func(*gpuRun, Step, error)) (at *gpuRun, s Step, err error) {
	var names []string
	head := map[*gpuRun]int{} // the number of steps up to the change of mode
	for _, g := range r.gpus {
		for i, s := range g.Steps {
			if changesMode([]Step{s}) {
				head[g] = i + 1
			}
			if s.Do == Reset {
				break // a mode that is set after the reset must stay pending
			}
		}
		if head[g] > 0 {
			names = append(names, g.GPU)
		}
	}
	if len(names) > 0 {
		change := func() error {
			at, s, err = r.modes(ctx, head, failed)
			return err
		}
		if r.Idle == nil {
			_ = change()
		} else if idle := r.Idle(ctx, names, change); err == nil && idle != nil {
			at, s, err = r.gpus[slices.IndexFunc(r.gpus, func(g *gpuRun) bool { return head[g] > 0 })], Step{Do: Reset}, idle
			if failed != nil {
				failed(at, s, err)
				err = nil
			}
		}
		if err != nil {
			return at, s, err
		}
	}
	// One GPU after the other: the driver makes and destroys instances under its lock of all GPUs,
	// so that side by side nothing is gained. Neither SET_PARTITIONS nor EXEC_PARTITIONS_* has
	// RMCTRL_FLAGS_GPU_LOCK_DEVICE_ONLY or _API_LOCK_READONLY: g_subdevice_nvoc.c and
	// g_gpu_instance_subscription_nvoc.c in https://github.com/NVIDIA/open-gpu-kernel-modules.
	// NVIDIA's DRA driver does so too: driver.go in
	// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, pulock.
	for _, g := range r.gpus {
		if s, err := r.each(ctx, g, g.Steps[min(head[g], len(g.Steps)):], failed); err != nil {
			return g, s, err
		}
	}
	return nil, Step{}, nil
}

// modes makes the first steps of each GPU, up to its mode, and then resets all GPUs that need a
// reset together. It goes from GPU to GPU: on A100 a change of mode resets the GPU, which takes 4 s
// (https://github.com/NVIDIA/gpu-operator/issues/351) and where NVLink joins the GPUs concerns the
// others; no public record has two at a time. On Hopper and newer it resets nothing.
func (r *runner) modes(ctx context.Context, head map[*gpuRun]int, failed func(*gpuRun, Step, error)) (*gpuRun, Step, error) {
	var asked []*gpuRun
	for _, g := range r.gpus {
		steps := g.Steps[:head[g]]
		if i := slices.IndexFunc(steps, func(s Step) bool { return s.Do == Reset }); i >= 0 {
			steps, asked = steps[:i], append(asked, g) // the reset is the last of these steps
		}
		if s, err := r.each(ctx, g, steps, failed); err != nil {
			return g, s, err
		}
	}
	err := r.reset(ctx, asked)
	unreset := (*Unreset)(nil)
	if errors.As(err, &unreset) && unreset.Boot() && failed == nil {
		r.leave(unreset)
		return nil, Step{}, nil
	}
	if err == nil {
		return nil, Step{}, nil
	}
	at := asked[0]
	if unreset != nil {
		at = asked[slices.IndexFunc(asked, func(g *gpuRun) bool { return g.GPU == unreset.GPUs[0] })]
	}
	if failed == nil {
		return at, Step{Do: Reset}, err
	}
	failed(at, Step{Do: Reset}, err)
	return nil, Step{}, nil
}

func (r *runner) each(ctx context.Context, g *gpuRun, steps []Step, failed func(*gpuRun, Step, error)) (Step, error) {
	for _, s := range steps {
		err := ctx.Err()
		if err == nil {
			err = r.do(ctx, g, s)
		}
		if err != nil && failed == nil {
			return s, err
		} else if err != nil {
			failed(g, s, err)
		}
	}
	return Step{}, nil
}

func (r *runner) do(ctx context.Context, g *gpuRun, s Step) error {
	switch s.Do {
	case ModeOn, ModeOff:
		return r.SetMIGMode(ctx, g.GPU, s.Do == ModeOn)
	case CreateInstance:
		id, err := r.CreateInstance(ctx, g.GPU, s.Profile, s.At)
		if err == nil {
			g.now.Instances = append(g.now.Instances, host.Instance{ID: id, Profile: s.Profile, At: s.At})
		}
		return err
	}
	i := slices.IndexFunc(g.now.Instances, func(i host.Instance) bool {
		return i.Profile == s.Profile && i.At.Start == s.At.Start
	})
	if i < 0 {
		return fmt.Errorf("there is no %s at %d", s.Name, s.At.Start)
	}
	in := &g.now.Instances[i]
	switch s.Do {
	case DestroyInstance:
		if err := r.DestroyInstance(ctx, g.GPU, in.ID); err != nil {
			return err
		}
		g.now.Instances = slices.Delete(g.now.Instances, i, i+1)
		return nil
	case CreateCompute:
		return r.createCompute(ctx, g, in.ID, s)
	case DestroyCompute:
		return r.destroyCompute(ctx, g, in, s)
	}
	return fmt.Errorf("internal error: unknown step %q", s.Do)
}

func (r *runner) createCompute(ctx context.Context, g *gpuRun, instance int, s Step) error {
	profile, err := r.computeProfile(ctx, g, s)
	if err != nil {
		return err
	}
	id, err := r.CreateCompute(ctx, g.GPU, instance, profile, s.Spot)
	if err != nil {
		return err
	}
	for i := range g.now.Instances {
		if in := &g.now.Instances[i]; in.ID == instance {
			in.Compute = append(slices.Clone(in.Compute), host.ComputeInstance{ID: id, Profile: profile, At: s.Spot})
		}
	}
	return nil
}

// destroyCompute destroys the compute instance at the step's place, or the last one of its size.
func (r *runner) destroyCompute(ctx context.Context, g *gpuRun, in *host.Instance, s Step) error {
	i := -1
	for j, c := range in.Compute {
		exact := s.Spot.Size == 0 || c.At == s.Spot
		if exact && computeSlices(g.now, in.Profile, c) == s.Slices {
			i = j
		}
	}
	if i < 0 {
		return fmt.Errorf("there is no compute instance %dc in %s at %d", s.Slices, s.Name, s.At.Start)
	}
	if err := r.DestroyCompute(ctx, g.GPU, in.ID, in.Compute[i].ID); err != nil {
		return err
	}
	in.Compute = slices.Delete(slices.Clone(in.Compute), i, i+1)
	return nil
}

// computeProfile is the driver's own id for the step's compute instance, else the step's: on some
// GPUs the ids in +me instances differ from the table's. Some drivers list the ids only once the
// GPU instance exists.
func (r *runner) computeProfile(ctx context.Context, g *gpuRun, s Step) (int, error) {
	for range 2 {
		for _, p := range g.now.Profiles {
			offers := plain(p.Compute)
			i := slices.IndexFunc(offers, func(c host.ComputeProfile) bool { return c.Slices == s.Slices })
			if p.ID == s.Profile && i >= 0 && s.Spot.Size == 0 {
				return offers[i].ID, nil
			}
			if p.ID == s.Profile && len(offers) > 0 {
				return s.Compute, nil
			}
		}
		if err := r.look(ctx); err != nil {
			return 0, err
		}
	}
	return s.Compute, nil
}
