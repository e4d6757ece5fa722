// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// Failure is what Run returns when a step failed: the GPU was brought back to how it stood, or as near as it went.
type Failure struct {
	GPU    string // PCI address
	Step   Step   // the one that failed
	Err    error  // why
	Before State  // how the GPU stood
	After  State  // how it stands now; the zero State if it does not say
	Undone []Step // what was done to bring it back
	Left   []error
}

// Restored says whether the GPU stands as it did.
func (f *Failure) Restored() bool { return f.After.String() == f.Before.String() && len(f.Left) == 0 }

func (f *Failure) Error() string {
	s := fmt.Sprintf("cannot %s on GPU %s: %v", f.Step, f.GPU, f.Err)
	if f.Restored() {
		return s + "; it stands as before"
	}
	s += fmt.Sprintf("; it stood %q and stands %q now", f.Before, f.After)
	for _, err := range f.Left {
		s += "; " + err.Error()
	}
	return s
}

func (f *Failure) Unwrap() error { return f.Err }

// Run makes the steps on one GPU. If one fails it brings back the instances that stood before, at the places they had,
// and returns a *Failure; also when the context ends between two steps.
func Run(ctx context.Context, dev Device, gpu string, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	r := &runner{dev: dev, gpu: gpu}
	if err := r.look(ctx); err != nil {
		return err
	}
	before := r.now
	before.Instances = slices.Clone(before.Instances) // the runner changes its own
	for _, s := range steps {
		err := ctx.Err()
		if err == nil {
			err = r.do(ctx, s)
		}
		if err != nil {
			f := &Failure{GPU: gpu, Step: s, Err: err, Before: StateOf(before)}
			r.back(context.WithoutCancel(ctx), before, f)
			return f
		}
	}
	return nil
}

// runner makes steps on one GPU and keeps in mind what is on it, since to ask the driver each time costs more than the
// steps do.
type runner struct {
	dev Device
	gpu string
	now host.GPU
}

func (r *runner) look(ctx context.Context) error {
	d, err := r.dev.Driver(ctx)
	if err != nil {
		return err
	}
	for _, g := range d.GPUs {
		if g.Address == r.gpu {
			if g.Lost != "" {
				return fmt.Errorf("cannot partition GPU %s: %s", r.gpu, g.Lost)
			}
			r.now = g
			r.now.Instances = slices.Clone(g.Instances)
			return nil
		}
	}
	return fmt.Errorf("cannot partition GPU %s: the driver does not know it", r.gpu)
}

func (r *runner) do(ctx context.Context, s Step) error {
	switch s.Do {
	case ModeOn, ModeOff:
		return r.dev.SetMIGMode(ctx, r.gpu, s.Do == ModeOn)
	case Reset:
		r.now.Instances = nil
		return r.dev.ResetGPUs(ctx, r.gpu)
	case CreateInstance:
		id, err := r.dev.CreateInstance(ctx, r.gpu, s.Profile, s.At)
		if err == nil {
			r.now.Instances = append(r.now.Instances, host.Instance{ID: id, Profile: s.Profile, At: s.At})
		}
		return err
	}
	i := slices.IndexFunc(r.now.Instances, func(i host.Instance) bool {
		return i.Profile == s.Profile && i.At.Start == s.At.Start
	})
	if i < 0 {
		return fmt.Errorf("there is no %s at %d", s.Name, s.At.Start)
	}
	in := &r.now.Instances[i]
	switch s.Do {
	case DestroyInstance:
		if err := r.dev.DestroyInstance(ctx, r.gpu, in.ID); err != nil {
			return err
		}
		r.now.Instances = slices.Delete(r.now.Instances, i, i+1)
		return nil
	case CreateCompute:
		return r.createCompute(ctx, in.ID, s)
	case DestroyCompute:
		return r.destroyCompute(ctx, in, s)
	}
	return fmt.Errorf("internal error: unknown step %q", s.Do)
}

func (r *runner) createCompute(ctx context.Context, instance int, s Step) error {
	profile, err := r.computeProfile(ctx, s)
	if err != nil {
		return err
	}
	id, err := r.dev.CreateCompute(ctx, r.gpu, instance, profile, s.Spot)
	if err != nil {
		return err
	}
	for i := range r.now.Instances {
		if in := &r.now.Instances[i]; in.ID == instance {
			in.Compute = append(slices.Clone(in.Compute), host.ComputeInstance{ID: id, Profile: profile, At: s.Spot})
		}
	}
	return nil
}

// destroyCompute destroys the compute instance at the step's place, or the last one of its size.
func (r *runner) destroyCompute(ctx context.Context, in *host.Instance, s Step) error {
	i := -1
	for j, c := range in.Compute {
		exact := s.Spot.Size == 0 || c.At == s.Spot
		if exact && computeSlices(r.now, in.Profile, c) == s.Slices {
			i = j
		}
	}
	if i < 0 {
		return fmt.Errorf("there is no compute instance %dc in %s at %d", s.Slices, s.Name, s.At.Start)
	}
	if err := r.dev.DestroyCompute(ctx, r.gpu, in.ID, in.Compute[i].ID); err != nil {
		return err
	}
	in.Compute = slices.Delete(slices.Clone(in.Compute), i, i+1)
	return nil
}

// computeProfile is the driver's own id of the step's compute instance, and the step's where the driver says none: in
// +me instances it differs from the table's on some GPUs. Some drivers say it only once the instance exists.
func (r *runner) computeProfile(ctx context.Context, s Step) (int, error) {
	for range 2 {
		for _, p := range r.now.Profiles {
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

// back brings the GPU back to how it stood. It looks first: the driver knows what was done, whatever the call said. It
// goes on after an error, since most of an old layout is better than none, and looks again at the end.
func (r *runner) back(ctx context.Context, before host.GPU, f *Failure) {
	if err := r.look(ctx); err != nil {
		f.Left = append(f.Left, err)
		return
	}
	resets := false // whether a reset is needed shows in the modes: only then can they differ
	if r.now.Mode != before.Mode {
		resets = before.Arch == "ampere"
	}
	steps := way(exactly(r.now), exactly(before), resets)
	for _, s := range steps {
		if err := r.do(ctx, s); err != nil {
			f.Left = append(f.Left, fmt.Errorf("cannot %s: %w", s, err))
			continue
		}
		f.Undone = append(f.Undone, s)
	}
	if err := r.look(ctx); err != nil {
		f.Left = append(f.Left, err)
		return
	}
	f.After = StateOf(r.now)
}

// exactly is how a GPU stands, with the places of compute instances.
func exactly(g host.GPU) geometry {
	out := geometry{mode: mode(g.Mode), next: mode(g.Pending)}
	for _, i := range g.Instances {
		p := piece{name: fmt.Sprintf("?%d", i.Profile), profile: i.Profile, at: i.At}
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
