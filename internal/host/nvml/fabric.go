//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/hex"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
)

// fabric reads the GPU's registration with NVLink's fabric manager.
func (r *reading) fabric() host.Fabric {
	info, ret := r.fabricInfo()
	if !r.got("nvmlDeviceGetGpuFabricInfo", ret) {
		return host.Fabric{}
	}

	switch info.State {
	case nvml.GPU_FABRIC_STATE_NOT_STARTED:
		return host.Fabric{State: "not-started"}
	case nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return host.Fabric{State: "in-progress"}
	case nvml.GPU_FABRIC_STATE_COMPLETED: // the other fields hold only in this state: nvml.h
	default:
		return host.Fabric{}
	}

	f := host.Fabric{State: "completed"}
	if status := nvml.Return(info.Status); status != nvml.SUCCESS {
		f.Status = nvmlCode(status)
		return f
	}
	f.Clique = info.CliqueId
	f.Faults = fabricFaults(info.HealthMask, info.HealthSummary)
	if id := hex.EncodeToString(info.ClusterUuid[:]); strings.Trim(id, "0") != "" {
		f.Cluster = id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
	}
	return f
}

// fabricInfo uses the newest call and version that the driver knows.
func (r *reading) fabricInfo() (nvml.GpuFabricInfo_v3, nvml.Return) {
	if r.has("nvmlDeviceGetGpuFabricInfoV") {
		v3, ret := r.GetGpuFabricInfoV().V3()
		if ret == nvml.SUCCESS {
			return v3, ret
		}
		// Before R580. NVML promises no particular error for a version that a driver does not know.
		v2, ret := r.GetGpuFabricInfoV().V2()
		return nvml.GpuFabricInfo_v3{
			ClusterUuid: v2.ClusterUuid,
			Status:      v2.Status,
			CliqueId:    v2.CliqueId,
			State:       v2.State,
			HealthMask:  v2.HealthMask,
		}, ret
	}

	if r.has("nvmlDeviceGetGpuFabricInfo") {
		v1, ret := r.GetGpuFabricInfo() //nolint:staticcheck // the only call before R545
		return nvml.GpuFabricInfo_v3{
			ClusterUuid: v1.ClusterUuid,
			Status:      v1.Status,
			CliqueId:    v1.CliqueId,
			State:       v1.State,
		}, ret
	}

	return nvml.GpuFabricInfo_v3{}, nvml.ERROR_FUNCTION_NOT_FOUND
}

// fabricFaults says what NVML reports as wrong: nvml.h, nvmlGpuFabricInfo_v3_t. In the mask's
// two-bit fields 1 is a fault and 2 is healthy; in the field of the configuration 1 is healthy; 0
// means not supported. A mask of 0x80 is healthy: dcgm_watchfield.go of
// aws/eks-node-monitoring-agent. The summary, in R580 and newer, is NVML's own judgement; it covers
// what newer drivers put into the mask too: the change log of NVML's API, 615.
func fabricFaults(mask uint32, summary uint8) string {
	var faults []string
	for _, field := range []struct {
		shift uint
		fault string
	}{
		{0, "its bandwidth is degraded"},
		{2, "its route is being recovered"},
		{4, "its route is unhealthy"},
		{6, "it recovers from a time-out"},
	} {
		if mask>>field.shift&3 == 1 {
			faults = append(faults, field.fault)
		}
	}

	if mask>>8&15 > 1 {
		faults = append(faults, "its configuration is wrong")
	}

	if len(faults) > 0 || summary <= nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY {
		return strings.Join(faults, ", ")
	}
	if summary == nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY {
		return "NVML sums it up as of limited capacity"
	}
	return "NVML sums it up as unhealthy"
}
