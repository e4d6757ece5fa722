//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
)

// SetMIGMode takes RESET_REQUIRED for success: the mode is pending then, which Driver says. Any
// other activation status, as IN_USE, asks for another try (nvml.h at nvmlDeviceSetMigMode), so it
// is an error.
func (d *NVML) SetMIGMode(ctx context.Context, gpu string, on bool) error {
	return d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		delete(s.seen.devices, gpu) // attributes may change, nvml.h says
		delete(s.seen.named, gpu)

		mode := nvml.DEVICE_MIG_DISABLE
		if on {
			mode = nvml.DEVICE_MIG_ENABLE
		}
		activation, ret := device.SetMigMode(mode)
		if ret == nvml.SUCCESS && activation != nvml.ERROR_RESET_REQUIRED {
			ret = activation
		}
		return refusal("nvmlDeviceSetMigMode", gpu, ret)
	})
}

func (d *NVML) SetPersistence(ctx context.Context, gpu string, on bool) error {
	return d.change(ctx, gpu, func(_ nvmlSession, device nvml.Device) error {
		state := nvml.FEATURE_DISABLED
		if on {
			state = nvml.FEATURE_ENABLED
		}
		return refusal("nvmlDeviceSetPersistenceMode", gpu, device.SetPersistenceMode(state))
	})
}

func (d *NVML) CreateInstance(
	ctx context.Context, gpu string, profile int, at host.Span,
) (id int, err error) {
	const symbol = "nvmlDeviceCreateGpuInstanceWithPlacement"
	made := make(chan int, 1)
	err = d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		if profile < 0 || at.Start < 0 || at.Size <= 0 {
			return refusal(symbol, gpu, nvml.ERROR_INVALID_ARGUMENT)
		}
		kind := nvml.GpuInstanceProfileInfo{Id: uint32(profile)}
		place := nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
		instance, ret := device.CreateGpuInstanceWithPlacement(&kind, &place)
		if ret != nvml.SUCCESS {
			return refusal(symbol, gpu, ret)
		}

		info, ret := instance.GetInfo()
		if ret == nvml.SUCCESS {
			s.seen.instances[gpu][int(info.Id)] = instance
		}
		made <- int(info.Id)
		return refusal("nvmlGpuInstanceGetInfo", gpu, ret)
	})
	return ofMade(made, err)
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

func (d *NVML) CreateCompute(
	ctx context.Context, gpu string, instance, profile int, at host.Span,
) (id int, err error) {
	made := make(chan int, 1)
	err = d.change(ctx, gpu, func(s nvmlSession, device nvml.Device) error {
		parent, err := s.instance(device, gpu, instance)
		if err != nil {
			return err
		}
		compute, err := s.createCompute(parent, gpu, profile, at)
		if err != nil {
			return err
		}

		info, ret := compute.GetInfo()
		made <- int(info.Id)
		return refusal("nvmlComputeInstanceGetInfo", gpu, ret)
	})
	return ofMade(made, err)
}

// ofMade is the id of what a call has made; a call that was abandoned may still make it.
func ofMade(made <-chan int, err error) (int, error) {
	select {
	case id := <-made:
		return id, err
	default:
		return 0, err
	}
}

// createCompute makes a compute instance, at a place if the driver takes one: R515 and newer.
func (s nvmlSession) createCompute(
	in nvml.GpuInstance, gpu string, profile int, at host.Span,
) (nvml.ComputeInstance, error) {
	const plain = "nvmlGpuInstanceCreateComputeInstance"
	const placed = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
	if profile < 0 || at.Start < 0 || at.Size < 0 {
		return nil, refusal(plain, gpu, nvml.ERROR_INVALID_ARGUMENT)
	}

	kind := nvml.ComputeInstanceProfileInfo{Id: uint32(profile)}
	if at.Size == 0 || !s.has(placed) {
		made, ret := in.CreateComputeInstance(&kind)
		return made, refusal(plain, gpu, ret)
	}
	place := nvml.ComputeInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
	made, ret := in.CreateComputeInstanceWithPlacement(&kind, &place)
	return made, refusal(placed, gpu, ret)
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
