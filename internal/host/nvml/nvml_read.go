//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Driver is View's. It reads all GPUs in one session.
func (d *NVML) Driver(ctx context.Context) (found host.Driver, err error) {
	err = d.session(ctx, func(s nvmlSession) error {
		found, err = s.versions(), nil
		s.seen.version = found.Version
		count, ret := s.DeviceGetCount()
		if ret != nvml.SUCCESS {
			return d.because(nvmlCode(ret))
		}
		for i, a := range attach(s, count) {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			gpu, err := s.read(i, a)
			if err != nil {
				return err
			}
			found.GPUs = append(found.GPUs, gpu)
		}
		if count == 0 {
			return &host.NoDriver{Why: "driver " + found.Version + " is loaded and sees no GPU", Try: "dmesg | grep NVRM says why", Code: "GPU_NOT_FOUND"}
		}
		return nil
	})
	if err != nil {
		return host.Driver{}, err
	}
	lost := d.lostAddresses(found.GPUs) // NVML does not say the address of a GPU without a handle, but /proc lists the GPUs in NVML's order
	for i, g := range found.GPUs {
		if g.Address == "" && len(lost) > 0 {
			found.GPUs[i].Address, lost = lost[0], lost[1:]
		}
	}
	slices.SortStableFunc(found.GPUs, func(a, b host.GPU) int { // as numbers: a domain may have more than four digits
		return cmp.Or(len(a.Address)-len(b.Address), strings.Compare(a.Address, b.Address))
	})
	return found, nil
}

func (s nvmlSession) versions() host.Driver {
	var found host.Driver
	if version, ret := s.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		found.Version = printable(version)
	}
	if version, ret := s.SystemGetNVMLVersion(); ret == nvml.SUCCESS {
		_, found.NVML, _ = strings.Cut(printable(version), ".") // 13.580.95.05: CUDA's major leads
	}
	if version, ret := s.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS && version > 0 {
		found.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	return found
}

// reading is one GPU that is being read.
type reading struct {
	nvmlSession
	nvml.Device
	gpu  host.GPU
	lost string // the first answer that a GPU that works does not give
}

// handle is NVML's answer to the question for a GPU's handle.
type handle struct {
	nvml.Device
	ret nvml.Return
}

// attach asks for the handles of all GPUs side by side: the driver attaches a GPU that no process
// holds at this call, which takes 1 to 3 seconds. NVML may be called from several threads
// (https://docs.nvidia.com/deploy/nvml-api/nvml-api-reference.html), and since R550 the driver
// starts several GPUs at a time (RmRelaxedGspInitLocking in
// https://github.com/NVIDIA/open-gpu-kernel-modules, nvrm_registry.h).
func attach(s nvml.Interface, count int) []handle {
	all := make([]handle, count)
	var under sync.WaitGroup
	for i := range all {
		under.Go(func() { all[i].Device, all[i].ret = s.DeviceGetHandleByIndex(i) })
	}
	under.Wait()
	return all
}

// read reads the GPU with an index. A GPU that does not answer is Lost; the error is for a GPU that
// only root can read.
func (s nvmlSession) read(index int, of handle) (host.GPU, error) {
	r := reading{nvmlSession: s, Device: of.Device, gpu: host.GPU{Index: index, Minor: -1}}
	if of.ret != nvml.SUCCESS {
		r.gpu.Lost = whyLost("nvmlDeviceGetHandleByIndex", of.ret)
		return r.gpu, nil
	}
	pci, ret := r.GetPciInfo()
	if !r.must("nvmlDeviceGetPciInfo", ret) {
		r.gpu.Lost = r.lost
		return r.gpu, nil
	}
	r.gpu.Address = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	r.gpu.Device, r.gpu.Sub = fmt.Sprintf("0x%08X", pci.PciDeviceId), fmt.Sprintf("0x%08X", pci.PciSubSystemId)
	named := host.GPU{Index: index, Minor: -1, Address: r.gpu.Address, Device: r.gpu.Device, Sub: r.gpu.Sub}
	for _, part := range []func() error{r.identity, r.health, r.mig} {
		if err := part(); err != nil {
			return host.GPU{}, err
		}
		if r.lost != "" {
			named.Lost = r.lost
			return named, nil
		}
	}
	return r.gpu, nil
}

