// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package fakenvml

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestEveryPlacement creates every profile of every model at every place it may have and some it
// may not.
func TestEveryPlacement(t *testing.T) {
	for _, m := range models(t) {
		t.Run(m.Key, func(t *testing.T) {
			f, lib := load(t, m.Key)
			if len(m.Profiles) == 0 {
				refuses(t, device(t, lib, 0))
				return
			}
			d := enabled(t, f, lib, 0)
			for _, p := range m.Profiles {
				info := profile(t, d, p)
				places, ret := d.GetGpuInstancePossiblePlacements(&info)
				must(t, ret)
				var starts []int
				for _, at := range places {
					starts = append(starts, int(at.Start))
					check.That(t, int(at.Size) == p.Size, "%s at %+v", p.Name, at)
				}

				want := slices.Sorted(slices.Values(p.Starts))
				check.That(t, slices.Equal(starts, want), "%s: NVML places it at %v, the table at %v", p.Name, starts, want)
				for start := 0; start < m.Slices+1; start++ {
					createAt(t, m, p, d, info, start)
				}
			}

			left := f.Dump().GPUs[0].Instances
			check.That(t, len(left) == 0, "%v is left", left)
		})
	}
}

func createAt(t *testing.T, m Model, p Profile, d nvml.Device, info nvml.GpuInstanceProfileInfo, start int) {
	t.Helper()
	at := place(p, start)
	gi, ret := d.CreateGpuInstanceWithPlacement(&info, at)
	if !slices.Contains(p.Starts, start) {
		want(t, p.Name+" at a place not its own", ret, nvml.ERROR_INVALID_ARGUMENT)
		return
	}
	must(t, ret)
	got, ret := gi.GetInfo()
	must(t, ret)
	check.That(t, got.Placement == *at && got.ProfileId == info.Id && int(got.Id) == id(m, start, p.Size) && got.Device == d, "%s at %d became %+v", p.Name, start, got)
	_, ret = d.CreateGpuInstanceWithPlacement(&info, at)
	want(t, p.Name+" on itself", ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
	if room, ret := d.GetGpuInstanceRemainingCapacity(&info); ret != nvml.SUCCESS || room > p.Max-1 {
		t.Errorf("%s: room for %d more, %v", p.Name, room, ret)
	}
	byID, ret := d.GetGpuInstanceById(int(got.Id))
	if must(t, ret); byID != gi {
		t.Errorf("%s: another instance has its id", p.Name)
	}
	list, ret := d.GetGpuInstances(&info)
	if must(t, ret); len(list) != 1 || list[0] != gi {
		t.Errorf("%s: listed as %v", p.Name, list)
	}
	computes(t, p, gi)
	want(t, "destroy", gi.Destroy(), nvml.SUCCESS)
	want(t, "destroy again", gi.Destroy(), nvml.ERROR_INVALID_ARGUMENT)
	_, ret = d.GetGpuInstanceById(int(got.Id))
	want(t, "gone", ret, nvml.ERROR_NOT_FOUND)
}

// computes creates every compute instance there may be in a GPU instance, alone.
func computes(t *testing.T, p Profile, gi nvml.GpuInstance) {
	t.Helper()
	whole := 0
	for kind := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(kind, 0)
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		must(t, ret)
		places, ret := gi.GetComputeInstancePossiblePlacements(&info)
		must(t, ret)
		check.That(t, int(info.Id) == kind && len(places) > 0 && int(info.InstanceCount) == len(places), "%s: compute profile %d: %+v at %v", p.Name, kind, info, places)
		if int(info.SliceCount) == p.Slices {
			whole++
		}
		for _, at := range places {
			check.That(t, int(at.Start+at.Size) <= p.Slices && at.Size == info.SliceCount, "%s: compute profile %d at %+v", p.Name, kind, at)
			ci, ret := gi.CreateComputeInstanceWithPlacement(&info, &at)
			must(t, ret)
			got, ret := ci.GetInfo()
			if must(t, ret); got.Placement != at || got.ProfileId != info.Id || got.Id != 0 || got.GpuInstance != gi {
				t.Errorf("%s: compute instance %+v", p.Name, got)
			}
			_, ret = gi.CreateComputeInstanceWithPlacement(&info, &at)
			want(t, "compute instance on itself", ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
			want(t, "destroy with a compute instance", gi.Destroy(), nvml.ERROR_IN_USE)
			must(t, ci.Destroy())
			want(t, "destroy again", ci.Destroy(), nvml.ERROR_INVALID_ARGUMENT)
		}
	}

	check.That(t, whole != 0, "%s: no compute instance takes it whole", p.Name)
}

// refuses wants a GPU without MIG to say so.
func refuses(t *testing.T, d nvml.Device) {
	t.Helper()
	_, _, ret := d.GetMigMode()
	want(t, "GetMigMode", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.SetMigMode(1)
	want(t, "SetMigMode", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetGpuInstanceProfileInfo(0)
	want(t, "GetGpuInstanceProfileInfo", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 19})
	want(t, "CreateGpuInstance", ret, nvml.ERROR_NOT_SUPPORTED)
	n, ret := d.GetMaxMigDeviceCount()
	check.That(t, ret == nvml.SUCCESS && n == 0, "GetMaxMigDeviceCount: %d, %v", n, ret)
}

// TestOwnChoice: where the driver puts what comes without a place, as seen on real GPUs.
func TestOwnChoice(t *testing.T) {
	const none = nvml.ERROR_INSUFFICIENT_RESOURCES
	for _, c := range []struct {
		model string
		kinds []int
		want  []int
	}{
		{"H100-80", []int{0, 0, 0, 0, 0, 0, 0, 0}, []int{6, 4, 5, 0, 1, 2, 3, -1}},
		{"A100-40", []int{0, 0, 1, 2}, []int{6, 4, 0, -1}},  // nvidia-smi mig -cgi 19,19,14,9 fails
		{"A100-40", []int{2, 0, 1, 0}, []int{4, 0, 2, 1}},   // 9,19,14,19 works
		{"H100-94", []int{2, 2, 2}, []int{0, 4, -1}},        // the first 3g of an H100 NVL
		{"A100-80", []int{7, 7}, []int{6, -1}},              // one with media extensions
		{"RTX-PRO-6000", []int{15, 0, 13}, []int{0, -1, 3}}, // all media engines shut out a share, not none
		{"RTX-PRO-6000", []int{0, 16, 14}, []int{0, -1, 6}},
	} {
		f, lib := load(t, c.model)
		d := enabled(t, f, lib, 0)
		for i, kind := range c.kinds {
			info, ret := d.GetGpuInstanceProfileInfo(kind)
			must(t, ret)
			gi, ret := d.CreateGpuInstance(&info)
			if c.want[i] < 0 {
				want(t, c.model, ret, none)
				continue
			}
			must(t, ret)
			got, ret := gi.GetInfo()
			if must(t, ret); int(got.Placement.Start) != c.want[i] {
				t.Errorf("%s: instance %d lies at %d, want %d", c.model, i, got.Placement.Start, c.want[i])
			}
		}

		must(t, lib.Shutdown())
	}
}

func TestMIGDevices(t *testing.T) {
	f, lib := load(t, "A100-40")
	d := enabled(t, f, lib, 0)
	three := models(t)[1].Profiles[4]
	info := profile(t, d, three)
	gi, ret := d.CreateGpuInstanceWithPlacement(&info, place(three, 4))
	must(t, ret)
	for _, kind := range []int{nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE} {
		ci, ret := gi.GetComputeInstanceProfileInfo(kind, 0)
		must(t, ret)
		if kind == nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE {
			// 1c lies on slice 0, and 2c of a 3g may lie there alone.
			_, ret = gi.CreateComputeInstance(&ci)
			want(t, "2c beside a 1c that lies in its place", ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
			continue
		}

		_, ret = gi.CreateComputeInstance(&ci)
		must(t, ret)
	}

	mig, ret := d.GetMigDeviceHandleByIndex(0)
	must(t, ret)
	_, ret = d.GetMigDeviceHandleByIndex(1)
	want(t, "a second MIG device", ret, nvml.ERROR_NOT_FOUND)
	uuid, ret := mig.GetUUID()
	must(t, ret)
	if again, ret := lib.DeviceGetHandleByUUID(uuid); ret != nvml.SUCCESS || again != mig || uuid[:4] != "MIG-" {
		t.Errorf("UUID %s leads elsewhere: %v", uuid, ret)
	}
	name, ret := mig.GetName()
	if must(t, ret); name != "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb" {
		t.Errorf("it is called %s", name)
	}
	attributes, ret := mig.GetAttributes()
	if must(t, ret); attributes.GpuInstanceSliceCount != 3 || attributes.ComputeInstanceSliceCount != 1 || attributes.MultiprocessorCount != 14 || attributes.MemorySizeMB != 19968 {
		t.Errorf("attributes %+v", attributes)
	}
	if is, ret := mig.IsMigDeviceHandle(); ret != nvml.SUCCESS || !is {
		t.Error("it is not one")
	}
	if parent, ret := mig.GetDeviceHandleFromMigDeviceHandle(); ret != nvml.SUCCESS || parent != d {
		t.Error("another parent")
	}
	if n, ret := mig.GetGpuInstanceId(); ret != nvml.SUCCESS || n != 2 {
		t.Errorf("GPU instance %d, %v", n, ret)
	}
	f.Hold(0, 2, 4711)
	for _, handle := range []nvml.Device{d, mig} {
		list, ret := handle.GetComputeRunningProcesses()
		if must(t, ret); len(list) != 1 || list[0].Pid != 4711 || list[0].GpuInstanceId != 2 {
			t.Errorf("processes %+v", list)
		}
	}

	f.Reboot()
	_, ret = mig.GetUUID()
	want(t, "after a reboot", ret, nvml.ERROR_INVALID_ARGUMENT)
}
