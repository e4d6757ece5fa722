// SPDX-License-Identifier: Apache-2.0

package cdi

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
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
)

// deviceLinks are the links in /dev/char to NVIDIA's device nodes. udev does not make them, since
// the nodes are not in sysfs. At each daemon-reload systemd resolves the devices of a container by
// these links, and takes a device without a link from the container.
// Sources: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48;
// https://github.com/opencontainers/runc/issues/3708;
// cmd/nvidia-ctk/system/create-dev-char-symlinks of the first. Make first has missing nodes of
// partitions made: see missingCaps. Its states are "linked", "none" (there are no nodes), and
// "missing" with the names of the nodes that have no link or do not exist.
type deviceLinks struct{}

const (
	charFolder = "/dev/char"
	capsFolder = "/dev/nvidia-caps"
)

// DeviceLinks wants a link for each of NVIDIA's device nodes.
func DeviceLinks() converge.Want {
	return converge.Following(deviceLinks{}, "systemd takes a device without one from containers when it is reloaded")
}

// capNodes is deviceLinks for the nodes of partitions alone. Its state is "none" if the driver's
// tool, which makes the nodes, is missing.
type capNodes struct{ deviceLinks }

// PartitionNodes wants a node for each partition, and a link to it, in the stage that changes
// partitions.
func PartitionNodes() converge.Want {
	nodes := NewDeviceLinks(capsFolder).(converge.Follower)
	return converge.Following(nodes, "containers use partitions by them")
}

// NewDeviceLinks builds a thing of the kind again.
func NewDeviceLinks(name string) converge.Thing {
	if name == capsFolder {
		return besideOthers{
			Follower: capNodes{},
			name:     name,
			affected: byPartitions("missing nodes: partitions change"),
		}
	}
	return deviceLinks{}
}

// Look looks only for the nodes of partitions: the next stage makes all other links.
func (capNodes) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", host.FirstBoot
	}
	if _, err := v.Stat(devices.NodeTool); err != nil {
		return cdiNone, nil
	}
	return linkState(missingNames(v)), nil
}

// linkState is the state with these nodes missing.
func linkState(missing []string) converge.State {
	if len(missing) > 0 {
		return converge.State("missing " + strings.Join(missing, " "))
	}
	return "linked"
}

func (deviceLinks) Ref() converge.Ref {
	return converge.Ref{Kind: "device-links", Name: charFolder}
}

func (deviceLinks) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", host.FirstBoot
	}
	nodes, err := charNodes(v)
	if err != nil {
		return "", err
	}
	missing := missingNames(v)
	if len(nodes)+len(missing) == 0 {
		return cdiNone, nil
	}

	for _, link := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[link]
		target, err := v.Resolve(link)
		if err != nil || target != node {
			missing = append(missing, path.Base(node))
		}
	}

	return linkState(missing), nil
}

func (deviceLinks) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != "linked" {
		return nil
	}

	for _, c := range missingCaps(h) {
		if _, err := h.Do(ctx, path.Base(devices.NodeTool), "-f", c.access); err != nil {
			return fmt.Errorf("cannot make the device nodes of partitions: %w", err)
		}
	}

	nodes, err := charNodes(h)
	if err != nil {
		return err
	}
	if _, err := h.Stat(charFolder); host.NotExist(err) {
		if err := h.Mkdir(charFolder, host.Attr{Mode: 0o755}); err != nil {
			return err
		}
	}

	for _, link := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[link]
		target, err := h.Resolve(link)
		if err == nil && target == node {
			continue
		}
		relative := strings.Replace(node, "/dev", "..", 1)
		if err := h.Symlink(link, relative); err != nil {
			return err
		}
	}

	return nil
}

// Affected returns found: in the stage that changes partitions besideOthers makes the nodes.
func (deviceLinks) Affected(found converge.State, _ converge.Change) converge.State {
	return found
}

