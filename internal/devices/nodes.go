// SPDX-License-Identifier: Apache-2.0

// Package devices says what device nodes NVIDIA's driver has, and which processes and pods use
// them.
package devices

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Majors returns the names of NVIDIA's character devices by their major numbers. All names begin
// with nvidia: nvidia or nvidia-frontend for the GPUs, nvidia-uvm, nvidia-modeset, nvidia-nvswitch,
// nvidia-nvlink, nvidia-caps, nvidia-caps-imex-channels. Sources: kernel-open in
// https://github.com/NVIDIA/open-gpu-kernel-modules, and what others look for in /proc/devices:
// modprobe-utils in https://github.com/NVIDIA/nvidia-modprobe, internal/info/proc/devices in
// https://github.com/NVIDIA/nvidia-container-toolkit.
func Majors(v host.View) (map[uint32]string, error) {
	data, err := v.ReadFile("/proc/devices")
	if host.NotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	majors := map[uint32]string{}
	characterDevices, _, _ := strings.Cut(string(data), "Block devices:")
	for line := range strings.Lines(characterDevices) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		major, err := strconv.ParseUint(number, 10, 32)
		if err == nil && strings.HasPrefix(name, "nvidia") {
			majors[uint32(major)] = name
		}
	}

	return majors, nil
}

// NodeTool makes device nodes, that of a partition as the driver's options say, with its mode and
// owner.
const NodeTool = "/usr/bin/nvidia-modprobe"

// CapabilitiesFolder has a folder for each GPU, in which the loaded module shows the instances.
const CapabilitiesFolder = "/proc/driver/nvidia/capabilities"

// capsDriver is the name of the driver of the devices below /dev/nvidia-caps:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
const capsDriver = "nvidia-caps"

// Capabilities are the minor numbers of the devices that give access to a GPU instance and to
// compute instances in it; none if the driver does not list them. The error says which could not be
// read. Source: that of capsDriver, and /proc/driver/nvidia/capabilities in
// https://github.com/NVIDIA/nvidia-container-toolkit (internal/nvcaps).
func Capabilities(v host.View, gpuMinor, instance int, compute []int) ([]int, error) {
	folder := fmt.Sprintf("%s/gpu%d/mig/gi%d", CapabilitiesFolder, gpuMinor, instance)
	folders := []string{folder}
	for _, id := range compute {
		folders = append(folders, path.Join(folder, "ci"+strconv.Itoa(id)))
	}

	var minors []int
	for _, f := range folders {
		access, err := AccessOf(v, f)
		if err != nil {
			return nil, err
		}
		minor, err := strconv.Atoi(access["DeviceFileMinor"])
		if err == nil {
			minors = append(minors, minor)
		}
	}

	return minors, nil
}

// Below are the paths of a folder's entries that begin with the prefix; none if the folder does not
// exist.
func Below(v host.View, folder, prefix string) []string {
	var entries []string
	names, _ := v.ReadDir(folder)
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			entries = append(entries, path.Join(folder, name))
		}
	}

	return entries
}

// AccessOf is what the driver says about the device that gives access to an instance, by the
// driver's names; empty if it says nothing.
func AccessOf(v host.View, instance string) (map[string]string, error) {
	says := map[string]string{}
	data, err := v.ReadFile(instance + "/access")
	if err != nil && !host.NotExist(err) {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		says[key] = strings.TrimSpace(value)
	}

	return says, nil
}
