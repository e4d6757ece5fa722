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
	Stop  []string // units that node.toml names, to pause for the steps
}

func (p Plan) changesMode() bool { return changesMode(p.Steps) }

// disturbs reports whether the plan takes instances or the GPU from processes.
func (p Plan) disturbs() bool {
	return p.changesMode() || slices.ContainsFunc(p.Steps, Step.destroys)
}

// Runner executes plans on the device.
type Runner struct {
	Device

	// Found is the driver's present answer; nil: Run asks.
	Found *host.Driver
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
	r := &runner{Runner: x}
	for _, p := range plans {
		if len(p.Steps) > 0 {
			r.gpus = append(r.gpus, &gpuRun{Plan: p})
		}
	}

	if len(r.gpus) == 0 {
		return nil
	}

	var err error
	if x.Found != nil {
		r.store(*x.Found)
		err = unseen(r.gpus)
	} else {
		err = r.lookAt(ctx, r.gpus)
	}

	if err != nil {
		return err
	}
	for _, g := range r.gpus {
		g.before = g.now
		g.before.Instances = slices.Clone(g.now.Instances) // the runner changes now.Instances
	}

	failed := r.runAll(ctx, nil)
	if failed != nil {
		f := &Failure{Step: failed.step, Err: failed.err}
		for _, t := range r.rollBack(context.WithoutCancel(ctx)) {
			if t.GPU == failed.gpu.GPU {
				f.RolledBack = t
			} else {
				f.Others = append(f.Others, t)
			}
		}

		return f
	}

	if r.unreset != nil {
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
	before host.GPU
	now    host.GPU
	unseen error  // why the driver's last answer lacks its state; now is of an earlier answer then
	made   []Step // those that succeeded
}

// failedStep is a step that failed, on one GPU.
type failedStep struct {
	gpu  *gpuRun
	step Step
	err  error
}

// modeCounts is the number of each GPU's steps up to the change of mode; 0 if the mode stays.
type modeCounts map[*gpuRun]int

// look asks the driver, and stores its answer.
func (r *runner) look(ctx context.Context) error {
	d, err := r.Driver(ctx)
	if err != nil {
		return err
	}
	r.store(d)
	return nil
}

// lookAt asks the driver, which has to answer for these GPUs.
func (r *runner) lookAt(ctx context.Context, gpus []*gpuRun) error {
	if err := r.look(ctx); err != nil {
		return err
	}
	return unseen(gpus)
}

// store stores the driver's answer. A GPU that it lacks keeps no other GPU from being stored.
func (r *runner) store(d host.Driver) {
	for _, g := range r.gpus {
		now, known := find(&d, g.GPU)
		switch {
		case !known:
			g.unseen = fmt.Errorf("cannot partition GPU %s: the driver does not know it", g.GPU)
		case now.Lost != "":
			g.unseen = fmt.Errorf("cannot partition GPU %s: %s", g.GPU, now.Lost)
		default:
			g.unseen = nil
			g.now = now
			g.now.Instances = slices.Clone(now.Instances)
		}
	}
}

// unseen is the error of the first of the GPUs whose state the driver's last answer lacks.
func unseen(gpus []*gpuRun) error {
	for _, g := range gpus {
		if g.unseen != nil {
			return g.unseen
		}
	}
	return nil
}

// runAll executes all plans: first up to the change of mode, for all GPUs together; then each to
// its end. It returns the first failed step. If failed is not nil, runAll calls it for each failed
// step, continues, and returns nil.
func (r *runner) runAll(ctx context.Context, failed func(failedStep)) *failedStep {
	counts := r.countModeSteps()
	if f := r.changeModes(ctx, counts, failed); f != nil {
		return f
	}

	// One GPU after the other: the driver makes and destroys instances under its lock of all GPUs,
	// so that nothing is gained at the same time. Neither SET_PARTITIONS nor EXEC_PARTITIONS_* has
	// RMCTRL_FLAGS_GPU_LOCK_DEVICE_ONLY or _API_LOCK_READONLY: g_subdevice_nvoc.c and
	// g_gpu_instance_subscription_nvoc.c in https://github.com/NVIDIA/open-gpu-kernel-modules.
	// NVIDIA's DRA driver does so too: driver.go in
	// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, pulock.
	for _, g := range r.gpus {
		rest := g.Steps[min(counts[g], len(g.Steps)):]
		if f := r.runSteps(ctx, g, rest, failed); f != nil {
			return f
		}
	}

	return nil
}

func (r *runner) countModeSteps() modeCounts {
	counts := modeCounts{}
	for _, g := range r.gpus {
		for i, s := range g.Steps {
			if changesMode([]Step{s}) {
				counts[g] = i + 1
			}
			if s.Do == Reset {
				break // a mode that is set after the reset must stay pending
			}
		}
	}

	return counts
}

// changeModes executes the steps up to the change of mode, while the services that hold the GPUs
// are stopped.
func (r *runner) changeModes(ctx context.Context, counts modeCounts, failed func(failedStep)) *failedStep {
	var changing []*gpuRun
	var addresses []string
	for _, g := range r.gpus {
		if counts[g] > 0 {
			changing = append(changing, g)
			addresses = append(addresses, g.GPU)
		}
	}

	if len(changing) == 0 {
		return nil
	}
	if r.Idle == nil {
		return r.setModes(ctx, counts, failed)
	}

	isChange := func(s Step) bool { return changesMode([]Step{s}) }
	steps := changing[0].Steps
	change := steps[slices.IndexFunc(steps, isChange)] // what Idle is for

	var first *failedStep
	err := r.Idle(ctx, addresses, func() error {
		first = r.setModes(ctx, counts, failed)
		if first != nil {
			return first.err
		}
		return nil
	})
	if first != nil || err == nil {
		return first
	}

	return report(failedStep{changing[0], change, err}, failed)
}

// setModes makes the first steps of each GPU, up to its mode, and then resets all GPUs that need a
// reset together. It goes from GPU to GPU: on A100 a change of mode resets the GPU, which takes 4 s
// (https://github.com/NVIDIA/gpu-operator/issues/351) and concerns the GPUs that NVLink joins to
// it; no public record has two at a time. On Hopper and newer it resets nothing.
func (r *runner) setModes(ctx context.Context, counts modeCounts, failed func(failedStep)) *failedStep {
	var toReset []*gpuRun
	for _, g := range r.gpus {
		steps := g.Steps[:counts[g]]
		i := slices.IndexFunc(steps, func(s Step) bool { return s.Do == Reset })
		if i >= 0 {
			steps = steps[:i] // the reset is the last of these steps
			toReset = append(toReset, g)
		}
		if f := r.runSteps(ctx, g, steps, failed); f != nil {
			return f
		}
	}

	err := r.reset(ctx, toReset)
	var unreset *Unreset
	isUnreset := errors.As(err, &unreset)
	for _, g := range toReset {
		if err == nil || isUnreset && !slices.Contains(unreset.GPUs, g.GPU) {
			g.made = append(g.made, Step{Do: Reset})
		}
	}
	if err == nil {
		return nil
	}

	at := toReset[0]
	if isUnreset {
		if unreset.Boot() && failed == nil {
			r.leaveToReboot(unreset)
			return nil
		}
		at = toReset[slices.IndexFunc(toReset, func(g *gpuRun) bool {
			return g.GPU == unreset.GPUs[0]
		})]
	}

	return report(failedStep{at, Step{Do: Reset}, err}, failed)
}

// runSteps executes steps of one GPU.
func (r *runner) runSteps(ctx context.Context, g *gpuRun, steps []Step, failed func(failedStep)) *failedStep {
	for _, s := range steps {
		err := ctx.Err()
		if err == nil {
			err = r.runStep(ctx, g, s)
		}
		if err == nil {
			g.made = append(g.made, s)
			continue
		}
		if f := report(failedStep{g, s, err}, failed); f != nil {
			return f
		}
	}

	return nil
}

// report returns the failed step, or calls failed and returns nil.
func report(f failedStep, failed func(failedStep)) *failedStep {
	if failed == nil {
		return &f
	}
	failed(f)
	return nil
}

func (r *runner) runStep(ctx context.Context, g *gpuRun, s Step) error {
	switch s.Do {
	case ModeOn, ModeOff:
		return r.SetMIGMode(ctx, g.GPU, s.Do == ModeOn)

	case CreateInstance:
		id, err := r.CreateInstance(ctx, g.GPU, s.Profile, s.At)
		if err == nil {
			g.now.Instances = append(g.now.Instances, host.Instance{
				ID:      id,
				Profile: s.Profile,
				At:      s.At,
			})
		}

		return err
	}

	i := slices.IndexFunc(g.now.Instances, func(in host.Instance) bool {
		return in.Profile == s.Profile && in.At.Start == s.At.Start
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

	made := host.ComputeInstance{ID: id, Profile: profile, At: s.Spot}
	for i := range g.now.Instances { // computeProfile may have replaced them
		in := &g.now.Instances[i]
		if in.ID == instance {
			in.Compute = append(slices.Clone(in.Compute), made)
		}
	}

	return nil
}

// destroyCompute destroys the compute instance at the step's place, or the last one of its size.
func (r *runner) destroyCompute(ctx context.Context, g *gpuRun, in *host.Instance, s Step) error {
	i := -1
	for j, c := range in.Compute {
		atSpot := s.Spot.Size == 0 || c.At == s.Spot
		if atSpot && computeSlices(g.now, in.Profile, c) == s.Slices {
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
// GPU instance exists, so a second attempt asks the driver again.
func (r *runner) computeProfile(ctx context.Context, g *gpuRun, s Step) (int, error) {
	for range 2 {
		for _, p := range g.now.Profiles {
			if p.ID != s.Profile {
				continue
			}
			offers := onePerSize(p.Compute)
			i := slices.IndexFunc(offers, func(c host.ComputeProfile) bool {
				return c.Slices == s.Slices
			})
			if i >= 0 && s.Spot.Size == 0 {
				return offers[i].ID, nil
			}
			if len(offers) > 0 {
				return s.Compute, nil
			}
		}

		if err := r.lookAt(ctx, []*gpuRun{g}); err != nil {
			return 0, err
		}
	}

	return s.Compute, nil
}
