//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// faked is the real door over the fake driver. A reset goes to the fake nvidia-smi: the real door's
// search path does not lead there.
type faked struct {
	host.Host
	fake *fakenvml.Fake
}

func openFake(t testing.TB, spec string) faked {
	t.Helper()
	spec, passed := strings.CutPrefix(spec, "passed ")
	f := openedFake(t, spec)
	if passed {
		for i := range f.fake.Dump().GPUs {
			f.fake.PassThrough(i)
		}
	}

	return f
}

func openedFake(t testing.TB, spec string) faked {
	t.Helper()
	fake := fakenvml.New(t, spec)
	t.Setenv("FAKENVML_STATE", fake.State)
	return faked{local.LiveWithNVML(fake.Library, nil), fake}
}

func (f faked) ResetGPUs(ctx context.Context, gpus ...string) error {
	return nvml.Reset(ctx, func(_ context.Context, argv ...string) ([]byte, error) {
		if said, code := f.fake.SMI(argv[1:]...); code != 0 {
			return []byte(said), &host.CommandError{
				Argv:  argv,
				Code:  code,
				Cause: errors.New("it refuses"),
			}
		}
		return nil, nil
	}, gpus)
}

// simulatedGPUs makes the same machine in memory.
func simulatedGPUs(t *testing.T, spec string) *simhost.Node {
	t.Helper()
	archive := "-- sim.toml --\n"
	spec, passed := strings.CutPrefix(spec, "passed ")
	for _, part := range strings.Split(spec, ",") {
		model, count, _ := strings.Cut(part, ":")
		if count == "" {
			count = "1"
		}
		archive += fmt.Sprintf("[[gpu]]\nmodel = %q\ncount = %s\npassthrough = %t\n", model, count, passed)
	}

	n := must.Get(simhost.New([]byte(archive)))(t)
	return n
}

// alike is what both machines must say. They may have different names, and compute profiles that
// are other names of one (1_SLICE_REV1, 7_SLICE_NVL), which NVML offers on Hopper, do not count.
func alike(t *testing.T, h host.View) []host.GPU {
	t.Helper()
	d := must.Get(h.Driver(t.Context()))(t)
	for i := range d.GPUs {
		g := &d.GPUs[i]
		g.UUID, g.Serial, g.Fabric.Cluster, g.Fabric.Clique = "", "", "", 0
		for j := range g.Profiles {
			if strings.HasPrefix(g.Name, "NVIDIA A30") { // NVML says as many as there are places, also of +me: the fake too
				g.Profiles[j].Max = len(g.Profiles[j].Places)
			}
			g.Profiles[j].Compute = slices.DeleteFunc(g.Profiles[j].Compute, func(c host.ComputeProfile) bool {
				return c.Enum > 4
			})
		}

		for j := range g.Instances {
			for k := range g.Instances[j].Compute {
				c := &g.Instances[j].Compute[k]
				check.That(t, strings.HasPrefix(c.UUID, "MIG-"), "a MIG device with the name %q", c.UUID)
				c.UUID = ""
			}
		}
	}

	return d.GPUs
}

// refused is an error in short, the same for both machines.
func refused(err error) string {
	command, gpu := (*host.CommandError)(nil), (*host.GPUError)(nil)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &gpu):
		return gpu.Error()
	case errors.As(err, &command) && command.Stderr != "":
		return "nvidia-smi refuses"
	}

	return fmt.Sprintf("%T %v", err, err)
}

// step is one random step on a machine; it returns what it came to.
type step struct {
	name string
	on   func(h host.Host) string
}

// randomStep picks a step by the machine's state: mostly ones that may succeed.
func randomStep(r *rand.Rand, gpus []host.GPU) step {
	ctx := context.Background()
	g := gpus[r.IntN(len(gpus))]
	if r.IntN(40) == 0 {
		g.Address = "0000:ee:00.0"
	}
	in, compute := r.IntN(10), r.IntN(4)
	if len(g.Instances) > 0 && r.IntN(8) > 0 {
		of := g.Instances[r.IntN(len(g.Instances))]
		in = of.ID
		if len(of.Compute) > 0 && r.IntN(8) > 0 {
			compute = of.Compute[r.IntN(len(of.Compute))].ID
		}
	}

	flag := r.IntN(3) > 0
	switch r.IntN(12) {
	case 0:
		return step{fmt.Sprintf("mode %s %t", g.Address, flag), func(h host.Host) string {
			return refused(h.SetMIGMode(ctx, g.Address, flag))
		}}
	case 1:
		return step{"reset " + g.Address, func(h host.Host) string {
			return refused(h.ResetGPUs(ctx, g.Address))
		}}
	case 2:
		on := r.IntN(4) == 0
		return step{fmt.Sprintf("persistence %s %t", g.Address, on), func(h host.Host) string {
			return refused(h.SetPersistence(ctx, g.Address, on))
		}}
	case 3, 4, 5:
		profile, at := r.IntN(30), host.Span{Start: r.IntN(9), Size: r.IntN(9)}
		if len(g.Profiles) > 0 && r.IntN(8) > 0 {
			p := g.Profiles[r.IntN(len(g.Profiles))]
			profile, at = p.ID, p.Places[r.IntN(len(p.Places))]
		}
		return step{fmt.Sprintf("create %s profile %d %v", g.Address, profile, at), func(h host.Host) string {
			id, err := h.CreateInstance(ctx, g.Address, profile, at)
			return fmt.Sprint(id, refused(err))
		}}
	case 6:
		return step{fmt.Sprintf("destroy %s instance %d", g.Address, in), func(h host.Host) string {
			return refused(h.DestroyInstance(ctx, g.Address, in))
		}}
	case 7, 8, 9:
		profile, at := r.IntN(6), host.Span{}
		if r.IntN(2) == 0 {
			at = host.Span{Start: r.IntN(5), Size: 1 + r.IntN(4)}
		}
		return step{fmt.Sprintf("compute %s in %d profile %d %v", g.Address, in, profile, at), func(h host.Host) string {
			id, err := h.CreateCompute(ctx, g.Address, in, profile, at)
			return fmt.Sprint(id, refused(err))
		}}
	case 10:
		return step{fmt.Sprintf("destroy %s compute %d/%d", g.Address, in, compute), func(h host.Host) string {
			return refused(h.DestroyCompute(ctx, g.Address, in, compute))
		}}
	}

	return step{fmt.Sprintf("use %s %d", g.Address, in), func(h host.Host) string {
		return use(h, g, in, flag)
	}}
}

