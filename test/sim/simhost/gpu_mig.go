// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// This file does to one GPU what NVIDIA's driver does. A code is NVML's name of a refusal; "" if the
// driver does not refuse.

// waitsForReset reports whether MIG mode changes at a reset only, and outlives the driver: Ampere.
// Later GPUs switch at once and forget the mode when the driver goes:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/.
func waitsForReset(g *host.GPU) bool { return g.Arch == "ampere" }

// setMode sets MIG mode: nvml.h, nvmlDeviceSetMigMode. passed says that the GPU is passed through to
// a virtual machine.
func setMode(g *host.GPU, on, passed bool) (code string) {
	if !g.MIG {
		return "NOT_SUPPORTED"
	}
	if waitsForReset(g) {
		return setPendingMode(g, on, passed)
	}

	changes := on != g.Mode
	if changes && len(g.Clients)+len(g.Instances) > 0 {
		return "IN_USE"
	}
	if changes {
		g.Mode = on
		g.Pending = on
	}
	return ""
}

// setPendingMode sets the mode after the next reset. The driver resets an idle GPU at once, unless
// it is passed through.
func setPendingMode(g *host.GPU, on, passed bool) (code string) {
	g.Pending = on // also if a process uses it
	changes := on != g.Mode
	if changes && len(g.Clients) > 0 {
		return "IN_USE"
	}
	if changes && !passed {
		g.Mode = on
		g.Instances = nil
	}
	return ""
}

// reset is what a reset leaves of a GPU.
func reset(g *host.GPU) {
	g.Instances = nil
	g.RemapWaits = false
	g.Mode = g.Pending
	g.Lost = ""
	g.Uncorrected = 0
	if g.Recovery != "" {
		g.Recovery = "none"
	}
	if g.ECCWaits != "" {
		g.ECC = g.ECCWaits
		g.ECCWaits = ""
	}
}

// boot is what a boot, or the driver's reload, leaves of a GPU: processes are gone, persistence
// mode is off.
func boot(g *host.GPU) {
	g.Pending = g.Pending && waitsForReset(g)
	reset(g)
	g.Clients = nil
	g.Persistent = false
	g.Lost = ""
}

func instance(g *host.GPU, id int) *host.Instance {
	for i := range g.Instances {
		if g.Instances[i].ID == id {
			return &g.Instances[i]
		}
	}
	return nil
}

// instanceID is a function of the place: the driver numbers the tree of whole, halves, quarters,
// eighths.
func instanceID(g *host.GPU, at host.Span) int {
	whole := 0
	for _, p := range g.Profiles {
		for _, place := range p.Places {
			whole = max(whole, place.Start+place.Size)
		}
	}

	return whole/at.Size - 1 + at.Start/at.Size
}

func overlap(a, b host.Span) bool {
	return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size
}

func createInstance(g *host.GPU, profile int, at host.Span) (id int, code string) {
	switch {
	case profile < 0 || at.Start < 0 || at.Size <= 0: // NVML itself refuses
		return 0, "INVALID_ARGUMENT"
	case !g.Mode:
		return 0, "NOT_SUPPORTED"
	}

	wanted := profileOf(g, profile)
	if wanted == nil || !slices.Contains(wanted.Places, at) {
		return 0, "INVALID_ARGUMENT"
	}
	if !hasRoom(g, wanted, at) {
		return 0, "INSUFFICIENT_RESOURCES"
	}

	made := host.Instance{ID: instanceID(g, at), Profile: profile, At: at}
	g.Instances = append(g.Instances, made)
	slices.SortFunc(g.Instances, func(a, b host.Instance) int { return a.ID - b.ID })
	return made.ID, ""
}

// profileOf returns the GPU's profile with this id; nil if it has none.
func profileOf(g *host.GPU, id int) *host.Profile {
	for i := range g.Profiles {
		if g.Profiles[i].ID == id {
			return &g.Profiles[i]
		}
	}
	return nil
}

