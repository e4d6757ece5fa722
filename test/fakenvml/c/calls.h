// SPDX-License-Identifier: Apache-2.0

// Every NVML symbol that the fake library has.
#ifndef FAKE_CALLS_H
#define FAKE_CALLS_H

#define EACH_CALL(X) \
	X(nvmlInit) X(nvmlInit_v2) X(nvmlInitWithFlags) X(nvmlShutdown) X(nvmlErrorString) \
	X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion) X(nvmlSystemGetCudaDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2) \
	X(nvmlDeviceGetCount) X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex) X(nvmlDeviceGetHandleByIndex_v2) \
	X(nvmlDeviceGetHandleByPciBusId) X(nvmlDeviceGetHandleByPciBusId_v2) X(nvmlDeviceGetHandleByUUID) \
	X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetSerial) X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber) \
	X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetCudaComputeCapability) \
	X(nvmlDeviceGetArchitecture) X(nvmlDeviceGetBrand) X(nvmlDeviceGetVbiosVersion) \
	X(nvmlDeviceGetMigMode) X(nvmlDeviceSetMigMode) X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceSetPersistenceMode) \
	X(nvmlDeviceGetGpuInstanceProfileInfo) X(nvmlDeviceGetGpuInstanceProfileInfoV) X(nvmlDeviceGetGpuInstanceProfileInfoByIdV) \
	X(nvmlDeviceGetGpuInstancePossiblePlacements) X(nvmlDeviceGetGpuInstancePossiblePlacements_v2) \
	X(nvmlDeviceGetGpuInstanceRemainingCapacity) X(nvmlDeviceCreateGpuInstance) X(nvmlDeviceCreateGpuInstanceWithPlacement) \
	X(nvmlGpuInstanceDestroy) X(nvmlDeviceGetGpuInstances) X(nvmlDeviceGetGpuInstanceById) X(nvmlGpuInstanceGetInfo) \
	X(nvmlGpuInstanceGetComputeInstanceProfileInfo) X(nvmlGpuInstanceGetComputeInstanceProfileInfoV) \
	X(nvmlGpuInstanceGetComputeInstancePossiblePlacements) X(nvmlGpuInstanceGetComputeInstanceRemainingCapacity) \
	X(nvmlGpuInstanceCreateComputeInstance) X(nvmlGpuInstanceCreateComputeInstanceWithPlacement) X(nvmlComputeInstanceDestroy) \
	X(nvmlGpuInstanceGetComputeInstances) X(nvmlGpuInstanceGetComputeInstanceById) \
	X(nvmlComputeInstanceGetInfo) X(nvmlComputeInstanceGetInfo_v2) \
	X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex) X(nvmlDeviceIsMigDeviceHandle) \
	X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) \
	X(nvmlDeviceGetAttributes_v2) \
	X(nvmlDeviceGetComputeRunningProcesses_v3) X(nvmlDeviceGetGraphicsRunningProcesses_v3) X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
	X(nvmlDeviceGetEccMode) X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetMemoryErrorCounter) X(nvmlDeviceGetSramEccErrorStatus) \
	X(nvmlDeviceGetRemappedRows) X(nvmlDeviceGetRemappedRows_v2) X(nvmlDeviceGetRowRemapperHistogram) \
	X(nvmlDeviceGetRetiredPagesPendingStatus) X(nvmlDeviceGetNvLinkState) X(nvmlDeviceGetNvLinkErrorCounter) \
	X(nvmlDeviceGetNvLinkVersion) X(nvmlDeviceGetGpuFabricInfo) X(nvmlDeviceGetGpuFabricInfoV) X(nvmlDeviceGetFieldValues) \
	X(nvmlDeviceGetRepairStatus) X(nvmlDeviceGetVirtualizationMode) X(nvmlDeviceGetGridLicensableFeatures_v4) X(nvmlDeviceGetCurrentClocksThrottleReasons) \
	X(nvmlEventSetCreate) X(nvmlDeviceRegisterEvents) X(nvmlDeviceGetSupportedEventTypes) X(nvmlEventSetWait) X(nvmlEventSetWait_v2) \
	X(nvmlEventSetFree)

#define ENUM_CALL(name) CALL_##name,
enum { EACH_CALL(ENUM_CALL) CALLS, SMI_RESET };
#undef ENUM_CALL

#endif
