//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
)

// nvmlSession is NVML between its initialisation and its shutdown.
type nvmlSession struct {
	nvml.Interface
	door *NVML
	seen *seen
	keep bool // several calls share it: they read partitions, and do without the names of MIG devices
}

// seen is what a session has found out.
type seen struct {
	version   string                 // the driver's
	devices   map[string]nvml.Device // by PCI address
	instances map[string]map[int]nvml.GpuInstance
	named     map[string]host.GPU // what does not change about a GPU
}

// session opens NVML for one call of the door.
func (d *NVML) session(ctx context.Context, do func(nvmlSession) error) error {
	d.one.Lock()
	defer d.one.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	keep := host.KeptOf(ctx)
	if keep != nil && keep.Session != nil {
		return do(*keep.Session.(*nvmlSession))
	}
	for _, library := range d.libraries {
		s, err := d.open(library, keep != nil)
		if err == nil {
			if keep != nil {
				keep.Session = &s
			} else {
				defer s.End()
			}
			return do(s)
		}
		if err.Code != noLibrary {
			return err
		}
	}
	return d.because(noLibrary)
}

// required are the symbols that every driver since R470 has: nvml.h of CUDA 11.4 and newer. Others
// are looked for before a call: see has.
const required = `nvmlInit_v2 nvmlShutdown nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetCudaDriverVersion nvmlDeviceGetCount_v2
	nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetPciInfo_v3 nvmlDeviceGetMinorNumber
	nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetSerial nvmlDeviceGetMemoryInfo nvmlDeviceGetCudaComputeCapability nvmlDeviceGetArchitecture
	nvmlDeviceGetEccMode nvmlDeviceGetRemappedRows nvmlDeviceGetTotalEccErrors nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetFieldValues
	nvmlDeviceGetPersistenceMode nvmlDeviceSetPersistenceMode nvmlDeviceGetNvLinkState nvmlDeviceGetVirtualizationMode
	nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetMigMode nvmlDeviceSetMigMode nvmlDeviceGetGpuInstanceProfileInfo
	nvmlDeviceGetGpuInstancePossiblePlacements nvmlDeviceGetGpuInstances nvmlDeviceGetGpuInstanceById nvmlDeviceCreateGpuInstanceWithPlacement
	nvmlGpuInstanceDestroy nvmlGpuInstanceGetInfo nvmlGpuInstanceGetComputeInstanceProfileInfo nvmlGpuInstanceGetComputeInstances
	nvmlGpuInstanceGetComputeInstanceById nvmlGpuInstanceCreateComputeInstance nvmlComputeInstanceGetInfo nvmlComputeInstanceDestroy
	nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId
	nvmlDeviceGetAttributes_v2`

