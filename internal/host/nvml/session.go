//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
)

// nvmlSession is NVML between its initialisation and its shutdown.
type nvmlSession struct {
	nvml.Interface
	driver *NVML
	seen   *seen
	keep   bool // several calls share it: they read partitions, and do without the names of MIG devices
}

// seen is what a session has found out.
type seen struct {
	version   string                 // the driver's
	devices   map[string]nvml.Device // by PCI address
	instances map[string]map[int]nvml.GpuInstance
	named     map[string]host.GPU // what does not change about a GPU
}

// session opens NVML for one call, unless the context has an open session. It waits no longer than
// the limit.
func (d *NVML) session(ctx context.Context, limit time.Duration, do func(nvmlSession) error) error {
	keep := host.KeptOf(ctx)
	switch {
	case keep == nil:
		return d.call(ctx, limit, func() error { return d.once(do) })
	case keep.Session != nil:
		s := *keep.Session.(*nvmlSession)
		return d.call(ctx, limit, func() error { return do(s) })
	}

	opened := make(chan nvmlSession, 1)
	err := d.call(ctx, limit, func() error {
		s, why := d.openFirst(true)
		if why != nil {
			return why
		}
		opened <- s
		return do(s)
	})
	if d.hung.Load() {
		return err // the session is the abandoned call's
	}
	select {
	case s := <-opened:
		keep.Session = &s
	default:
	}

	return err
}

// once opens NVML for one call.
func (d *NVML) once(do func(nvmlSession) error) error {
	s, why := d.openFirst(false)
	if why != nil {
		return why
	}
	defer s.Shutdown()
	return do(s)
}

// openFirst opens the first library that exists.
func (d *NVML) openFirst(keep bool) (nvmlSession, *host.NoDriver) {
	for _, library := range d.libraries {
		s, why := d.open(library, keep)
		if why == nil || why.Code != noLibrary {
			return s, why
		}
	}
	return nvmlSession{}, d.because(noLibrary)
}

// required are the symbols that every driver since R470 has: nvml.h of CUDA 11.4 and newer. Others
// are looked for before a call: see has.
const required = `
	nvmlInit_v2 nvmlShutdown
	nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetCudaDriverVersion

	nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByPciBusId_v2
	nvmlDeviceGetPciInfo_v3 nvmlDeviceGetMinorNumber
	nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetSerial nvmlDeviceGetMemoryInfo
	nvmlDeviceGetCudaComputeCapability nvmlDeviceGetArchitecture

	nvmlDeviceGetEccMode nvmlDeviceGetRemappedRows nvmlDeviceGetTotalEccErrors
	nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetFieldValues nvmlDeviceGetNvLinkState
	nvmlDeviceGetPersistenceMode nvmlDeviceSetPersistenceMode
	nvmlDeviceGetVirtualizationMode nvmlDeviceGetGridLicensableFeatures_v4

	nvmlDeviceGetMigMode nvmlDeviceSetMigMode
	nvmlDeviceGetGpuInstanceProfileInfo nvmlDeviceGetGpuInstancePossiblePlacements
	nvmlDeviceGetGpuInstances nvmlDeviceGetGpuInstanceById
	nvmlDeviceCreateGpuInstanceWithPlacement nvmlGpuInstanceDestroy nvmlGpuInstanceGetInfo

	nvmlGpuInstanceGetComputeInstanceProfileInfo nvmlGpuInstanceGetComputeInstances
	nvmlGpuInstanceGetComputeInstanceById nvmlGpuInstanceCreateComputeInstance
	nvmlComputeInstanceGetInfo nvmlComputeInstanceDestroy

	nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex
	nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId nvmlDeviceGetAttributes_v2`

