// SPDX-License-Identifier: Apache-2.0

// Compares our layouts with NVIDIA's header; compiled by a test, with the nvml.h of go-nvml, and never run.
#include <stddef.h>

#include "abi.h"
#include "nvml.h"

#define SIZE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(theirs), #ours " has another size")
#define AT(ours, field, theirs, name) \
	_Static_assert(offsetof(struct ours, field) == offsetof(theirs, name), #ours "." #field " lies elsewhere")
#define VERSION(ours, number, theirs) _Static_assert(STRUCT_VERSION(struct ours, number) == theirs, #ours " has another version")
#define CODE(ours) _Static_assert((int)ours == (int)NVML_ERROR_##ours, #ours " is another number")

_Static_assert(sizeof(handle) == sizeof(nvmlDevice_t) && sizeof(handle) == sizeof(nvmlGpuInstance_t), "handle");
_Static_assert(sizeof(handle) == sizeof(nvmlComputeInstance_t) && sizeof(handle) == sizeof(nvmlEventSet_t), "handle");
SIZE(a_pci, nvmlPciInfo_t);
AT(a_pci, id, nvmlPciInfo_t, pciDeviceId);
AT(a_pci, bus_id, nvmlPciInfo_t, busId);
SIZE(a_memory, nvmlMemory_t);
AT(a_memory, free, nvmlMemory_t, free);
SIZE(a_memory2, nvmlMemory_v2_t);
AT(a_memory2, reserved, nvmlMemory_v2_t, reserved);
VERSION(a_memory2, 2, nvmlMemory_v2);
SIZE(a_process, nvmlProcessInfo_t);
AT(a_process, gi, nvmlProcessInfo_t, gpuInstanceId);
SIZE(a_attributes, nvmlDeviceAttributes_t);
AT(a_attributes, gi_slices, nvmlDeviceAttributes_t, gpuInstanceSliceCount);
AT(a_attributes, memory, nvmlDeviceAttributes_t, memorySizeMB);
SIZE(a_place, nvmlGpuInstancePlacement_t);
SIZE(a_place, nvmlComputeInstancePlacement_t);
SIZE(a_gi_info, nvmlGpuInstanceInfo_t);
AT(a_gi_info, profile, nvmlGpuInstanceInfo_t, profileId);
AT(a_gi_info, place, nvmlGpuInstanceInfo_t, placement);
SIZE(a_ci_info, nvmlComputeInstanceInfo_t);
AT(a_ci_info, gi, nvmlComputeInstanceInfo_t, gpuInstance);
AT(a_ci_info, place, nvmlComputeInstanceInfo_t, placement);
SIZE(a_gi_profile, nvmlGpuInstanceProfileInfo_t);
AT(a_gi_profile, instances, nvmlGpuInstanceProfileInfo_t, instanceCount);
AT(a_gi_profile, memory, nvmlGpuInstanceProfileInfo_t, memorySizeMB);
SIZE(a_gi_profile2, nvmlGpuInstanceProfileInfo_v2_t);
AT(a_gi_profile2, ofa, nvmlGpuInstanceProfileInfo_v2_t, ofaCount);
AT(a_gi_profile2, name, nvmlGpuInstanceProfileInfo_v2_t, name);
VERSION(a_gi_profile2, 2, nvmlGpuInstanceProfileInfo_v2);
SIZE(a_gi_profile3, nvmlGpuInstanceProfileInfo_v3_t);
AT(a_gi_profile3, slices, nvmlGpuInstanceProfileInfo_v3_t, sliceCount);
AT(a_gi_profile3, capabilities, nvmlGpuInstanceProfileInfo_v3_t, capabilities);
VERSION(a_gi_profile3, 3, nvmlGpuInstanceProfileInfo_v3);
SIZE(a_ci_profile, nvmlComputeInstanceProfileInfo_t);
AT(a_ci_profile, instances, nvmlComputeInstanceProfileInfo_t, instanceCount);
SIZE(a_ci_profile2, nvmlComputeInstanceProfileInfo_v2_t);
AT(a_ci_profile2, name, nvmlComputeInstanceProfileInfo_v2_t, name);
VERSION(a_ci_profile2, 2, nvmlComputeInstanceProfileInfo_v2);
SIZE(a_ci_profile3, nvmlComputeInstanceProfileInfo_v3_t);
AT(a_ci_profile3, capabilities, nvmlComputeInstanceProfileInfo_v3_t, capabilities);
VERSION(a_ci_profile3, 3, nvmlComputeInstanceProfileInfo_v3);
SIZE(a_histogram, nvmlRowRemapperHistogramValues_t);
SIZE(a_remap2, nvmlRemappedRowsInfo_v2_t);
AT(a_remap2, pending, nvmlRemappedRowsInfo_v2_t, bPending);
SIZE(a_fabric, nvmlGpuFabricInfo_t);
AT(a_fabric, state, nvmlGpuFabricInfo_t, state);
SIZE(a_fabric2, nvmlGpuFabricInfo_v2_t);
AT(a_fabric2, health, nvmlGpuFabricInfo_v2_t, healthMask);
VERSION(a_fabric2, 2, nvmlGpuFabricInfo_v2);
SIZE(a_fabric3, nvmlGpuFabricInfo_v3_t);
AT(a_fabric3, summary, nvmlGpuFabricInfo_v3_t, healthSummary);
VERSION(a_fabric3, 3, nvmlGpuFabricInfo_v3);
SIZE(a_sram, nvmlEccSramErrorStatus_v1_t);
AT(a_sram, v_cor, nvmlEccSramErrorStatus_v1_t, volatileCor);
AT(a_sram, exceeded, nvmlEccSramErrorStatus_v1_t, bThresholdExceeded);
VERSION(a_sram, 1, nvmlEccSramErrorStatus_v1);
SIZE(a_repair, nvmlRepairStatus_v1_t);
VERSION(a_repair, 1, nvmlRepairStatus_v1);
SIZE(a_field, nvmlFieldValue_t);
AT(a_field, type, nvmlFieldValue_t, valueType);
AT(a_field, value, nvmlFieldValue_t, value);
SIZE(a_event, nvmlEventData_t);
AT(a_event, data, nvmlEventData_t, eventData);
CODE(UNINITIALIZED);
CODE(INVALID_ARGUMENT);
CODE(NOT_SUPPORTED);
CODE(NO_PERMISSION);
CODE(NOT_FOUND);
CODE(INSUFFICIENT_SIZE);
CODE(DRIVER_NOT_LOADED);
CODE(TIMEOUT);
CODE(GPU_IS_LOST);
CODE(RESET_REQUIRED);
CODE(IN_USE);
CODE(INSUFFICIENT_RESOURCES);
CODE(ARGUMENT_VERSION_MISMATCH);
CODE(UNKNOWN);