// open loads a library and initialises it, if it has what all sessions call: see has. go-nvml's own
// lookup needs a library that is initialised already.
func (d *NVML) open(library string, keep bool) (s nvmlSession, why *host.NoDriver) {
	l := dl.New(library, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if l.Open() != nil {
		return s, d.because(noLibrary)
	}
	defer func() { _ = l.Close() }() // go-nvml has it open by then
	symbols := strings.Fields(required)
	if i := slices.IndexFunc(symbols, func(symbol string) bool { return l.Lookup(symbol) != nil }); i >= 0 {
		file, _ := d.loadedLibrary()
		return s, &host.NoDriver{
			Why: fmt.Sprintf("%s has no %s: it is not the library of a driver, or of one before R470", cmp.Or(file, library), symbols[i]),
			Try: "install the libraries of the driver again, all in one version", Code: nvmlCode(nvml.ERROR_FUNCTION_NOT_FOUND),
		}
	}
	s = nvmlSession{nvml.New(nvml.WithLibraryPath(library)), d, &seen{devices: map[string]nvml.Device{}, instances: map[string]map[int]nvml.GpuInstance{}, named: map[string]host.GPU{}}, keep}
	if ret := s.Init(); ret != nvml.SUCCESS {
		return s, d.because(nvmlCode(ret))
	}
	return s, nil
}

func (s nvmlSession) End() { s.Shutdown() }

// has says whether the library has one of the symbols. To call one it lacks ends the process:
// go-nvml is linked with --unresolved-symbols=ignore-in-object-files, and the loader finds out at
// the call.
func (s nvmlSession) has(symbols ...string) bool {
	return slices.ContainsFunc(symbols, func(symbol string) bool { return s.Extensions().LookupSymbol(symbol) == nil })
}

// gpu finds a GPU by its PCI address.
func (s nvmlSession) gpu(address string) (nvml.Device, error) {
	if device, ok := s.seen.devices[address]; ok {
		return device, nil
	}
	device, ret := s.DeviceGetHandleByPciBusId(address)
	if ret == nvml.SUCCESS {
		s.seen.devices[address], s.seen.instances[address] = device, map[int]nvml.GpuInstance{}
	}
	return device, refusal("nvmlDeviceGetHandleByPciBusId", address, ret)
}

// change opens NVML, finds a GPU and changes something about it.
func (d *NVML) change(ctx context.Context, address string, do func(nvmlSession, nvml.Device) error) error {
	return d.session(ctx, func(s nvmlSession) error {
		device, err := s.gpu(address)
		if err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return do(s, device)
	})
}

// refusal is the error of a call, nil if it went well.
func refusal(call, address string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &host.GPUError{Call: call, GPU: address, Code: nvmlCode(ret)}
}

// codes are NVML's names of its answers in the order of their numbers: nvmlReturn_t in nvml.h.
const codes = `SUCCESS UNINITIALIZED INVALID_ARGUMENT NOT_SUPPORTED NO_PERMISSION ALREADY_INITIALIZED NOT_FOUND INSUFFICIENT_SIZE
	INSUFFICIENT_POWER DRIVER_NOT_LOADED TIMEOUT IRQ_ISSUE LIBRARY_NOT_FOUND FUNCTION_NOT_FOUND CORRUPTED_INFOROM GPU_IS_LOST
	RESET_REQUIRED OPERATING_SYSTEM LIB_RM_VERSION_MISMATCH IN_USE MEMORY NO_DATA VGPU_ECC_NOT_SUPPORTED INSUFFICIENT_RESOURCES
	FREQ_NOT_SUPPORTED ARGUMENT_VERSION_MISMATCH DEPRECATED NOT_READY GPU_NOT_FOUND INVALID_STATE RESET_TYPE_NOT_SUPPORTED`

// nvmlCode is NVML's name of an answer, without ERROR_. NVML's own nvmlErrorString is a sentence,
// and needs the library.
func nvmlCode(ret nvml.Return) string {
	names := strings.Fields(codes)
	switch {
	case ret == nvml.ERROR_UNKNOWN:
		return "UNKNOWN"
	case ret < 0 || int(ret) >= len(names):
		return fmt.Sprintf("NVML error %d", int(ret))
	}
	return names[ret]
}

// SetMIGMode takes RESET_REQUIRED for success: the mode is pending then, which Driver says. Any
// other activation status, as IN_USE, asks for another try (nvml.h at nvmlDeviceSetMigMode), so it
// is an error.
func (d *NVML) SetMIGMode(ctx context.Context, gpu string, on bool) error {
	return d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		delete(s.seen.devices, gpu) // attributes may change, nvml.h says
		delete(s.seen.named, gpu)
		activation, ret := device.SetMigMode(map[bool]int{true: nvml.DEVICE_MIG_ENABLE, false: nvml.DEVICE_MIG_DISABLE}[on])
		if ret == nvml.SUCCESS && activation != nvml.ERROR_RESET_REQUIRED {
			ret = activation
		}
		return refusal("nvmlDeviceSetMigMode", gpu, ret)
	})
}

