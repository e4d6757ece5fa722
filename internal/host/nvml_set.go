//go:build cgo

// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func toggle(on bool) int {
	if on {
		return nvml.DEVICE_MIG_ENABLE
	}
	return nvml.DEVICE_MIG_DISABLE
}

// SetMIGMode takes RESET_REQUIRED for success: the mode is pending then, which Driver says. Any other activation status,
// as IN_USE, asks for another try (nvml.h at nvmlDeviceSetMigMode), so it is an error.
func (d *nvmlDoor) SetMIGMode(ctx context.Context, gpu string, on bool) error {
	const symbol = "nvmlDeviceSetMigMode"
	return d.change(ctx, gpu, symbol, func(s nvmlSession, device nvml.Device) error {
		delete(s.seen.devices, gpu) // attributes may change, nvml.h says
		delete(s.seen.named, gpu)
		activation, ret := device.SetMigMode(toggle(on))
		if ret == nvml.SUCCESS && activation != nvml.ERROR_RESET_REQUIRED {
			ret = activation
		}
		return refusal(symbol, gpu, ret)
	})
}

func (d *nvmlDoor) SetPersistence(ctx context.Context, gpu string, on bool) error {
	const symbol = "nvmlDeviceSetPersistenceMode"
	return d.change(ctx, gpu, symbol, func(_ nvmlSession, device nvml.Device) error {
		state := nvml.FEATURE_DISABLED
		if on {
			state = nvml.FEATURE_ENABLED
		}
		return refusal(symbol, gpu, device.SetPersistenceMode(nvml.EnableState(state)))
	})
}

func (d *nvmlDoor) CreateInstance(ctx context.Context, gpu string, profile int, at Span) (id int, err error) {
	const symbol = "nvmlDeviceCreateGpuInstanceWithPlacement"
	err = d.change(ctx, gpu, symbol, func(s nvmlSession, device nvml.Device) error {
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

func (d *nvmlDoor) DestroyInstance(ctx context.Context, gpu string, id int) error {
	const symbol = "nvmlGpuInstanceDestroy"
	return d.change(ctx, gpu, symbol, func(s nvmlSession, device nvml.Device) error {
		instance, err := s.instance(device, gpu, id)
		if err != nil {
			return err
		}
		delete(s.seen.instances[gpu], id)
		return refusal(symbol, gpu, instance.Destroy())
	})
}

func (d *nvmlDoor) CreateCompute(ctx context.Context, gpu string, instance, profile int, at Span) (id int, err error) {
	const plainly, placed = "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
	err = d.session(ctx, func(s nvmlSession) error {
		if !s.has(plainly) {
			return refusal(plainly, gpu, nvml.ERROR_FUNCTION_NOT_FOUND)
		}
		device, err := s.gpu(gpu)
		if err != nil {
			return err
		}
		parent, err := s.instance(device, gpu, instance)
		if err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
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

func (d *nvmlDoor) DestroyCompute(ctx context.Context, gpu string, instance, id int) error {
	const symbol = "nvmlComputeInstanceDestroy"
	return d.change(ctx, gpu, symbol, func(s nvmlSession, device nvml.Device) error {
		parent, err := s.instance(device, gpu, instance)
		if err != nil {
			return err
		}
		if id < 0 {
			return refusal(symbol, gpu, nvml.ERROR_INVALID_ARGUMENT)
		}
		compute, ret := parent.GetComputeInstanceById(id)
		if ret != nvml.SUCCESS {
			return refusal("nvmlGpuInstanceGetComputeInstanceById", gpu, ret)
		}
		return refusal(symbol, gpu, compute.Destroy())
	})
}

// instance finds a GPU instance by its id.
func (s nvmlSession) instance(device nvml.Device, gpu string, id int) (nvml.GpuInstance, error) {
	const symbol = "nvmlDeviceGetGpuInstanceById"
	if id < 0 {
		return nil, refusal(symbol, gpu, nvml.ERROR_INVALID_ARGUMENT)
	}
	if found, ok := s.seen.instances[gpu][id]; ok {
		return found, nil
	}
	instance, ret := device.GetGpuInstanceById(id)
	return instance, refusal(symbol, gpu, ret)
}