// whyLost says in words why a GPU does not answer.
func whyLost(call string, ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return "it has fallen off the bus"
	case nvml.ERROR_RESET_REQUIRED:
		return "it must be reset before it can be used"
	case nvml.ERROR_INSUFFICIENT_POWER:
		return "its power cables are not attached"
	case nvml.ERROR_IRQ_ISSUE:
		return "its interrupts do not arrive"
	}
	return call + " answers " + nvmlCode(ret)
}

// got says whether an optional answer is there: a GPU that is lost, or must be reset, gives none at
// all.
func (r *reading) got(call string, ret nvml.Return) bool {
	if r.lost == "" && (ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED) {
		r.lost = whyLost(call, ret)
	}
	return ret == nvml.SUCCESS
}

// must is got for answers that every GPU has: without it nothing should be planned for it.
func (r *reading) must(call string, ret nvml.Return) bool {
	if ret != nvml.SUCCESS && r.lost == "" {
		r.lost = whyLost(call, ret)
	}
	return ret == nvml.SUCCESS
}

// text reads a string, "" if there is none.
func (r *reading) text(call string, read func() (string, nvml.Return)) string {
	text, ret := read()
	if !r.got(call, ret) {
		return ""
	}
	return printable(text)
}

func (r *reading) identity() error {
	g := &r.gpu
	if minor, ret := r.GetMinorNumber(); r.got("nvmlDeviceGetMinorNumber", ret) {
		g.Minor = minor
	}
	if known, ok := r.seen.named[g.Address]; ok {
		known.Minor = g.Minor
		*g = known
		return nil
	}
	defer func() {
		if r.lost == "" {
			r.seen.named[g.Address] = *g
		}
	}()
	g.Name = r.text("nvmlDeviceGetName", r.GetName)
	g.UUID = r.text("nvmlDeviceGetUUID", r.GetUUID)
	if g.Serial = r.text("nvmlDeviceGetSerial", r.GetSerial); g.Serial == "0" { // boards without one
		g.Serial = ""
	}
	if memory, ret := r.GetMemoryInfo(); r.got("nvmlDeviceGetMemoryInfo", ret) {
		g.Memory = memory.Total
	}
	if major, minor, ret := r.GetCudaComputeCapability(); r.got("nvmlDeviceGetCudaComputeCapability", ret) {
		g.Compute = fmt.Sprintf("%d.%d", major, minor)
	}
	if arch, ret := r.GetArchitecture(); r.got("nvmlDeviceGetArchitecture", ret) {
		g.Arch = archName(arch)
	}
	return nil
}

// archName is the name of an architecture as GPU feature discovery writes it.
func archName(arch nvml.DeviceArchitecture) string {
	return map[nvml.DeviceArchitecture]string{
		nvml.DEVICE_ARCH_KEPLER:    "kepler",
		nvml.DEVICE_ARCH_MAXWELL:   "maxwell",
		nvml.DEVICE_ARCH_PASCAL:    "pascal",
		nvml.DEVICE_ARCH_VOLTA:     "volta",
		nvml.DEVICE_ARCH_TURING:    "turing",
		nvml.DEVICE_ARCH_AMPERE:    "ampere",
		nvml.DEVICE_ARCH_ADA:       "ada-lovelace",
		nvml.DEVICE_ARCH_HOPPER:    "hopper",
		nvml.DEVICE_ARCH_BLACKWELL: "blackwell",
		nvml.DEVICE_ARCH_RUBIN:     "rubin",
	}[arch]
}

