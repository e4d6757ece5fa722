// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// driver is the simulated NVIDIA driver with its GPUs.
type driver struct {
	version string
	nvml    string
	cuda    string
	module  string         // a file without which no driver answers
	none    *host.NoDriver // why no driver answers; nil if one may

	gpus   []*host.GPU
	passed map[string]bool // GPUs that are passed through to a virtual machine, by address
	deaf   map[int]bool    // processes that do not end when they are asked to
}

// answers returns the driver's version, or why the driver does not answer; the node is locked.
func (n *Node) answers() (version string, err error) {
	d := n.driver
	if d.none != nil {
		return "", d.none
	}
	if len(d.gpus) == 0 {
		return "", &host.NoDriver{
			Why: "neither its library libnvidia-ml.so.1 nor the kernel module nvidia is there",
			Try: "install the NVIDIA driver",
		}
	}

	if d.module == "" {
		return d.version, nil
	}

	data, err := n.raw.ReadFile(d.module)
	if err != nil {
		return "", &host.NoDriver{
			Why: "the kernel module nvidia is not loaded",
			Try: "modprobe nvidia; if it fails, dmesg says why",
		}
	}

	return strings.TrimSpace(string(data)), nil
}

// unloads begins a touch, and the func that it returns ends it: a kernel module that was removed in
// between has forgotten what it knew of its GPUs. The node is locked.
func (n *Node) unloads() func() {
	if n.driver.module == "" || !n.loaded() {
		return func() {}
	}
	return func() {
		if n.loaded() {
			return
		}
		for _, g := range n.driver.gpus {
			lost := g.Lost // what fell off the bus stays off
			boot(g)
			g.Lost = lost
		}
	}
}

func (n *Node) loaded() bool {
	_, err := n.raw.Stat(n.driver.module)
	return err == nil
}

// Driver is host.View's.
func (n *Node) Driver(ctx context.Context) (found host.Driver, err error) {
	if !n.Live() {
		return host.Driver{}, host.FirstBoot
	}
	err = n.look(func() error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		version, err := n.answers()
		if err != nil {
			return err
		}
		found = host.Driver{
			Version: version,
			NVML:    cmp.Or(n.driver.nvml, version),
			CUDA:    n.driver.cuda,
		}
		for _, g := range n.driver.gpus {
			found.GPUs = append(found.GPUs, shown(*g))
		}
		slices.SortStableFunc(found.GPUs, func(a, b host.GPU) int {
			return strings.Compare(a.Address, b.Address)
		})
		return nil
	})
	return found, err
}

// shown is what the driver says of a GPU: a copy, and almost nothing of one that is lost.
func shown(g host.GPU) host.GPU {
	if g.Lost != "" {
		return host.GPU{
			Address: g.Address,
			Index:   g.Index,
			Minor:   -1,
			Device:  g.Device,
			Sub:     g.Sub,
			Lost:    g.Lost,
		}
	}

	g.Clients = list(g.Clients)
	g.Profiles = list(g.Profiles)
	g.Instances = list(g.Instances)
	for i := range g.Profiles {
		p := &g.Profiles[i]
		p.Places = list(p.Places)
		p.Compute = list(p.Compute)
	}

	for i := range g.Instances {
		in := &g.Instances[i]
		in.Compute = list(in.Compute)
		in.Clients = list(in.Clients)
	}

	return g
}

// list copies a list; an empty one is nil, as on a real host.
func list[T any](of []T) []T { return append([]T(nil), of...) }

// gpuTouch runs one change of a GPU as one touch. What it returns is NVML's call and its answer.
func (n *Node) gpuTouch(ctx context.Context, gpu string, do func(*host.GPU) (call, code string)) error {
	if !n.Live() {
		return host.FirstBoot
	}
	return n.touch(func() error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if _, err := n.answers(); err != nil {
			return err
		}

		call, code := "nvmlDeviceGetHandleByPciBusId", "NOT_FOUND"
		g := n.gpuAt(gpu)
		switch {
		case g == nil:
		case g.Lost != "":
			code = "GPU_IS_LOST"
		default:
			call, code = do(g)
		}

		if code == "" {
			return nil
		}
		if code == "IN_USE" {
			n.violated = append(n.violated, fmt.Sprintf("%s of GPU %s while it is in use", call, gpu))
		}
		return &host.GPUError{Call: call, GPU: gpu, Code: code}
	})
}

// gpuAt returns the GPU at an address; nil if there is none. The node is locked.
func (n *Node) gpuAt(address string) *host.GPU {
	for _, g := range n.driver.gpus {
		if g.Address == address {
			return g
		}
	}
	return nil
}

// SetMIGMode is host.Host's.
func (n *Node) SetMIGMode(ctx context.Context, gpu string, on bool) error {
	return n.gpuTouch(ctx, gpu, func(g *host.GPU) (string, string) {
		return "nvmlDeviceSetMigMode", setMode(g, on, n.driver.passed[gpu])
	})
}