// open loads a library and initialises it, if it has what all sessions call: see has. go-nvml's own
// lookup needs a library that is initialised already.
func (d *NVML) open(library string, keep bool) (s nvmlSession, why *host.NoDriver) {
	l := dl.New(library, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if l.Open() != nil {
		return s, d.because(noLibrary)
	}
	defer func() { _ = l.Close() }() // go-nvml has it open by then

	for _, symbol := range strings.Fields(required) {
		if l.Lookup(symbol) != nil {
			return s, d.lacks(library, symbol)
		}
	}

	s = nvmlSession{
		Interface: nvml.New(nvml.WithLibraryPath(library)),
		driver:    d,
		seen: &seen{
			devices:   map[string]nvml.Device{},
			instances: map[string]map[int]nvml.GpuInstance{},
			named:     map[string]host.GPU{},
		},
		keep: keep,
	}
	d.steps.say(driverAnswer{}) // the library is loaded
	if ret := s.Init(); ret != nvml.SUCCESS {
		return s, d.because(nvmlCode(ret))
	}
	return s, nil
}

// lacks reports that a library has no symbol that every driver's library has.
func (d *NVML) lacks(library, symbol string) *host.NoDriver {
	file, _ := d.loadedLibrary()
	file = cmp.Or(file, library)
	return &host.NoDriver{
		Why:  file + " has no " + symbol + ": it is not the library of a driver, or of one before R470",
		Try:  "install the libraries of the driver again, all in one version",
		Code: nvmlCode(nvml.ERROR_FUNCTION_NOT_FOUND),
	}
}

// End ends a session that several calls have shared. Where the driver hangs, the end of this
// process ends it.
func (s nvmlSession) End() {
	_ = s.driver.call(context.Background(), readLimit, func() error {
		s.Shutdown()
		return nil
	})
}

// has reports whether the library has one of the symbols. A call of a symbol that it lacks ends the
// process: go-nvml is linked with --unresolved-symbols=ignore-in-object-files, and the loader finds
// out at the call.
func (s nvmlSession) has(symbols ...string) bool {
	for _, symbol := range symbols {
		if s.Extensions().LookupSymbol(symbol) == nil {
			return true
		}
	}
	return false
}

// gpu finds a GPU by its PCI address.
func (s nvmlSession) gpu(address string) (nvml.Device, error) {
	if device, ok := s.seen.devices[address]; ok {
		return device, nil
	}
	device, ret := s.DeviceGetHandleByPciBusId(address)
	if ret == nvml.SUCCESS {
		s.seen.handle(address, device)
	}
	return device, refusal("nvmlDeviceGetHandleByPciBusId", address, ret)
}

// handle notes a GPU's handle. The instances of an earlier handle are not its own.
func (s *seen) handle(address string, device nvml.Device) {
	if _, ok := s.devices[address]; ok {
		return
	}
	s.devices[address] = device
	s.instances[address] = map[int]nvml.GpuInstance{}
}

// change opens NVML, finds a GPU and changes something about it.
func (d *NVML) change(ctx context.Context, address string, do func(nvmlSession, nvml.Device) error) error {
	return d.session(ctx, changeLimit, func(s nvmlSession) error {
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
const codes = `
	SUCCESS UNINITIALIZED INVALID_ARGUMENT NOT_SUPPORTED
	NO_PERMISSION ALREADY_INITIALIZED NOT_FOUND INSUFFICIENT_SIZE
	INSUFFICIENT_POWER DRIVER_NOT_LOADED TIMEOUT IRQ_ISSUE
	LIBRARY_NOT_FOUND FUNCTION_NOT_FOUND CORRUPTED_INFOROM GPU_IS_LOST
	RESET_REQUIRED OPERATING_SYSTEM LIB_RM_VERSION_MISMATCH IN_USE
	MEMORY NO_DATA VGPU_ECC_NOT_SUPPORTED INSUFFICIENT_RESOURCES
	FREQ_NOT_SUPPORTED ARGUMENT_VERSION_MISMATCH DEPRECATED NOT_READY
	GPU_NOT_FOUND INVALID_STATE RESET_TYPE_NOT_SUPPORTED`

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