func (r *reading) health() error {
	g := &r.gpu
	if now, _, ret := r.GetEccMode(); r.got("nvmlDeviceGetEccMode", ret) {
		g.ECC = map[nvml.EnableState]string{nvml.FEATURE_ENABLED: "on", nvml.FEATURE_DISABLED: "off"}[now]
	}
	if _, _, waits, fails, ret := r.GetRemappedRows(); r.got("nvmlDeviceGetRemappedRows", ret) { // Ampere and newer
		g.RemapWaits, g.RemapFails = waits, fails
	}
	if count, ret := r.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); r.got("nvmlDeviceGetTotalEccErrors", ret) {
		g.Uncorrected = count
	}
	g.Slowed = r.slowed()
	if mode, ret := r.GetPersistenceMode(); r.got("nvmlDeviceGetPersistenceMode", ret) {
		g.Persistent = mode == nvml.FEATURE_ENABLED
	}
	g.Fabric, g.Licence = r.fabric(), r.licence()
	if r.door.more {
		r.alarms()
	}
	return nil
}

// alarms asks what doctor alone goes by. Field 230: nvml.h of R565 and newer;
// https://github.com/NVIDIA/DCGM/issues/263.
func (r *reading) alarms() {
	g := &r.gpu
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := r.GetFieldValues(field); r.got("nvmlDeviceGetFieldValues", ret) && nvml.Return(field[0].NvmlReturn) == nvml.SUCCESS {
		g.Recovery = host.Recovery(uint64(binary.NativeEndian.Uint32(field[0].Value[:])))
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, ret := r.GetNvLinkState(link); ret == nvml.SUCCESS && state != nvml.FEATURE_ENABLED {
			g.LinksDown = append(g.LinksDown, link)
		}
	}
	if r.has("nvmlDeviceGetComputeMode") {
		mode, ret := r.GetComputeMode()
		g.Prohibited = r.got("nvmlDeviceGetComputeMode", ret) && mode == nvml.COMPUTEMODE_PROHIBITED
	}
	if r.has("nvmlDeviceGetPowerManagementLimit") && r.has("nvmlDeviceGetPowerManagementDefaultLimit") {
		limit, ret := r.GetPowerManagementLimit()
		usual, usualRet := r.GetPowerManagementDefaultLimit()
		if ret == nvml.SUCCESS && usualRet == nvml.SUCCESS {
			g.PowerLimit, g.PowerUsual = int(limit/1000), int(usual/1000)
		}
	}
}

// fabricFaults are what NVML says is wrong: nvml.h, nvmlGpuFabricInfo_v3_t. Of the mask's two-bit
// fields 1 is a fault and 2 is healthy; of the configuration's field 1 is healthy; 0 means not
// supported. A mask of 0x80 is healthy: dcgm_watchfield.go of aws/eks-node-monitoring-agent. The
// summary, of R580 and newer, is NVML's own judgement, also of what newer drivers put into the
// mask: the change log of NVML's API, 615.
func fabricFaults(mask uint32, summary uint8) string {
	var list []string
	for _, f := range []struct {
		shift uint
		what  string
	}{{0, "its bandwidth is degraded"}, {2, "its route is being recovered"}, {4, "its route is unhealthy"}, {6, "it recovers from a time-out"}} {
		if mask>>f.shift&3 == 1 {
			list = append(list, f.what)
		}
	}
	if mask>>8&15 > 1 {
		list = append(list, "its configuration is wrong")
	}
	if summary > nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY && len(list) == 0 {
		list = append(list, "NVML sums it up as "+map[bool]string{true: "of limited capacity", false: "unhealthy"}[summary == nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY])
	}
	return strings.Join(list, ", ")
}

