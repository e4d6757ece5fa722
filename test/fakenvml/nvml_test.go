// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package fakenvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuadm/gpuadm/test/check"
)

// load makes a machine and loads its library through the real binding.
func load(t testing.TB, spec string) (*Fake, nvml.Interface) {
	t.Helper()
	f := New(t, spec)
	return f, attach(t, f)
}

// attach loads the library for a running machine.
func attach(t testing.TB, f *Fake) nvml.Interface {
	t.Helper()
	setenv(t, "FAKENVML_STATE", f.State)
	lib := nvml.New(nvml.WithLibraryPath(f.Library))
	must(t, lib.Init())
	t.Cleanup(func() { _ = lib.Shutdown() })
	return lib
}

func setenv(t testing.TB, name, value string) { t.Helper(); t.Setenv(name, value) }

func must(t testing.TB, got nvml.Return) {
	t.Helper()
	if got != nvml.SUCCESS {
		t.Fatalf("got %v", got)
	}
}

func want(t testing.TB, what string, got, want nvml.Return) {
	t.Helper()
	check.That(t, got == want, "%s: got %v, want %v", what, got, want)
}

func device(t testing.TB, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	d, ret := lib.DeviceGetHandleByIndex(index)
	must(t, ret)
	return d
}

// enabled is a GPU with MIG on.
func enabled(t testing.TB, f *Fake, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	d := device(t, lib, index)
	_, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	must(t, ret)
	if now, pending, ret := d.GetMigMode(); ret != nvml.SUCCESS || now != pending {
		if output, code := f.SMI("-r", "-i", f.Dump().GPUs[index].Address); code != 0 {
			t.Fatalf("reset: %s", output)
		}
	}

	return d
}

func profile(t testing.TB, d nvml.Device, p Profile) nvml.GpuInstanceProfileInfo {
	t.Helper()
	info, ret := d.GetGpuInstanceProfileInfo(p.Kind)
	must(t, ret)
	if int(info.Id) != p.ID || int(info.SliceCount) != p.Slices || int(info.InstanceCount) != p.Said || int(info.MemorySizeMB) != p.MemoryMB {
		t.Fatalf("profile %s: NVML says %+v", p.Name, info)
	}
	return info
}

func place(p Profile, start int) *nvml.GpuInstancePlacement {
	return &nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)}
}

// id is the driver's numbering, written down independently: whole, halves, quarters, eighths from
// left to right.
func id(m Model, start, size int) int {
	first, width := 0, m.Slices
	for n := 1; width > size; n *= 2 {
		first += n
		width /= 2
	}

	return first + start/size
}

func TestNoDriver(t *testing.T) {
	f := New(t, "T4")
	setenv(t, "FAKENVML_STATE", f.State+".none")
	lib := nvml.New(nvml.WithLibraryPath(f.Library))
	want(t, "no state", lib.Init(), nvml.ERROR_DRIVER_NOT_LOADED)
	setenv(t, "FAKENVML_STATE", f.State)
	f.Init("LIB_RM_VERSION_MISMATCH")
	want(t, "mismatch", lib.Init(), nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	f.Init("SUCCESS")
	want(t, "healed", lib.Init(), nvml.SUCCESS)
	want(t, "shutdown", lib.Shutdown(), nvml.SUCCESS)
}

func TestEnumerate(t *testing.T) {
	f, lib := load(t, "H100-80:2,T4,RTX-PRO-6000")
	count, ret := lib.DeviceGetCount()
	must(t, ret)
	if count != 4 {
		t.Fatalf("%d GPUs, want 4", count)
	}
	all, dump := map[string]Model{}, f.Dump()
	for _, m := range models(t) {
		all[m.Key] = m
	}
	for i, g := range dump.GPUs {
		d := device(t, lib, i)
		name, ret := d.GetName()
		must(t, ret)
		uuid, ret := d.GetUUID()
		must(t, ret)
		pci, ret := d.GetPciInfo()
		must(t, ret)
		memory, ret := d.GetMemoryInfo_v2()
		must(t, ret)
		check.That(t, name == all[g.Model].Name && uuid == g.UUID && memory.Total == uint64(all[g.Model].MemoryMB)<<20 && memory.Free+memory.Reserved == memory.Total,
			"GPU %d is %s %s with %+v", i, name, uuid, memory)
		if old, ret := d.GetMemoryInfo(); ret != nvml.SUCCESS || old.Used != memory.Reserved+memory.Used || old.Free != memory.Free {
			t.Errorf("version 1 counts what is reserved as used: %+v beside %+v", old, memory)
		}
		byUUID, ret := lib.DeviceGetHandleByUUID(uuid)
		must(t, ret)
		byAddress, ret := lib.DeviceGetHandleByPciBusId(g.Address)
		must(t, ret)
		check.That(t, byUUID == d && byAddress == d && pci.Bus == uint32(0x17+8*i), "GPU %d at bus %x is another by UUID or address", i, pci.Bus)
		minor, ret := d.GetMinorNumber()
		check.That(t, ret == nvml.SUCCESS && minor == i, "GPU %d: minor %d, %v", i, minor, ret)
	}

	version, ret := lib.SystemGetDriverVersion()
	must(t, ret)
	cuda, ret := lib.SystemGetCudaDriverVersion_v2()
	must(t, ret)
	check.That(t, version == "580.95.05" && cuda == 13000, "driver %s with CUDA %d", version, cuda)
	_, ret = lib.DeviceGetHandleByIndex(4)
	want(t, "index 4", ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = lib.DeviceGetHandleByUUID("GPU-0")
	want(t, "unknown UUID", ret, nvml.ERROR_NOT_FOUND)
	major, minor, ret := device(t, lib, 3).GetCudaComputeCapability()
	if must(t, ret); major != 12 || minor != 0 {
		t.Errorf("RTX PRO 6000 has compute capability %d.%d", major, minor)
	}
}

func TestProfileInfoVersions(t *testing.T) {
	_, lib := load(t, "RTX-PRO-6000,A30")
	d := device(t, lib, 0)
	kind := nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX
	v2, ret := d.GetGpuInstanceProfileInfoV(kind).V2()
	must(t, ret)
	v3, ret := d.GetGpuInstanceProfileInfoV(kind).V3()
	must(t, ret)
	byID, ret := d.GetGpuInstanceProfileInfoByIdV(47).V2()
	must(t, ret)
	for _, name := range []string{text(v2.Name[:]), text(v3.Name[:]), text(byID.Name[:])} {
		check.That(t, name == "MIG 1g.24gb+gfx", "profile 47 is called %q", name)
	}
	check.That(t, v3.Capabilities == nvml.GPU_INSTANCE_PROFILE_CAPS_GFX && v2.MemorySizeMB == v3.MemorySizeMB && v3.MultiprocessorCount == 46, "v3 says %+v", v3)
	_, ret = d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_7_SLICE)
	want(t, "a profile of other GPUs", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_COUNT)
	want(t, "past the last profile", ret, nvml.ERROR_INVALID_ARGUMENT)
	a30, ret := device(t, lib, 1).GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1)
	if must(t, ret); a30.InstanceCount == 1 {
		t.Error("NVML's counts are right on A30")
	}
}

func text(chars []int8) string {
	var b []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}

	return string(b)
}