// hasRoom says whether the GPU's instances leave room for one more of a profile.
func hasRoom(g *host.GPU, wanted *host.Profile, at host.Span) bool {
	same := 0
	for _, in := range g.Instances {
		if in.Profile == wanted.ID {
			same++
		}
		if overlap(in.At, at) || !mediaFit(profileOf(g, in.Profile).Name, wanted.Name) {
			return false
		}
	}

	return same < wanted.Max
}

// mediaFit reports whether two profiles leave each other their media engines. One with all of them
// leaves none to others (assumed: RTX PRO 6000 has four of each, as many as +me.all takes). The
// GPU has one set of the engines that +me gives.
func mediaFit(a, b string) bool {
	has := func(name, suffix string) bool { return strings.HasSuffix(name, suffix) }
	if has(a, "+me.all") || has(b, "+me.all") {
		return has(a, "-me") || has(b, "-me")
	}
	return !has(a, "+me") || !has(b, "+me")
}

// find finds an instance as the driver's clients do.
func find(g *host.GPU, id int) (in *host.Instance, code string) {
	if !g.Mode {
		return nil, "NOT_SUPPORTED"
	}
	in = instance(g, id)
	if in == nil {
		return nil, "NOT_FOUND"
	}
	return in, ""
}

func destroyInstance(g *host.GPU, id int) (call, code string) {
	in, code := find(g, id)
	if code != "" {
		return "nvmlDeviceGetGpuInstanceById", code
	}
	if len(in.Compute)+len(in.Clients) > 0 {
		return "nvmlGpuInstanceDestroy", "IN_USE"
	}
	g.Instances = slices.DeleteFunc(g.Instances, func(in host.Instance) bool {
		return in.ID == id
	})
	return "", ""
}

func createCompute(g *host.GPU, in *host.Instance, profile int, at host.Span) (id int, code string) {
	parent := profileOf(g, in.Profile)
	c := slices.IndexFunc(parent.Compute, func(c host.ComputeProfile) bool {
		return c.ID == profile
	})
	if c < 0 {
		return 0, "NOT_SUPPORTED"
	}

	size := parent.Compute[c].Slices
	starts := computeStarts(parent.Slices, size)
	if at.Size > 0 {
		if at.Size != size || !slices.Contains(starts, at.Start) {
			return 0, "INVALID_ARGUMENT"
		}
		starts = []int{at.Start}
	}

	start, found := freeStart(in, starts, size)
	if !found {
		return 0, "INSUFFICIENT_RESOURCES"
	}

	for slices.ContainsFunc(in.Compute, func(c host.ComputeInstance) bool { return c.ID == id }) {
		id++
	}
	in.Compute = append(in.Compute, host.ComputeInstance{
		ID:      id,
		Profile: profile,
		At:      host.Span{Start: start, Size: size},
		UUID:    migUUID(g, in.ID, id),
		Share:   share(g, *parent, size),
	})
	slices.SortFunc(in.Compute, func(a, b host.ComputeInstance) int { return a.ID - b.ID })
	return id, ""
}

// freeStart returns the first start at which no compute instance is in the way.
func freeStart(in *host.Instance, starts []int, size int) (start int, found bool) {
	for _, start := range starts {
		at := host.Span{Start: start, Size: size}
		taken := func(c host.ComputeInstance) bool { return overlap(c.At, at) }
		if !slices.ContainsFunc(in.Compute, taken) {
			return start, true
		}
	}
	return 0, false
}

// computeStarts returns where a compute instance of a size may start in a GPU instance of a number
// of compute slices.
func computeStarts(slices, size int) []int {
	var starts []int
	for start := 0; start+size <= slices; start += alignment(size) {
		starts = append(starts, start)
	}
	return starts
}

// alignment: three slices lie as four do.
func alignment(size int) int {
	if size == 3 {
		return 4
	}
	return size
}

func destroyCompute(in *host.Instance, id int) (call, code string) {
	i := slices.IndexFunc(in.Compute, func(c host.ComputeInstance) bool { return c.ID == id })
	if i < 0 {
		return "nvmlGpuInstanceGetComputeInstanceById", "NOT_FOUND"
	}
	if len(in.Clients) > 0 {
		return "nvmlComputeInstanceDestroy", "IN_USE"
	}
	in.Compute = slices.Delete(in.Compute, i, i+1)
	return "", ""
}
