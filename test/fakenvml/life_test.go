// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package fakenvml

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuadm/gpuadm/test/check"
)

func mode(t *testing.T, d nvml.Device) [2]int {
	t.Helper()
	now, pending, ret := d.GetMigMode()
	must(t, ret)
	return [2]int{now, pending}
}

func TestAmpere(t *testing.T) {
	f, lib := load(t, "A100-40:2")
	f.PassThrough(0)
	d := device(t, lib, 0)
	address := f.Dump().GPUs[0].Address
	activation, ret := d.SetMigMode(1)
	must(t, ret)
	want(t, "activation", activation, nvml.ERROR_RESET_REQUIRED)
	got := mode(t, d)
	check.That(t, got == [2]int{0, 1}, "mode and pending %v before the reset", got)
	if output, code := f.SMI("--gpu-reset", "-i", address); code != 0 || output != "GPU 00000000:17:00.0 was successfully reset.\n" {
		t.Errorf("%d: %s", code, output)
	}
	got = mode(t, d)
	check.That(t, got == [2]int{1, 1}, "mode and pending %v after it", got)
	f.Hold(0, -1, 99)
	activation, ret = d.SetMigMode(0)
	must(t, ret)
	want(t, "activation on a busy GPU", activation, nvml.ERROR_IN_USE)
	output, code := f.SMI("-r", "-i", address+",0000:1f:00.0")
	if code != 255 || !strings.Contains(output, "\nThe following GPUs could not be reset:\n  GPU 00000000:17:00.0: In use by another client\n\n1 device is currently being used") {
		t.Errorf("%d: %s", code, output)
	}
	got = mode(t, d)
	check.That(t, got == [2]int{1, 0}, "mode and pending %v after a refused reset", got)
	f.EndUse(99)
	f.Set(0, "persistence=1")
	_, code = f.SMI("-r", "-i", address)
	check.That(t, code == 255, "persistence mode does not hold the GPU: %d", code)
	output, code = f.SMI("-pm", "0", "-i", address)
	check.That(t, code == 0, "%d: %s", code, output)
	f.Do("reset-refused", "--gpu", "0")
	output, code = f.SMI("-r", "-i", address)
	check.That(t, code == 3 && strings.Contains(output, "Not Supported"), "%d: %s", code, output)
	f.Reboot()
	got = mode(t, d)
	check.That(t, got == [2]int{0, 0}, "mode and pending %v after the reboot", got)
	f.Set(1, "self_reset=1")
	activation, ret = device(t, lib, 1).SetMigMode(1)
	must(t, ret)
	want(t, "activation where NVML resets", activation, nvml.SUCCESS)
}

func TestReboot(t *testing.T) {
	f, lib := load(t, "A30,H100-80")
	for i, want := range []int{1, 0} {
		d := enabled(t, f, lib, i)
		info, ret := d.GetGpuInstanceProfileInfo(0)
		must(t, ret)
		_, ret = d.CreateGpuInstance(&info)
		must(t, ret)
		f.Reboot()
		got := f.Dump().GPUs[i]
		check.That(t, got.Mode == want && got.Pending == want && len(got.Instances) == 0, "after a reboot: %+v", got)
	}
}

func TestHopper(t *testing.T) {
	f, lib := load(t, "H100-80")
	d := device(t, lib, 0)
	f.Hold(0, -1, 7)
	activation, ret := d.SetMigMode(1)
	must(t, ret)
	want(t, "activation on a busy GPU", activation, nvml.ERROR_IN_USE)
	check.Equal(t, mode(t, d), [2]int{0, 0}, "mode and pending")
	f.EndUse(7)
	enabled(t, f, lib, 0)
	info, ret := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_7_SLICE)
	must(t, ret)
	gi, ret := d.CreateGpuInstance(&info)
	must(t, ret)
	activation, _ = d.SetMigMode(0)
	want(t, "activation with instances", activation, nvml.ERROR_IN_USE)
	ciInfo, ret := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE, 0)
	must(t, ret)
	ci, ret := gi.CreateComputeInstance(&ciInfo)
	must(t, ret)
	f.Hold(0, 0, 8)
	want(t, "destroy under a client", ci.Destroy(), nvml.ERROR_IN_USE)
	f.EndUse(8)
	must(t, ci.Destroy())
	must(t, gi.Destroy())
	setenv(t, "FAKENVML_READONLY", "1")
	_, ret = d.CreateGpuInstance(&info)
	want(t, "read only", ret, nvml.ERROR_NO_PERMISSION)
}