// use lets a process use a GPU's instance if it has just one compute instance, or else the GPU; or
// ends all use of it.
func use(h host.Host, g host.GPU, in int, some bool) string {
	i := slices.IndexFunc(g.Instances, func(of host.Instance) bool {
		return of.ID == in && len(of.Compute) == 1 && of.Compute[0].ID == 0
	})
	if i < 0 {
		in = -1
	}
	pid := 1000 + g.Index
	if g.Address == "0000:ee:00.0" {
		return ""
	}
	switch h := h.(type) {
	case *simhost.Node:
		if some && !slices.Contains(g.Clients, pid) {
			h.Use(g.Address, in, pid)
		} else {
			h.Use(g.Address, -1)
		}
	case faked:
		if some && !slices.Contains(g.Clients, pid) {
			h.fake.Hold(g.Index, in, pid)
		} else {
			h.fake.EndUse(pid)
		}
	}

	return ""
}

// TestGPUBoth takes random steps on the real door over a fake driver and on the simulated node:
// each must answer the same and leave the same.
func TestGPUBoth(t *testing.T) {
	for _, spec := range []string{"A100-40:2", "passed A100-40:2", "passed A30", "A100-80", "H100-80,T4", "H200,L40S", "B200", "A30", "RTX-PRO-6000:2"} {
		t.Run(spec, func(t *testing.T) {
			real, sim := openFake(t, spec), simulatedGPUs(t, spec)
			well := map[string]int{}
			missing := func() []string {
				return slices.DeleteFunc([]string{"mode", "create", "compute", "destroy", "reset"}, func(kind string) bool {
					return well[kind] != 0
				})
			}

			for seed := range uint64(4) {
				if seed >= 2 && len(missing()) == 0 && !check.All() {
					break
				}
				r := rand.New(rand.NewPCG(seed, 1))
				before := alike(t, real)
				for n := range 120 {
					next := randomStep(r, before)
					want, got := next.on(real), next.on(sim)
					must.That(t, want == got, "seed %d step %d: %s: the driver says %q, the simulation %q", seed, n, next.name, want, got)
					if !strings.Contains(want, "cannot") && !strings.Contains(want, "refuses") {
						well[strings.Fields(next.name)[0]]++
					}
					before = alike(t, real)
					diff := cmp.Diff(before, alike(t, sim))
					must.That(t, diff == "", "seed %d step %d: after %s (-driver +simulation):\n%s", seed, n, next.name, diff)
				}

				real.fake.Reboot()
				sim.Reboot()
			}

			check.That(t, len(missing()) == 0 || spec == "T4", "no %s went well: the test shows nothing of it", missing())
		})
	}
}

// TestFolderGPUs: in a root folder nothing can be asked or done before the first boot.
func TestFolderGPUs(t *testing.T) {
	h, _ := openFolder(t)
	ctx := t.Context()
	_, read := h.Driver(ctx)
	_, instance := h.CreateInstance(ctx, "0000:17:00.0", 0, host.Span{})
	_, compute := h.CreateCompute(ctx, "0000:17:00.0", 0, 0, host.Span{})
	for i, err := range []error{
		read, instance, compute, h.SetMIGMode(ctx, "0000:17:00.0", true), h.ResetGPUs(ctx, "0000:17:00.0"),
		h.DestroyInstance(ctx, "0000:17:00.0", 0), h.DestroyCompute(ctx, "0000:17:00.0", 0, 0), h.SetPersistence(ctx, "0000:17:00.0", true),
	} {
		check.That(t, errors.As(err, new(host.Later)), "%d: %v", i, err)
	}
}
