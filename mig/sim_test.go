// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// sim is one GPU in memory, as strict as a driver: places, counts, slices, order, use.
type sim struct {
	gpu  host.GPU
	next int // id of the next compute instance

	calls int
	fail  func(call int) fault
	log   []string
}

// fault is what goes wrong with one call.
type fault int

const (
	none  fault = iota
	early       // it is refused
	late        // it is done, and reported as failed
	cut         // the process is gone: this and all later calls do nothing
)

var errSim = errors.New("ERROR_UNKNOWN")

func newSim(m Model, s State, spots ...int) *sim {
	g := m.GPU()
	g.Address = "0000:17:00.0"
	x := &sim{gpu: g}
	geo, err := m.geometry(s)
	if err != nil {
		panic(err)
	}
	x.gpu.Mode, x.gpu.Pending = s.Mode == On, s.Next == On
	for i, p := range geo.instances {
		id, err := x.create(p.profile, p.at)
		if err != nil {
			panic(err)
		}
		for _, b := range inOrder(p.compute, s.Parts[i].slices()) {
			if len(spots) > 0 {
				b.spot, spots = host.Span{Start: spots[0], Size: b.slices}, spots[1:]
			}
			if _, err := x.compute(id, b.profile, b.spot); err != nil {
				panic(err)
			}
		}

		if s.Parts[i].Busy {
			x.gpu.Instances[len(x.gpu.Instances)-1].Clients = []int{4711}
		}
	}

	return x
}

func refused(call, code string) error {
	return &host.GPUError{Call: call, GPU: "0000:17:00.0", Code: code}
}

func (x *sim) Driver(ctx context.Context) (host.Driver, error) {
	if ctx.Err() != nil {
		return host.Driver{}, ctx.Err()
	}
	g := x.gpu
	g.Instances = slices.Clone(g.Instances)
	for i := range g.Instances {
		g.Instances[i].Compute = slices.Clone(g.Instances[i].Compute)
	}
	slices.SortFunc(g.Instances, func(a, b host.Instance) int { return a.ID - b.ID })
	return host.Driver{GPUs: []host.GPU{g}}, nil
}

// touch counts a call and makes it go wrong where it shall.
func (x *sim) touch(ctx context.Context, what string, do func() error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	x.calls++
	f := none
	if x.fail != nil {
		f = x.fail(x.calls)
	}
	x.log = append(x.log, what)
	if f == early || f == cut {
		return errSim
	}
	err := do()
	if err == nil && f == late {
		err = errSim
	}
	return err
}

func (x *sim) SetMIGMode(ctx context.Context, _ string, on bool) error {
	return x.touch(ctx, fmt.Sprintf("mode %t", on), func() error {
		if len(x.gpu.Instances) > 0 {
			return refused("nvmlDeviceSetMigMode", "IN_USE")
		}
		x.gpu.Pending = on
		if x.gpu.Arch != "ampere" {
			x.gpu.Mode = on
		}
		return nil
	})
}

func (x *sim) ResetGPUs(ctx context.Context, _ ...string) error {
	return x.touch(ctx, "reset", func() error {
		x.gpu.Mode, x.gpu.Instances = x.gpu.Pending, nil
		return nil
	})
}

func (x *sim) CreateInstance(ctx context.Context, _ string, profile int, at host.Span) (id int, err error) {
	err = x.touch(ctx, fmt.Sprintf("create %d at %d", profile, at.Start), func() (err error) {
		id, err = x.create(profile, at)
		return err
	})
	return id, err
}

func (x *sim) create(profile int, at host.Span) (int, error) {
	i := slices.IndexFunc(x.gpu.Profiles, func(p host.Profile) bool { return p.ID == profile })
	if !x.gpu.Mode || i < 0 || !slices.Contains(x.gpu.Profiles[i].Places, at) {
		return 0, refused("nvmlDeviceCreateGpuInstanceWithPlacement", "NOT_SUPPORTED")
	}
	same := 1
	for _, in := range x.gpu.Instances {
		if in.At.Start < at.Start+at.Size && at.Start < in.At.Start+in.At.Size {
			return 0, refused("nvmlDeviceCreateGpuInstanceWithPlacement", "INSUFFICIENT_RESOURCES")
		}
		if in.Profile == profile {
			same++
		}
	}

	if same > x.gpu.Profiles[i].Max {
		return 0, refused("nvmlDeviceCreateGpuInstanceWithPlacement", "INSUFFICIENT_RESOURCES")
	}
	// The driver's ids follow from the place (swizzId): so the same place gives the same id again.
	id := map[int]int{8: 0, 4: 1 + at.Start/4, 2: 3 + at.Start/2, 1: 7 + at.Start}[at.Size]
	if x.gpu.Profiles[0].Places[0].Size == 3 {
		id = 100*at.Size + at.Start
	}
	x.gpu.Instances = append(x.gpu.Instances, host.Instance{
		ID:      id,
		Profile: profile,
		At:      at,
	})
	return id, nil
}

func (x *sim) DestroyInstance(ctx context.Context, _ string, id int) error {
	return x.touch(ctx, fmt.Sprintf("destroy %d", id), func() error {
		i := slices.IndexFunc(x.gpu.Instances, func(in host.Instance) bool {
			return in.ID == id
		})
		if i < 0 {
			return refused("nvmlGpuInstanceDestroy", "NOT_FOUND")
		}
		if len(x.gpu.Instances[i].Compute) > 0 || len(x.gpu.Instances[i].Clients) > 0 {
			return refused("nvmlGpuInstanceDestroy", "IN_USE")
		}
		x.gpu.Instances = slices.Delete(slices.Clone(x.gpu.Instances), i, i+1)
		return nil
	})
}