// Current says that missing nodes and links must be made.
func (deviceLinks) Current(found converge.State) converge.State {
	if strings.HasPrefix(string(found), "missing") {
		return "linked"
	}
	return found
}

// charNodes are the existing device nodes, by the path of their link. A node's numbers follow from
// its name.
// Sources: internal/info/proc/devices and create-dev-char-symlinks/all.go of NVIDIA's toolkit;
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html; 195
// is NVIDIA's in Documentation/admin-guide/devices.txt of the kernel.
func charNodes(v host.View) (map[string]string, error) {
	names, err := devices.Majors(v)
	if err != nil {
		return nil, err
	}
	majors := map[string]string{} // by the driver's name
	for number, name := range names {
		majors[name] = strconv.FormatUint(uint64(number), 10)
	}

	nodes := map[string]string{}
	add := func(node, major string, minor int) {
		info, err := v.Stat(node)
		if err == nil && info.Mode&fs.ModeCharDevice != 0 && major != "" {
			nodes[fmt.Sprintf("%s/%s:%d", charFolder, major, minor)] = node
		}
	}

	add("/dev/nvidiactl", "195", 255)
	add("/dev/nvidia-modeset", "195", 254)
	add("/dev/nvidia-uvm", majors["nvidia-uvm"], 0)
	add("/dev/nvidia-uvm-tools", majors["nvidia-uvm"], 1)

	for _, numbered := range []struct{ folder, prefix, major string }{
		{"/dev", "nvidia", "195"},
		{capsFolder, "nvidia-cap", majors["nvidia-caps"]},
		{"/dev/nvidia-caps-imex-channels", "channel", majors["nvidia-caps-imex-channels"]},
	} {
		entries, err := v.ReadDir(numbered.folder)
		if err != nil && !host.NotExist(err) {
			return nil, err
		}
		for _, name := range entries {
			digits, is := strings.CutPrefix(name, numbered.prefix)
			minor, err := strconv.Atoi(digits)
			if is && err == nil && minor >= 0 {
				add(path.Join(numbered.folder, name), numbered.major, minor)
			}
		}
	}

	return nodes, nil
}

// A capsNode is a device that gives access to a GPU instance or a compute instance, and the
// driver's file about it in /proc.
type capsNode struct{ node, access string }

// missingCaps are the missing nodes of partitions. The driver's clients make them only when they
// begin to use a partition; until then a CDI spec, the device plugin and a container do not find
// them. It returns none if the driver's tool is not installed, or if the driver's options say that
// another program makes the nodes. Sources: "Device Nodes and Capabilities" in
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
// (nvidia-modprobe -f); https://github.com/NVIDIA/nvidia-modprobe,
// modprobe-utils/nvidia-modprobe-utils.c (DeviceFileModify, nvidia-cap%d).
func missingCaps(v host.View) []capsNode {
	if _, err := v.Stat(devices.NodeTool); err != nil {
		return nil
	}

	var list []capsNode
	for _, instance := range instanceFolders(v) {
		access, _ := devices.AccessOf(v, instance) // an instance that cannot be read gets no node
		minor := access["DeviceFileMinor"]
		if minor == "" || access["DeviceFileModify"] != "1" {
			continue
		}
		node := capsFolder + "/nvidia-cap" + minor
		if _, err := v.Stat(node); host.NotExist(err) {
			list = append(list, capsNode{node, instance + "/access"})
		}
	}

	return list
}

// instanceFolders are the driver's folders about GPU instances and compute instances.
func instanceFolders(v host.View) []string {
	var folders []string
	for _, gpu := range devices.Below(v, devices.CapabilitiesFolder, "gpu") {
		for _, instance := range devices.Below(v, gpu+"/mig", "gi") {
			folders = append(folders, instance)
			folders = append(folders, devices.Below(v, instance, "ci")...)
		}
	}

	return folders
}

// missingNames are the names of the missing nodes of partitions.
func missingNames(v host.View) []string {
	var names []string
	for _, c := range missingCaps(v) {
		names = append(names, path.Base(c.node))
	}

	return names
}