func TestFail(t *testing.T) {
	f, lib := load(t, "H100-80")
	d := enabled(t, f, lib, 0)
	info, ret := d.GetGpuInstanceProfileInfo(0)
	must(t, ret)
	f.Fail("nvmlDeviceCreateGpuInstanceWithPlacement", 3, "IN_USE")
	f.FailLate("", 5, "UNKNOWN")
	for i, code := range []nvml.Return{nvml.SUCCESS, nvml.SUCCESS, nvml.ERROR_IN_USE, nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.SUCCESS} {
		_, ret := d.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{
			Start: uint32(i),
			Size:  1,
		})
		want(t, "create "+string(rune('1'+i)), ret, code)
	}

	n := len(f.Dump().GPUs[0].Instances)
	check.That(t, n == 5, "%d instances, want 5: the third call did nothing, the fifth did", n)
	f.Fail("nvmlDeviceGetMigMode", 0, "GPU_IS_LOST")
	for range 2 {
		_, _, ret = d.GetMigMode()
		want(t, "each call", ret, nvml.ERROR_GPU_IS_LOST)
	}

	f.Heal()
	_, _, ret = d.GetMigMode()
	want(t, "healed", ret, nvml.SUCCESS)
	dump := f.Dump()
	got := dump.Count("nvmlDeviceCreateGpuInstanceWithPlacement", 0)
	check.That(t, got == 4 && dump.Mutations == 7 && dump.Counts["nvmlDeviceGetMigMode"] >= 3, "%d creates succeeded of %d mutations", got, dump.Mutations)
	f.Forget()
	check.That(t, f.Dump().Mutations == 0, "not forgotten")
}

func TestHealth(t *testing.T) {
	f, lib := load(t, "H100-80:2,T4")
	d, t4 := device(t, lib, 0), device(t, lib, 2)
	f.Do("remap", "--gpu", "0", "pending=1", "failed=1", "uncorrected=2")
	if _, rows, pending, failed, ret := d.GetRemappedRows(); ret != nvml.SUCCESS || rows != 2 || !pending || !failed {
		t.Errorf("remapped rows %d %v %v %v", rows, pending, failed, ret)
	}
	_, _, _, _, ret := t4.GetRemappedRows()
	want(t, "rows of a T4", ret, nvml.ERROR_NOT_SUPPORTED)
	f.Set(2, "retired_pending=1")
	if pending, ret := t4.GetRetiredPagesPendingStatus(); ret != nvml.SUCCESS || pending != nvml.FEATURE_ENABLED {
		t.Errorf("retired pages %v %v", pending, ret)
	}
	f.Do("ecc", "--gpu", "1", "uncorrected=5", "pending=0")
	if n, ret := device(t, lib, 1).GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret != nvml.SUCCESS || n != 5 {
		t.Errorf("ECC errors %d %v", n, ret)
	}
	if now, pending, ret := device(t, lib, 1).GetEccMode(); ret != nvml.SUCCESS || now != nvml.FEATURE_ENABLED || pending != nvml.FEATURE_DISABLED {
		t.Errorf("ECC %v %v %v", now, pending, ret)
	}
	f.Do("fabric", "--gpu", "0", "--state", "in-progress")
	fabric, ret := d.GetGpuFabricInfo()
	must(t, ret)
	other, ret := device(t, lib, 1).GetGpuFabricInfoV().V3()
	must(t, ret)
	check.That(t, fabric.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS && other.State == nvml.GPU_FABRIC_STATE_COMPLETED && other.ClusterUuid != [16]uint8{},
		"fabric %+v, %+v", fabric, other)
	_, ret = t4.GetGpuFabricInfo()
	want(t, "fabric of a T4", ret, nvml.ERROR_NOT_SUPPORTED)
	f.Set(0, "links_down=2")
	for link, want := range []nvml.EnableState{nvml.FEATURE_ENABLED, nvml.FEATURE_DISABLED} {
		state, ret := d.GetNvLinkState(link)
		check.That(t, ret == nvml.SUCCESS && state == want, "link %d: %v %v", link, state, ret)
	}

	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_REMAPPED_PENDING}, {FieldId: nvml.FI_DEV_MEMORY_TEMP}}
	must(t, d.GetFieldValues(values))
	check.That(t, values[0].Value[0] == 1 && nvml.Return(values[1].NvmlReturn) == nvml.ERROR_NOT_SUPPORTED, "fields %+v", values)
	f.Lose(0)
	_, ret = d.GetName()
	want(t, "a lost GPU", ret, nvml.ERROR_GPU_IS_LOST)
	_, ret = lib.DeviceGetHandleByIndex(0)
	want(t, "a lost GPU's handle", ret, nvml.ERROR_GPU_IS_LOST)
	if count, ret := lib.DeviceGetCount(); ret != nvml.SUCCESS || count != 3 {
		t.Errorf("%d GPUs, %v", count, ret)
	}
	f.Reboot()
	_, ret = d.GetName()
	want(t, "after a reboot", ret, nvml.SUCCESS)
}

func TestXid(t *testing.T) {
	f, lib := load(t, "H100-80:2")
	set, ret := lib.EventSetCreate()
	must(t, ret)
	must(t, device(t, lib, 1).RegisterEvents(nvml.EventTypeXidCriticalError, set))
	_, ret = set.Wait(1)
	want(t, "nothing happened", ret, nvml.ERROR_TIMEOUT)
	f.Xid(0, 31) // no listener
	f.Xid(1, 79)
	event, ret := set.Wait(1000)
	if must(t, ret); event.EventData != 79 || event.Device != device(t, lib, 1) || event.GpuInstanceId != 0xffffffff {
		t.Errorf("event %+v", event)
	}
	_, ret = set.Wait(1)
	want(t, "it came once", ret, nvml.ERROR_TIMEOUT)
	must(t, set.Free())
}