func (x *sim) CreateCompute(ctx context.Context, _ string, instance, profile int, at host.Span) (id int, err error) {
	err = x.touch(ctx, fmt.Sprintf("create compute %d in %d", profile, instance), func() (err error) {
		id, err = x.compute(instance, profile, at)
		return err
	})
	return id, err
}

// compute lays a compute instance where the driver would: at the first multiple of its size's power
// of two.
func (x *sim) compute(instance, profile int, at host.Span) (int, error) {
	no := refused("nvmlGpuInstanceCreateComputeInstance", "INSUFFICIENT_RESOURCES")
	for k := range x.gpu.Instances {
		in := &x.gpu.Instances[k]
		if in.ID != instance {
			continue
		}
		p := x.gpu.Profiles[slices.IndexFunc(x.gpu.Profiles, func(p host.Profile) bool {
			return p.ID == in.Profile
		})]
		i := slices.IndexFunc(p.Compute, func(c host.ComputeProfile) bool {
			return c.ID == profile
		})
		if i < 0 {
			return 0, refused("nvmlGpuInstanceCreateComputeInstance", "INVALID_ARGUMENT")
		}
		step := map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 7: 8}[p.Compute[i].Slices]
		for s := 0; s+p.Compute[i].Slices <= p.Slices; s += step {
			want := host.Span{Start: s, Size: p.Compute[i].Slices}
			free := !slices.ContainsFunc(in.Compute, func(c host.ComputeInstance) bool {
				return c.At.Start < s+want.Size && s < c.At.Start+c.At.Size
			})
			if free && (at == host.Span{} || at == want) {
				x.next++
				in.Compute = append(slices.Clone(in.Compute), host.ComputeInstance{
					ID:      x.next,
					Profile: profile,
					At:      want,
				})
				return x.next, nil
			}
		}

		return 0, no
	}

	return 0, refused("nvmlGpuInstanceCreateComputeInstance", "NOT_FOUND")
}

func (x *sim) DestroyCompute(ctx context.Context, _ string, instance, id int) error {
	return x.touch(ctx, fmt.Sprintf("destroy compute %d in %d", id, instance), func() error {
		for k := range x.gpu.Instances {
			in := &x.gpu.Instances[k]
			i := slices.IndexFunc(in.Compute, func(c host.ComputeInstance) bool {
				return c.ID == id
			})
			if in.ID != instance || i < 0 {
				continue
			}
			if len(in.Clients) > 0 {
				return refused("nvmlComputeInstanceDestroy", "IN_USE")
			}
			in.Compute = slices.Delete(slices.Clone(in.Compute), i, i+1)
			return nil
		}
		return refused("nvmlComputeInstanceDestroy", "NOT_FOUND")
	})
}

// shape is what is on the GPU, without the ids of compute instances, which the driver counts up.
func (x *sim) shape() string {
	s := fmt.Sprintf("%t/%t", x.gpu.Mode, x.gpu.Pending)
	instances := slices.Clone(x.gpu.Instances)
	slices.SortFunc(instances, func(a, b host.Instance) int { return a.At.Start - b.At.Start })
	for _, in := range instances {
		var compute []string
		for _, c := range in.Compute {
			compute = append(compute, fmt.Sprintf("%d@%d", c.Profile, c.At.Start))
		}
		slices.Sort(compute)
		s += fmt.Sprintf(" %d:%d@%d%v", in.ID, in.Profile, in.At.Start, compute)
	}

	return s
}

func state(t testing.TB, text string) State {
	t.Helper()
	s := must.Get(ParseState(text))(t)
	return s
}

// A duo is two GPUs.
type duo [2]*sim

// at is the GPU with this address.
func (d duo) at(gpu string) *sim {
	return d[slices.IndexFunc(d[:], func(x *sim) bool { return x.gpu.Address == gpu })]
}

func (d duo) Driver(ctx context.Context) (host.Driver, error) {
	all, err := d[0].Driver(ctx)
	other, errOther := d[1].Driver(ctx)
	all.GPUs = append(all.GPUs, other.GPUs...)
	return all, errors.Join(err, errOther)
}

func (d duo) SetMIGMode(ctx context.Context, gpu string, on bool) error {
	return d.at(gpu).SetMIGMode(ctx, gpu, on)
}

func (d duo) ResetGPUs(ctx context.Context, gpus ...string) error {
	var all []error
	for _, gpu := range gpus {
		all = append(all, d.at(gpu).ResetGPUs(ctx, gpu))
	}
	return errors.Join(all...)
}

func (d duo) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (int, error) {
	return d.at(gpu).CreateInstance(ctx, gpu, profile, at)
}

func (d duo) DestroyInstance(ctx context.Context, gpu string, id int) error {
	return d.at(gpu).DestroyInstance(ctx, gpu, id)
}

func (d duo) CreateCompute(ctx context.Context, gpu string, instance, profile int, at host.Span) (int, error) {
	return d.at(gpu).CreateCompute(ctx, gpu, instance, profile, at)
}

func (d duo) DestroyCompute(ctx context.Context, gpu string, instance, id int) error {
	return d.at(gpu).DestroyCompute(ctx, gpu, instance, id)
}
