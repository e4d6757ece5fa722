// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// load loads the module and its companions, makes the device nodes, and sees that every GPU is served.
func (m module) load(ctx context.Context, h host.Host, s moduleState) error {
	_, companions, err := m.configured(h)
	if err != nil {
		return err
	}
	for _, name := range append([]string{"nvidia"}, companions...) {
		use, err := loadedModule(h, name)
		if err != nil {
			return err
		}
		if use != nil {
			continue
		}
		if _, err := h.Do(ctx, "modprobe", name); err != nil {
			return notLoaded(ctx, h, name, s.disk, err)
		}
	}
	// udev rules of the packages mostly do the same; containers need the nodes before anything has used the GPU.
	if _, err := h.Stat(devices.NodeTool); err == nil {
		if _, err := h.Do(ctx, devices.NodeTool, "-c0", "-u"); err != nil {
			return err
		}
	}
	problem, err := UnboundGPUs(h)
	if err != nil || problem == "" {
		return err
	}
	return &trouble.Error{
		What:    "cannot use all GPUs: " + problem,
		Because: faults.KernelWords(ctx, h),
		Try:     []string{faults.Of("DRV-008").Fix},
	}
}

// refusals are what the kernel answers to a module it does not load, and what to do about it.
// Source: kernel/module/main.c and signing.c in the kernel's tree, modprobe(8), which says them in strerror's words.
func refusals() [][3]string {
	const sign = "build = \"precompiled\" in [driver], for modules that the distribution signs; or enroll the key: mokutil --import, then confirm it at the console"
	return [][3]string{
		{"Key was rejected", "the kernel does not trust the key that signed it", sign},
		{"Required key not available", "the kernel wants modules signed by a key it trusts", sign},
		{"Operation not permitted", "the kernel is locked down, or the caller may not load modules", sign},
		{"Exec format error", "it was built for another kernel", trouble.Command("plan") + ", to see for which kernels modules are built"},
		{"Invalid argument", "a parameter is not one of the module's", "parameters in [driver]; modinfo -p nvidia lists what there is"},
		{"Unknown symbol", "the kernel lacks functions that it needs", "a kernel that the driver supports, or a newer driver"},
		{"No such device", "it finds no GPU that it supports", faults.Of("DRV-008").Fix},
		{"not found in directory", "it is not there for the running kernel", trouble.Command("plan") + ", to see for which kernels modules are built"},
	}
}

// quoted is what a program has said, a reason for each line.
func quoted(program, words string) (lines []string) {
	for line := range strings.Lines(words) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, program+": "+line)
		}
	}
	return lines
}

// notLoaded says why a module was refused, in words, with the kernel's own beside them.
func notLoaded(ctx context.Context, v host.View, name, version string, err error) error {
	t := &trouble.Error{What: fmt.Sprintf("cannot load the module %s %s: %v", name, version, err), Because: faults.KernelWords(ctx, v), Err: err}
	words := err.Error()
	if ce := (*host.CommandError)(nil); errors.As(err, &ce) {
		words = ce.Stderr
	}
	// What is words first is the kernel's answer. Where a package has modprobe run a command for the module, as Debian's do
	// ("install nvidia modprobe -i nvidia-current-open"), the outer modprobe adds "Invalid argument": command_do in libkmod.
	first := len(words)
	for _, r := range refusals() {
		if at := strings.Index(words, r[0]); at >= 0 && at < first {
			first = at
			t.What = fmt.Sprintf("cannot load the module %s %s: %s", name, version, r[1])
			t.Try = []string{r[2]}
		}
	}
	if first < len(words) {
		t.Because = append(quoted("modprobe", words), t.Because...)
	}
	return t
}

// Breaks names the processes that use the GPUs, and, where no partitions are made after the module is loaded again, the GPUs that
// have partitions: a driver that is unloaded forgets all MIG instances, and GPUs newer than Ampere their mode.
// Source: MIG user guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/.
func (m module) Breaks(ctx context.Context, v host.View, found, _ converge.State) (what []string, clients map[string][]string, err error) {
	what = []string{"stop-clients"}
	if m.remade || !reloads(found) {
		return what, nil, nil
	}
	if lost := partitioned(ctx, v); len(lost) > 0 {
		what, clients = append(what, "lose-partitions"), map[string][]string{"lose-partitions": lost}
	}
	return what, clients, nil
}

// partitioned counts the MIG instances of each GPU that has some. The loaded module shows them as capabilities, which serves where
// the driver's library cannot be asked: packages may have replaced it already.
// Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
func partitioned(ctx context.Context, v host.View) (list []string) {
	count := func(gpu string, n int) {
		switch n {
		case 0:
		case 1:
			list = append(list, "GPU "+gpu+": 1 MIG instance")
		default:
			list = append(list, fmt.Sprintf("GPU %s: %d MIG instances", gpu, n))
		}
	}
	if d, err := v.Driver(ctx); err == nil {
		for _, g := range d.GPUs {
			count(g.Address, len(g.Instances))
		}
		return list
	}
	for _, gpu := range devices.Below(v, devices.CapabilitiesFolder, "gpu") {
		count(strings.TrimPrefix(path.Base(gpu), "gpu"), len(devices.Below(v, gpu+"/mig", "gi")))
	}
	return list
}