// SetPersistence is host.Host's.
func (n *Node) SetPersistence(ctx context.Context, gpu string, on bool) error {
	return n.gpuTouch(ctx, gpu, func(g *host.GPU) (call, code string) {
		g.Persistent = on
		return "", ""
	})
}

// CreateInstance is host.Host's.
func (n *Node) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (id int, err error) {
	err = n.gpuTouch(ctx, gpu, func(g *host.GPU) (call, code string) {
		id, code = createInstance(g, profile, at)
		return "nvmlDeviceCreateGpuInstanceWithPlacement", code
	})
	return id, err
}

// DestroyInstance is host.Host's.
func (n *Node) DestroyInstance(ctx context.Context, gpu string, id int) error {
	return n.gpuTouch(ctx, gpu, func(g *host.GPU) (string, string) {
		return destroyInstance(g, id)
	})
}

// CreateCompute is host.Host's.
func (n *Node) CreateCompute(ctx context.Context, gpu string, of, profile int, at host.Span) (id int, err error) {
	err = n.gpuTouch(ctx, gpu, func(g *host.GPU) (call, code string) {
		in, code := find(g, of)
		if code != "" {
			return "nvmlDeviceGetGpuInstanceById", code
		}
		call = "nvmlGpuInstanceCreateComputeInstance"
		if at.Size > 0 {
			call += "WithPlacement"
		}
		id, code = createCompute(g, in, profile, at)
		return call, code
	})
	return id, err
}

// DestroyCompute is host.Host's.
func (n *Node) DestroyCompute(ctx context.Context, gpu string, of, id int) error {
	return n.gpuTouch(ctx, gpu, func(g *host.GPU) (string, string) {
		in, code := find(g, of)
		if code != "" {
			return "nvmlDeviceGetGpuInstanceById", code
		}
		return destroyCompute(in, id)
	})
}

// ResetGPUs is host.Host's: one touch, and all of them or none.
func (n *Node) ResetGPUs(ctx context.Context, gpus ...string) error {
	if !n.Live() {
		return host.FirstBoot
	}
	if len(gpus) == 0 {
		return nil
	}
	argv := []string{"nvidia-smi", "--gpu-reset", "-i", strings.Join(gpus, ",")}
	return n.touch(func() error {
		if err := ctx.Err(); err != nil {
			return failed(argv, -1, "", err)
		}

		var all []*host.GPU
		for _, address := range gpus {
			g := n.gpuAt(address)
			if g == nil {
				return failed(argv, 6, "Unable to find GPU "+address, errors.New("exit status 6"))
			}
			// Persistence mode holds a GPU as a process does:
			// https://github.com/NVIDIA/NVSentinel/issues/1690.
			if len(g.Clients) > 0 || g.Persistent {
				n.violated = append(n.violated, "reset of GPU "+address+" while it is in use")
				says := "GPU " + address + " is in use by another client"
				return failed(argv, 19, says, errors.New("exit status 19"))
			}

			all = append(all, g)
		}

		for _, g := range all {
			reset(g)
		}
		return nil
	})
}

// Terminate is host.Host's: the process ends, its files are closed, and it uses no GPU.
func (n *Node) Terminate(pid int) error {
	if !n.Live() {
		return host.FirstBoot
	}
	return n.touch(func() error {
		if n.driver.deaf[pid] {
			return nil
		}
		is := func(p int) bool { return p == pid }
		for _, g := range n.driver.gpus {
			g.Clients = slices.DeleteFunc(g.Clients, is)
			for i := range g.Instances {
				g.Instances[i].Clients = slices.DeleteFunc(g.Instances[i].Clients, is)
			}
		}

		fds := fmt.Sprintf("/proc/%d/fd", pid)
		names, _ := n.raw.ReadDir(fds)
		for _, name := range names {
			if err := n.raw.Remove(fds + "/" + name); err != nil {
				return err
			}
		}

		return nil
	})
}

// Deafen makes a process ignore that it is asked to end.
func (n *Node) Deafen(pid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.driver.deaf[pid] = true
}

// Use lets these processes and no others use a GPU, in one of its instances if of is not negative.
func (n *Node) Use(gpu string, of int, pids ...int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.gpuAt(gpu)
	if g == nil {
		return
	}

	g.Clients = slices.Clone(pids)
	for i := range g.Instances {
		in := &g.Instances[i]
		in.Clients = nil
		if in.ID == of {
			in.Clients = slices.Clone(pids)
		}
	}
}

// Lose makes a GPU fall off the bus.
func (n *Node) Lose(gpu, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if g := n.gpuAt(gpu); g != nil {
		g.Lost = why
	}
}