func (d *NVML) SetPersistence(ctx context.Context, gpu string, on bool) error {
	return d.change(ctx, gpu, func(_ nvmlSession, device nvml.Device) error {
		state := map[bool]nvml.EnableState{true: nvml.FEATURE_ENABLED, false: nvml.FEATURE_DISABLED}[on]
		return refusal("nvmlDeviceSetPersistenceMode", gpu, device.SetPersistenceMode(state))
	})
}

func (d *NVML) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (id int, err error) {
	const symbol = "nvmlDeviceCreateGpuInstanceWithPlacement"
	err = d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		if profile < 0 || at.Start < 0 || at.Size <= 0 {
			return refusal(symbol, gpu, nvml.ERROR_INVALID_ARGUMENT)
		}
		place := nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
		made, ret := device.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: uint32(profile)}, &place)
		if ret != nvml.SUCCESS {
			return refusal(symbol, gpu, ret)
		}
		info, ret := made.GetInfo()
		if id = int(info.Id); ret == nvml.SUCCESS {
			s.seen.instances[gpu][id] = made
		}
		return refusal("nvmlGpuInstanceGetInfo", gpu, ret)
	})
	return id, err
}

func (d *NVML) DestroyInstance(ctx context.Context, gpu string, id int) error {
	return d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		instance, err := s.instance(device, gpu, id)
		if err != nil {
			return err
		}
		delete(s.seen.instances[gpu], id)
		return refusal("nvmlGpuInstanceDestroy", gpu, instance.Destroy())
	})
}

func (d *NVML) CreateCompute(ctx context.Context, gpu string, instance, profile int, at host.Span) (id int, err error) {
	const plainly, placed = "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
	err = d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		parent, err := s.instance(device, gpu, instance)
		if err != nil {
			return err
		}
		info := nvml.ComputeInstanceProfileInfo{Id: uint32(profile)}
		symbol, made, ret := plainly, nvml.ComputeInstance(nil), nvml.SUCCESS
		switch {
		case profile < 0 || at.Start < 0 || at.Size < 0:
			ret = nvml.ERROR_INVALID_ARGUMENT
		case at.Size > 0 && s.has(placed): // R515 and newer
			symbol = placed
			made, ret = parent.CreateComputeInstanceWithPlacement(&info, &nvml.ComputeInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
		default:
			made, ret = parent.CreateComputeInstance(&info)
		}
		if ret != nvml.SUCCESS {
			return refusal(symbol, gpu, ret)
		}
		of, ret := made.GetInfo()
		id = int(of.Id)
		return refusal("nvmlComputeInstanceGetInfo", gpu, ret)
	})
	return id, err
}

func (d *NVML) DestroyCompute(ctx context.Context, gpu string, instance, id int) error {
	return d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		parent, err := s.instance(device, gpu, instance)
		if err != nil {
			return err
		}
		if id < 0 {
			return refusal("nvmlComputeInstanceDestroy", gpu, nvml.ERROR_INVALID_ARGUMENT)
		}
		compute, ret := parent.GetComputeInstanceById(id)
		if ret != nvml.SUCCESS {
			return refusal("nvmlGpuInstanceGetComputeInstanceById", gpu, ret)
		}
		return refusal("nvmlComputeInstanceDestroy", gpu, compute.Destroy())
	})
}

const instanceByID = "nvmlDeviceGetGpuInstanceById"

// instance finds a GPU instance by its id.
func (s nvmlSession) instance(device nvml.Device, gpu string, id int) (nvml.GpuInstance, error) {
	if id < 0 {
		return nil, refusal(instanceByID, gpu, nvml.ERROR_INVALID_ARGUMENT)
	}
	if found, ok := s.seen.instances[gpu][id]; ok {
		return found, nil
	}
	instance, ret := device.GetGpuInstanceById(id)
	return instance, refusal(instanceByID, gpu, ret)
}
