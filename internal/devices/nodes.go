// SPDX-License-Identifier: Apache-2.0

// Package devices says what device nodes NVIDIA's driver has, and which processes and pods use
// them.
package devices

import (
	"path"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Majors returns the names of NVIDIA's character devices by their major numbers. All names begin
// so: nvidia or nvidia-frontend for the GPUs, nvidia-uvm, nvidia-modeset, nvidia-nvswitch,
// nvidia-nvlink, nvidia-caps, nvidia-caps-imex-channels. Sources: kernel-open in
// https://github.com/NVIDIA/open-gpu-kernel-modules, and what others look for in /proc/devices:
// modprobe-utils in https://github.com/NVIDIA/nvidia-modprobe, internal/info/proc/devices in
// https://github.com/NVIDIA/nvidia-container-toolkit.
func Majors(v host.View) (map[uint32]string, error) {
	b, err := v.ReadFile("/proc/devices")
	if host.NotExist(err) {
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

// NodeTool makes device nodes, that of a partition as the driver's options say, with its mode and
// owner.
const NodeTool = "/usr/bin/nvidia-modprobe"

// CapabilitiesFolder has a folder for each GPU, in which the loaded module shows the instances.
const CapabilitiesFolder = "/proc/driver/nvidia/capabilities"

// Below are the paths of what lies in a folder and begins so; none where the folder is not there.
func Below(v host.View, folder, prefix string) (in []string) {
	names, _ := v.ReadDir(folder)
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			in = append(in, path.Join(folder, name))
		}
	}
	return in
}

// AccessOf is what the driver says of the device that gives access to an instance, by the driver's
// names; empty where it says nothing.
func AccessOf(v host.View, instance string) map[string]string {
	says := map[string]string{}
	data, _ := v.ReadFile(instance + "/access") // need not be there
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		says[key] = strings.TrimSpace(value)
	}
	return says
}
