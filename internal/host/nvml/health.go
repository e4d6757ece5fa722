//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
)

// health asks for what a GPU's reports say. Calls that share a session change partitions: a service
// that they pause has changed only the persistence mode.
func (r *reading) health() error {
	g := &r.gpu
	if mode, ret := r.GetPersistenceMode(); r.got("nvmlDeviceGetPersistenceMode", ret) {
		g.Persistent = mode == nvml.FEATURE_ENABLED
	}
	if r.keep {
		return nil
	}

	if now, next, ret := r.GetEccMode(); r.got("nvmlDeviceGetEccMode", ret) {
		g.ECC = onOff(now)
		if next != now {
			g.ECCWaits = onOff(next)
		}
	}

	_, _, waits, fails, ret := r.GetRemappedRows()
	if r.got("nvmlDeviceGetRemappedRows", ret) { // Ampere and newer
		g.RemapWaits = waits
		g.RemapFails = fails
	}
	count, ret := r.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	if r.got("nvmlDeviceGetTotalEccErrors", ret) {
		g.Uncorrected = count
	}

	g.Slowed = r.slowed()
	g.Fabric = r.fabric()
	g.Licence = r.licence()
	if r.driver.more {
		r.alarms()
	}

	return nil
}

func onOff(state nvml.EnableState) string {
	switch state {
	case nvml.FEATURE_ENABLED:
		return "on"
	case nvml.FEATURE_DISABLED:
		return "off"
	}
	return ""
}

// alarms asks for what only doctor reads.
func (r *reading) alarms() {
	g := &r.gpu
	g.Recovery = r.recovery()
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, ret := r.GetNvLinkState(link); ret == nvml.SUCCESS && state != nvml.FEATURE_ENABLED {
			g.LinksDown = append(g.LinksDown, link)
		}
	}

	if r.has("nvmlDeviceGetComputeMode") {
		mode, ret := r.GetComputeMode()
		g.Prohibited = r.got("nvmlDeviceGetComputeMode", ret) && mode == nvml.COMPUTEMODE_PROHIBITED
	}
	if r.has("nvmlDeviceGetTemperature") && r.has("nvmlDeviceGetTemperatureThreshold") {
		now, ret := r.GetTemperature(nvml.TEMPERATURE_GPU)
		slows, slowsRet := r.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
		if ret == nvml.SUCCESS && slowsRet == nvml.SUCCESS {
			g.Celsius = int(now)
			g.SlowsAt = int(slows)
		}
	}

	if r.has("nvmlDeviceGetPowerManagementLimit") && r.has("nvmlDeviceGetPowerManagementDefaultLimit") {
		limit, ret := r.GetPowerManagementLimit()
		usual, usualRet := r.GetPowerManagementDefaultLimit()
		if ret == nvml.SUCCESS && usualRet == nvml.SUCCESS {
			g.PowerLimit = int(limit / 1000)
			g.PowerUsual = int(usual / 1000)
		}
	}
}

// recovery asks what the driver wants done with the GPU. Field 230: nvml.h of R565 and newer;
// https://github.com/NVIDIA/DCGM/issues/263.
func (r *reading) recovery() string {
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := r.GetFieldValues(field)
	if !r.got("nvmlDeviceGetFieldValues", ret) || nvml.Return(field[0].NvmlReturn) != nvml.SUCCESS {
		return ""
	}
	return host.Recovery(uint64(binary.NativeEndian.Uint32(field[0].Value[:])))
}

// licence says whether a virtual machine's GPU has the licence that its guest driver asks for. A
// GPU that needs no licence says so, or has no feature enabled. For an expired licence NVML gives
// the day on which it expired. Source: nvml.h, nvmlGridLicensableFeatures_t.
func (r *reading) licence() string {
	mode, ret := r.GetVirtualizationMode()
	if !r.got("nvmlDeviceGetVirtualizationMode", ret) {
		return ""
	}
	isVGPU := mode == nvml.GPU_VIRTUALIZATION_MODE_VGPU
	if !isVGPU && mode != nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH {
		return ""
	}
	all, ret := r.GetGridLicensableFeatures()
	if !r.got("nvmlDeviceGetGridLicensableFeatures", ret) || all.IsGridLicenseSupported == 0 {
		return ""
	}

	state := ""
	count := min(all.LicensableFeaturesCount, nvml.GRID_LICENSE_FEATURE_MAX_COUNT)
	for _, f := range all.GridLicensableFeatures[:count] {
		switch {
		case f.FeatureEnabled == 0 && !isVGPU:
		case f.FeatureState != 0:
			return "licensed"
		case f.LicenseExpiry.Status == nvml.GRID_LICENSE_EXPIRY_VALID:
			state = "expired"
		default:
			state = cmp.Or(state, "unlicensed")
		}
	}

	return state
}

// slowed says why the board slows its GPU down. The driver's own reasons, such as an idle GPU or a
// power cap, are not a fault: nvml.h, nvmlClocksEventReasons;
// https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html.
func (r *reading) slowed() string {
	reasons, ret := r.GetCurrentClocksThrottleReasons()
	switch {
	case !r.got("nvmlDeviceGetCurrentClocksThrottleReasons", ret):
	case reasons&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown != 0:
		return "power-brake"
	case reasons&nvml.ClocksThrottleReasonHwThermalSlowdown != 0:
		return "heat"
	case reasons&nvml.ClocksThrottleReasonHwSlowdown != 0:
		return "hardware"
	}

	return ""
}
