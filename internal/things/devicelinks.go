// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// deviceLinks are /dev/char's links to NVIDIA's device nodes, which udev does not make, since the nodes are not in sysfs. systemd
// resolves the devices of a container's scope by them at each daemon-reload, and takes those without one from the container.
// Sources: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48;
// https://github.com/opencontainers/runc/issues/3708; cmd/nvidia-ctk/system/create-dev-char-symlinks of the first.
// Its states are "linked", "missing" and which nodes have none, and "none" where there are no nodes.
type deviceLinks struct{}

const charFolder = "/dev/char"

// DeviceLinks wants a link for each of NVIDIA's device nodes that are there.
func DeviceLinks() converge.Want {
	return converge.Want{Thing: deviceLinks{}, Why: "systemd takes a device without one from containers when it is reloaded", To: func(found converge.State) (converge.State, error) {
		return deviceLinks{}.Settled(found), nil
	}}
}

// NewDeviceLinks builds the thing again.
func NewDeviceLinks() converge.Thing { return deviceLinks{} }

func (deviceLinks) Kind() string { return "device-links" }
func (deviceLinks) Name() string { return charFolder }

func (deviceLinks) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", host.FirstBoot
	}
	nodes, err := charNodes(v)
	if err != nil || len(nodes) == 0 {
		return cdiNone, err
	}
	var without []string
	for _, link := range slices.Sorted(maps.Keys(nodes)) {
		if to, err := v.Resolve(link); err != nil || to != nodes[link] {
			without = append(without, path.Base(nodes[link]))
		}
	}
	if len(without) > 0 {
		return converge.State("missing " + strings.Join(without, " ")), nil
	}
	return "linked", nil
}

func (deviceLinks) Make(_ context.Context, h host.Host, to converge.State) error {
	nodes, err := charNodes(h)
	if err != nil || to != "linked" {
		return err
	}
	if _, err := h.Stat(charFolder); missing(err) {
		if err := h.Mkdir(charFolder, host.Attr{Mode: 0o755}); err != nil {
			return err
		}
	}
	for _, link := range slices.Sorted(maps.Keys(nodes)) {
		if at, err := h.Resolve(link); err == nil && at == nodes[link] {
			continue
		}
		if err := h.Symlink(link, strings.Replace(nodes[link], "/dev", "..", 1)); err != nil {
			return err
		}
	}
	return nil
}

// charNodes are the device nodes that are there, by what their links are called. Their numbers follow from their names.
// Sources: internal/info/proc/devices and create-dev-char-symlinks/all.go of NVIDIA's toolkit;
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html; 195 is NVIDIA's in
// Documentation/admin-guide/devices.txt of the kernel.
func charNodes(v host.View) (map[string]string, error) {
	text, err := v.ReadFile("/proc/devices")
	if err != nil && !missing(err) {
		return nil, err
	}
	majors := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 {
			majors[f[1]] = f[0]
		}
	}
	nodes := map[string]string{}
	add := func(node, major string, minor int) {
		if info, err := v.Stat(node); err == nil && info.Mode&fs.ModeCharDevice != 0 && major != "" {
			nodes[fmt.Sprintf("%s/%s:%d", charFolder, major, minor)] = node
		}
	}
	add("/dev/nvidiactl", "195", 255)
	add("/dev/nvidia-modeset", "195", 254)
	add("/dev/nvidia-uvm", majors["nvidia-uvm"], 0)
	add("/dev/nvidia-uvm-tools", majors["nvidia-uvm"], 1)
	for _, numbered := range []struct{ folder, prefix, major string }{
		{"/dev", "nvidia", "195"},
		{"/dev/nvidia-caps", "nvidia-cap", majors["nvidia-caps"]},
		{"/dev/nvidia-caps-imex-channels", "channel", majors["nvidia-caps-imex-channels"]},
	} {
		names, err := v.ReadDir(numbered.folder)
		if err != nil && !missing(err) {
			return nil, err
		}
		for _, name := range names {
			digits, is := strings.CutPrefix(name, numbered.prefix)
			if minor, err := strconv.Atoi(digits); is && err == nil && minor >= 0 {
				add(path.Join(numbered.folder, name), numbered.major, minor)
			}
		}
	}
	return nodes, nil
}

// Unsettled is as found: the driver's clients have a partition's node made, and no change of gpuadm's does.
func (deviceLinks) Unsettled(found converge.State, _ converge.Change) converge.State { return found }

// Settled is linked, where there are nodes.
func (deviceLinks) Settled(found converge.State) converge.State {
	if strings.HasPrefix(string(found), "missing") {
		return "linked"
	}
	return found
}
