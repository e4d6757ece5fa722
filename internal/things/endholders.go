// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// capsDriver is the name of the driver of the devices below /dev/nvidia-caps:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
const capsDriver = "nvidia-caps"

// gpuMajor is the major number of /dev/nvidiaN, of /dev/nvidiactl and of /dev/nvidia-modeset: NV_MAJOR_DEVICE_NUMBER in
// https://github.com/NVIDIA/open-gpu-kernel-modules, and Documentation/admin-guide/devices.txt of the kernel.
const gpuMajor = 195

// HasGPU says whether the holder has the device /dev/nvidiaN of a GPU open, by its minor number.
func (h Holder) HasGPU(minor int) bool {
	return minor >= 0 && slices.ContainsFunc(h.Devices, func(d OpenDevice) bool { return d.Major == gpuMajor && d.Minor == uint32(minor) })
}

// HasCapability says whether the holder has one of the devices below /dev/nvidia-caps open, by their minor numbers.
func (h Holder) HasCapability(minors []int) bool {
	return slices.ContainsFunc(h.Devices, func(d OpenDevice) bool {
		return d.Driver == capsDriver && slices.Contains(minors, int(d.Minor))
	})
}

// Capabilities are the minor numbers of the devices that give access to a GPU instance and to compute instances in it. None where the
// driver does not say them. Source: as of capsDriver, and /proc/driver/nvidia/capabilities in
// https://github.com/NVIDIA/nvidia-container-toolkit (internal/nvcaps).
func Capabilities(v host.View, gpuMinor, instance int, compute []int) (minors []int) {
	folder := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", gpuMinor, instance)
	of := []string{folder}
	for _, id := range compute {
		of = append(of, path.Join(folder, "ci"+strconv.Itoa(id)))
	}
	for _, instance := range of {
		if minor, err := strconv.Atoi(accessOf(v, instance)["DeviceFileMinor"]); err == nil {
			minors = append(minors, minor)
		}
	}
	return minors
}

// How long a process has to end, and how often it is looked at.
const (
	endWithin = 30 * time.Second
	endPause  = 50 * time.Millisecond
)

// End asks processes to end and waits until they have no device of NVIDIA's open. A process that is not among the holders that can be
// seen is not asked: its number may be one of another PID namespace.
func End(ctx context.Context, h host.Host, holders []Holder) error {
	if len(holders) == 0 {
		return nil
	}
	majors, err := nvidiaMajors(h)
	if err != nil {
		return err
	}
	open := func(p Holder) (bool, error) {
		files, _, err := gpuFiles(h, p.PID, majors)
		return len(files) > 0, err
	}
	began := h.Now()
	for _, p := range holders {
		is, err := open(p)
		switch {
		case err != nil:
			return err
		case !is && len(p.Devices) == 0:
			return &trouble.Error{
				What: fmt.Sprintf("cannot end %s: no process with this number has a GPU open here", p.Who()),
				Try:  []string{"run gpuadm in the host's PID namespace (hostPID in a pod), or end the process by hand"},
			}
		case !is:
			continue // it has ended
		}
		if err := h.Terminate(p.PID); err != nil {
			return err
		}
	}
	for _, p := range holders {
		for {
			is, err := open(p)
			if err != nil {
				return err
			}
			if !is {
				break
			}
			if h.Now().Sub(began) >= endWithin {
				return &trouble.Error{
					What: fmt.Sprintf("cannot end %s: it still has the GPU open, %s after SIGTERM", p.Who(), endWithin),
					Try:  []string{fmt.Sprintf("kill -KILL %d, if what it does may be lost, then run the same command again", p.PID)},
				}
			}
			if err := host.Pause(ctx, endPause); err != nil {
				return err
			}
		}
	}
	return nil
}
