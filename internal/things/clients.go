// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// GPUClients names the processes that hold a GPU: those with a device of NVIDIA's open; and the pods that have a GPU and no such process
// yet. It reads /proc, since NVML knows only clients with a CUDA context, and the kernel module is kept by any open file.
func GPUClients(ctx context.Context, v host.View) ([]string, error) {
	holders, err := GPUHolders(ctx, v)
	if err != nil {
		return nil, err
	}
	pods, err := PodDevices(ctx, v)
	if err != nil {
		return nil, err
	}
	clients := clientNames(slices.DeleteFunc(slices.Clone(holders), func(h Holder) bool { return converge.Gone(ctx, h.Pod) }))
	for _, p := range pods {
		if !converge.Gone(ctx, p.Pod) && !slices.ContainsFunc(holders, func(h Holder) bool { return h.Pod == p.Pod }) {
			clients = append(clients, fmt.Sprintf("pod %s has %s", p.Pod, p.Device))
		}
	}
	return clients, nil
}

// GPUPods names the pods that use a GPU: NAMESPACE/NAME, or "uid UID" where kubelet has left no name.
func GPUPods(ctx context.Context, v host.View) (pods []string, err error) {
	holders, err := GPUHolders(ctx, v)
	if err != nil {
		return nil, err
	}
	given, err := PodDevices(ctx, v)
	for _, h := range holders {
		pods = append(pods, h.Pod)
	}
	for _, p := range given {
		pods = append(pods, p.Pod)
	}
	slices.Sort(pods)
	return slices.DeleteFunc(slices.Compact(pods), func(pod string) bool { return pod == "" }), err
}

func clientNames(holders []Holder) (clients []string) {
	for _, h := range holders {
		if !h.Daemon() { // they only serve others, and are stopped and started with what they hold
			clients = append(clients, h.String())
		}
	}
	return clients
}

// nvidiaMajors returns the names of NVIDIA's character devices by their major numbers. All names begin so: nvidia or
// nvidia-frontend for the GPUs, nvidia-uvm, nvidia-modeset, nvidia-nvswitch, nvidia-nvlink, nvidia-caps,
// nvidia-caps-imex-channels. Sources: kernel-open in https://github.com/NVIDIA/open-gpu-kernel-modules, and what others look for in
// /proc/devices: modprobe-utils in https://github.com/NVIDIA/nvidia-modprobe, internal/info/proc/devices in
// https://github.com/NVIDIA/nvidia-container-toolkit.
func nvidiaMajors(v host.View) (map[uint32]string, error) {
	b, err := v.ReadFile("/proc/devices")
	if missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	characters, _, _ := strings.Cut(string(b), "Block devices:")
	majors := map[uint32]string{}
	for line := range strings.Lines(characters) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		major, err := strconv.ParseUint(number, 10, 32)
		if err == nil && strings.HasPrefix(name, "nvidia") {
			majors[uint32(major)] = name
		}
	}
	return majors, nil
}

// gpuFiles names the devices of NVIDIA's that a process has open. Only their numbers say what they are: in a mount namespace of
// its own any user may call any file /dev/nvidia0.
func gpuFiles(v host.View, pid int, majors map[uint32]string) (files []string, devices []OpenDevice, err error) {
	all, err := v.OpenDevices(pid)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range all {
		driver, ok := majors[d.Major]
		if !ok {
			continue
		}
		name := d.Name
		if !strings.HasPrefix(name, "/dev/nvidia") || path.Clean(name) != name || len(name) > 64 {
			name = fmt.Sprintf("device %d:%d of %s", d.Major, d.Minor, driver)
		}
		files, devices = append(files, name), append(devices, OpenDevice{driver, d.Major, d.Minor})
	}
	return trouble.Few(files, 4), devices, nil
}