// licence says whether a virtual machine's GPU has the licence that its guest driver asks for. A
// GPU that needs none says so, or has no feature switched on; of one whose day is over NVML says
// the day. Source: nvml.h, nvmlGridLicensableFeatures_t.
func (r *reading) licence() string {
	mode, ret := r.GetVirtualizationMode()
	if !r.got("nvmlDeviceGetVirtualizationMode", ret) || mode != nvml.GPU_VIRTUALIZATION_MODE_VGPU && mode != nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH {
		return ""
	}
	all, ret := r.GetGridLicensableFeatures()
	if !r.got("nvmlDeviceGetGridLicensableFeatures", ret) || all.IsGridLicenseSupported == 0 {
		return ""
	}
	state := ""
	for _, f := range all.GridLicensableFeatures[:min(all.LicensableFeaturesCount, nvml.GRID_LICENSE_FEATURE_MAX_COUNT)] {
		switch at := f.LicenseExpiry; {
		case f.FeatureEnabled == 0 && mode != nvml.GPU_VIRTUALIZATION_MODE_VGPU:
		case f.FeatureState != 0:
			return "licensed"
		case at.Status == nvml.GRID_LICENSE_EXPIRY_VALID:
			state = "expired"
		default:
			state = cmp.Or(state, "unlicensed")
		}
	}
	return state
}

// slowed says why the board slows its GPU down. Reasons of the driver, an idle GPU or a power cap,
// are no fault: nvml.h, nvmlClocksEventReasons;
// https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html.
func (r *reading) slowed() string {
	reasons, ret := r.GetCurrentClocksThrottleReasons()
	switch {
	case !r.got("nvmlDeviceGetCurrentClocksThrottleReasons", ret):
	case reasons&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown != 0:
		return "power-brake"
	case reasons&nvml.ClocksThrottleReasonHwThermalSlowdown != 0:
		return "heat"
	}
	return ""
}

// fabric asks by the versioned call, which replaces the plain one.
func (r *reading) fabric() host.Fabric {
	var v nvml.GpuFabricInfo_v3
	ret := nvml.ERROR_FUNCTION_NOT_FOUND
	if r.has("nvmlDeviceGetGpuFabricInfoV") {
		if v, ret = r.GetGpuFabricInfoV().V3(); ret != nvml.SUCCESS { // before R580: no error is promised for a version that a driver does not know
			var v2 nvml.GpuFabricInfo_v2
			v2, ret = r.GetGpuFabricInfoV().V2()
			v = nvml.GpuFabricInfo_v3{ClusterUuid: v2.ClusterUuid, Status: v2.Status, CliqueId: v2.CliqueId, State: v2.State, HealthMask: v2.HealthMask}
		}
	} else if r.has("nvmlDeviceGetGpuFabricInfo") {
		var v1 nvml.GpuFabricInfo
		v1, ret = r.GetGpuFabricInfo() //nolint:staticcheck // the only call there is before R545
		v = nvml.GpuFabricInfo_v3{ClusterUuid: v1.ClusterUuid, Status: v1.Status, CliqueId: v1.CliqueId, State: v1.State}
	}
	if !r.got("nvmlDeviceGetGpuFabricInfo", ret) {
		return host.Fabric{}
	}
	f := host.Fabric{State: map[uint8]string{
		nvml.GPU_FABRIC_STATE_NOT_STARTED: "not-started",
		nvml.GPU_FABRIC_STATE_IN_PROGRESS: "in-progress",
		nvml.GPU_FABRIC_STATE_COMPLETED:   "completed",
	}[v.State]}
	if f.State != "completed" { // what else it says holds only then: nvml.h
		return f
	}
	if status := nvml.Return(v.Status); status != nvml.SUCCESS {
		f.Status = nvmlCode(status)
		return f
	}
	f.Clique, f.Faults = v.CliqueId, fabricFaults(v.HealthMask, v.HealthSummary)
	if id := hex.EncodeToString(v.ClusterUuid[:]); strings.Trim(id, "0") != "" {
		f.Cluster = id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
	}
	return f
}
