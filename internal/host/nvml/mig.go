//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// mostInstances is more GPU or compute instances of one profile than any GPU has. NVML's own number
// is too low on A30, so it gives no room for the list.
const mostInstances = 32

// mig reads whether a GPU can be partitioned, and how it is.
func (r *reading) mig() error {
	g := &r.gpu
	mode, pending, ret := r.GetMigMode()
	if !notOffered(ret) {
		g.MIG = r.must("nvmlDeviceGetMigMode", ret)
	}

	g.Mode = mode == nvml.DEVICE_MIG_ENABLE
	g.Pending = pending == nvml.DEVICE_MIG_ENABLE
	if g.MIG && r.lost == "" {
		r.profiles()
	}
	if g.Mode && r.lost == "" {
		if err := r.instances(); err != nil {
			return err
		}
	}

	if r.lost == "" {
		r.clients()
	}

	return nil
}

// notOffered reports that this GPU lacks what was asked for, or that this driver does not know it.
func notOffered(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT
}

// profiles asks for each kind of GPU instance that NVML knows; most GPUs have seven.
func (r *reading) profiles() {
	model := r.model()
	if known, ok := r.driver.offers[model]; ok {
		r.gpu.Profiles = cloneProfiles(known.profiles)
		return
	}

	hasNames := r.has("nvmlDeviceGetGpuInstanceProfileInfoV")
	for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		p, ret := r.profile(enum, hasNames)
		if notOffered(ret) {
			continue
		}
		if !r.must("nvmlDeviceGetGpuInstanceProfileInfo", ret) {
			return
		}

		places, ret := r.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: uint32(p.ID)})
		if ret == nvml.ERROR_NOT_SUPPORTED || !r.must("nvmlDeviceGetGpuInstancePossiblePlacements", ret) {
			continue
		}
		for _, at := range places {
			p.Places = append(p.Places, host.Span{Start: int(at.Start), Size: int(at.Size)})
		}
		sorting.By(p.Places, func(a, b host.Span) int { return a.Start - b.Start })

		if p.Name == "" {
			p.Name = host.ProfileName(p, r.gpu.Memory)
		}
		p.Compute = host.ComputeProfiles(p.Slices)
		r.gpu.Profiles = append(r.gpu.Profiles, p)
	}

	if r.lost == "" {
		r.driver.offers[model] = offer{
			profiles: cloneProfiles(r.gpu.Profiles),
			compute:  map[int][]host.ComputeProfile{},
		}
	}
}

// profile asks for one kind of GPU instance; only the newer call says its name.
func (r *reading) profile(enum int, hasName bool) (host.Profile, nvml.Return) {
	if !hasName {
		info, ret := r.GetGpuInstanceProfileInfo(enum)
		return host.Profile{
			Enum:   enum,
			ID:     int(info.Id),
			Slices: int(info.SliceCount),
			Max:    int(info.InstanceCount),
			Memory: info.MemorySizeMB << 20,
		}, ret
	}

	info, ret := r.GetGpuInstanceProfileInfoV(enum).V2()
	return host.Profile{
		Enum:   enum,
		ID:     int(info.Id),
		Slices: int(info.SliceCount),
		Max:    int(info.InstanceCount),
		Memory: info.MemorySizeMB << 20,
		Name:   strings.TrimPrefix(printable(cString(info.Name[:])), "MIG "),
	}, ret
}

// cloneProfiles copies a list and what is in it: callers change what they get.
func cloneProfiles(list []host.Profile) []host.Profile {
	list = slices.Clone(list)
	for i := range list {
		list[i].Places = slices.Clone(list[i].Places)
		list[i].Compute = slices.Clone(list[i].Compute)
	}

	return list
}

// model names the GPUs that offer the same profiles, as far as NVML tells them apart. The names of
// profiles follow from the memory.
func (r *reading) model() string {
	memory := strconv.FormatUint(r.gpu.Memory, 10)
	return strings.Join([]string{r.seen.version, r.gpu.Name, r.gpu.Device, r.gpu.Sub, memory}, "|")
}

func cString(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}

	return b.String()
}

// instances reads GPU instances and the compute instances in them.
func (r *reading) instances() error {
	const call = "nvmlDeviceGetGpuInstances"
	for i := range r.gpu.Profiles {
		p := &r.gpu.Profiles[i]
		kind := nvml.GpuInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: mostInstances}
		found, ret := r.GetGpuInstances(&kind)
		if ret == nvml.ERROR_NO_PERMISSION {
			return &host.NoDriver{
				Why:  "NVML shows the MIG instances of GPU " + r.gpu.Address + " to root only",
				Try:  "run gpuadm as root",
				Code: "NO_PERMISSION",
			}
		}

		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if !r.must(call, ret) {
			return nil
		}

		for n, instance := range found {
			info, ret := instance.GetInfo()
			if !r.must("nvmlGpuInstanceGetInfo", ret) {
				return nil
			}
			if n == 0 {
				p.Compute = r.computeProfiles(instance, p.ID)
			}
			r.gpu.Instances = append(r.gpu.Instances, host.Instance{
				ID:      int(info.Id),
				Profile: int(info.ProfileId),
				At: host.Span{
					Start: int(info.Placement.Start),
					Size:  int(info.Placement.Size),
				},
				Compute: r.computeInstances(instance, p.Compute),
			})
		}
	}

	sorting.By(r.gpu.Instances, func(a, b host.Instance) int { return a.ID - b.ID })
	if !r.keep {
		r.uuids()
	}

	return nil
}

// computeProfiles asks an instance what its profile offers.
func (r *reading) computeProfiles(in nvml.GpuInstance, profile int) []host.ComputeProfile {
	const call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
	known, ok := r.driver.offers[r.model()]
	if offers, asked := known.compute[profile]; asked {
		return slices.Clone(offers)
	}

	var found []host.ComputeProfile
	for enum := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := in.GetComputeInstanceProfileInfo(enum, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if notOffered(ret) {
			continue
		}
		if !r.must(call, ret) {
			return nil
		}
		found = append(found, host.ComputeProfile{
			ID:     int(info.Id),
			Enum:   enum,
			Slices: int(info.SliceCount),
			Max:    int(info.InstanceCount),
		})
	}

	if ok {
		known.compute[profile] = slices.Clone(found)
	}

	return found
}

func (r *reading) computeInstances(
	in nvml.GpuInstance, offered []host.ComputeProfile,
) (all []host.ComputeInstance) {
	for _, p := range offered {
		kind := nvml.ComputeInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: mostInstances}
		found, ret := in.GetComputeInstances(&kind)
		if ret == nvml.ERROR_NOT_SUPPORTED || !r.must("nvmlGpuInstanceGetComputeInstances", ret) {
			continue
		}
		for _, compute := range found {
			info, ret := compute.GetInfo()
			if !r.must("nvmlComputeInstanceGetInfo", ret) {
				return nil
			}
			all = append(all, host.ComputeInstance{
				ID:      int(info.Id),
				Profile: int(info.ProfileId),
				At: host.Span{
					Start: int(info.Placement.Start),
					Size:  int(info.Placement.Size),
				},
			})
		}
	}

	sorting.By(all, func(a, b host.ComputeInstance) int { return a.ID - b.ID })
	// Two profiles may have one id.
	return slices.CompactFunc(all, func(a, b host.ComputeInstance) bool {
		return a.ID == b.ID
	})
}

// uuids asks the MIG devices, one for each compute instance, for their names and what they have.
func (r *reading) uuids() {
	remaining := 0
	for _, in := range r.gpu.Instances {
		remaining += len(in.Compute)
	}
	if remaining == 0 {
		return
	}

	count, ret := r.GetMaxMigDeviceCount()
	if !r.got("nvmlDeviceGetMaxMigDeviceCount", ret) {
		return
	}

	for i := range count {
		if remaining == 0 || r.lost != "" {
			return
		}
		device, ret := r.GetMigDeviceHandleByIndex(i)
		if !r.got("nvmlDeviceGetMigDeviceHandleByIndex", ret) { // indexes have gaps
			continue
		}
		instance, ret1 := device.GetGpuInstanceId()
		compute, ret2 := device.GetComputeInstanceId()
		uuid, ret3 := device.GetUUID()
		if ret1 != nvml.SUCCESS || ret2 != nvml.SUCCESS || ret3 != nvml.SUCCESS {
			continue
		}
		remaining--

		share := r.share(device)
		if c := r.compute(instance, compute); c != nil {
			c.UUID = printable(uuid)
			c.Share = share
		}
	}
}

// compute returns the compute instance with these ids, nil if there is none.
func (r *reading) compute(instance, id int) *host.ComputeInstance {
	for _, in := range r.gpu.Instances {
		for i := range in.Compute {
			if in.ID == instance && in.Compute[i].ID == id {
				return &in.Compute[i]
			}
		}
	}
	return nil
}

// share asks a MIG device what it has of the GPU.
func (r *reading) share(of nvml.Device) host.Share {
	has, ret := of.GetAttributes()
	if !r.got("nvmlDeviceGetAttributes", ret) {
		return host.Share{}
	}
	return host.Share{
		Memory:   has.MemorySizeMB << 20,
		SMs:      int(has.MultiprocessorCount),
		Slices:   int(has.GpuInstanceSliceCount),
		Compute:  int(has.ComputeInstanceSliceCount),
		Copy:     int(has.SharedCopyEngineCount),
		Decoders: int(has.SharedDecoderCount),
		Encoders: int(has.SharedEncoderCount),
		JPEG:     int(has.SharedJpegCount),
		OFAs:     int(has.SharedOfaCount),
	}
}

// clients reads the processes that use the GPU, and adds each to the instance that it runs in.
func (r *reading) clients() {
	for _, kind := range []struct {
		call string
		read func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", r.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", r.GetGraphicsRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses", r.GetMPSComputeRunningProcesses},
	} {
		if !r.has(kind.call+"_v3", kind.call+"_v2", kind.call) {
			continue
		}
		found, ret := kind.read()
		if !r.got(kind.call, ret) {
			continue
		}
		for _, process := range found {
			r.gpu.Clients = append(r.gpu.Clients, int(process.Pid))
			for i := range r.gpu.Instances {
				in := &r.gpu.Instances[i]
				if uint32(in.ID) == process.GpuInstanceId {
					in.Clients = append(in.Clients, int(process.Pid))
				}
			}
		}
	}

	r.gpu.Clients = sortUnique(r.gpu.Clients)
	for i := range r.gpu.Instances {
		r.gpu.Instances[i].Clients = sortUnique(r.gpu.Instances[i].Clients)
	}
}

// sortUnique sorts process ids and removes repeated ones: a process may use a GPU in several ways.
func sortUnique(pids []int) []int {
	slices.Sort(pids)
	return slices.Compact(pids)
}
