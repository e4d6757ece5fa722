// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pci"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// load loads the module and its companions, makes the device nodes, and verifies that the module
// serves every GPU.
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
	// Most packages' udev rules do the same. Containers need the nodes before a process has used
	// the GPU.
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

// refusals are the kernel's errors for a module that it does not load, what they mean, and what to
// do. modprobe prints them in strerror's words. Source: kernel/module/main.c and signing.c in the
// kernel's tree; modprobe(8).
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

// quoted is a program's output, a reason for each line.
func quoted(program, words string) (lines []string) {
	for line := range strings.Lines(words) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, program+": "+line)
		}
	}
	return lines
}

// notLoaded explains why the kernel refused a module, and quotes modprobe and the kernel's log.
func notLoaded(ctx context.Context, v host.View, name, version string, err error) error {
	t := &trouble.Error{What: fmt.Sprintf("cannot load the module %s %s: %v", name, version, err), Because: faults.KernelWords(ctx, v), Err: err}
	words := err.Error()
	if ce := (*host.CommandError)(nil); errors.As(err, &ce) {
		words = ce.Stderr
	}
	// The first refusal in words is the kernel's. If a package has modprobe run a command for the
	// module, as Debian's do ("install nvidia modprobe -i nvidia-current-open"), the outer modprobe
	// adds "Invalid argument": command_do in libkmod.
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

// Breaks says that the GPUs' clients stop and, unless the run makes the partitions again, that
// partitions are lost: an unloaded driver forgets all MIG instances, and GPUs newer than Ampere
// also forget their MIG mode.
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

// partitioned counts the MIG instances of each GPU that has some. If packages have replaced the
// driver's library, it no longer answers: then partitioned counts the capabilities in /proc, which
// are the loaded module's.
// Source:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
func partitioned(ctx context.Context, v host.View) (list []string) {
	count := func(gpu string, n int) {
		if n > 0 {
			list = append(list, "GPU "+gpu+": "+trouble.Count(n, "MIG instance"))
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

// UnboundGPUs says which GPUs on the bus the module nvidia does not serve: a module of the wrong
// flavour does not bind to some architectures. GPUs that are passed through to virtual machines
// count as served.
func UnboundGPUs(v host.View) (problem string, err error) {
	functions, err := pci.Functions(v)
	if err != nil {
		return "", err
	}
	var unbound []string
	all := 0
	for _, f := range functions {
		if f.Vendor != pci.Nvidia || !f.Display() {
			continue
		}
		all++
		switch f.Driver {
		case "":
			unbound = append(unbound, f.Address)
		case "nouveau":
			unbound = append(unbound, f.Address+" (nouveau holds it)")
		}
	}
	if len(unbound) == 0 {
		return "", nil
	}
	return fmt.Sprintf("the module nvidia serves %d of %d GPUs, and not %s", all-len(unbound), all, strings.Join(unbound, ", ")), nil
}

// oneLine reads a file of the kernel's, without spaces at both ends; "" if it cannot be read.
func oneLine(v host.View, name string) string {
	return strings.TrimSpace(string(mustRead(v, name)))
}

// moduleUse is what keeps a loaded module from being unloaded.
type moduleUse struct {
	name    string
	uses    int
	holders []string // other modules
}

// loadedModule looks at one module, by its name or its file's; nil if it is not loaded, or built
// into the kernel.
func loadedModule(v host.View, name string) (*moduleUse, error) {
	name = strings.ReplaceAll(name, "-", "_")
	b, err := v.ReadFile("/sys/module/" + name + "/refcnt")
	if host.NotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	m := &moduleUse{name: name}
	if m.uses, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return nil, fmt.Errorf("cannot read the reference count of module %s: %w", name, err)
	}
	m.holders, err = v.ReadDir("/sys/module/" + name + "/holders")
	if err != nil && !host.NotExist(err) {
		return nil, err
	}
	return m, nil
}

// unloadOrder is the order in which to unload NVIDIA's modules: each before those that it holds.
func unloadOrder() []string {
	return []string{"nvidia_peermem", "nvidia_fs", "gdrdrv", "nvidia_drm", "nvidia_uvm", "nvidia_modeset", "nvidia"}
}

// keptBy says what keeps the loaded modules from being unloaded; nil if nothing does: other
// modules, a console or a display, processes other than the driver's own daemons.
func keptBy(ctx context.Context, v host.View) (why []string, err error) {
	holders, err := devices.Holders(ctx, v)
	if err != nil {
		return nil, err
	}
	why = trouble.Few(devices.NamesOf(holders), 4)
	for _, name := range unloadOrder() {
		m, err := loadedModule(v, name)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		foreign := slices.DeleteFunc(slices.Clone(m.holders), func(h string) bool { return slices.Contains(unloadOrder(), h) })
		if len(foreign) > 0 {
			why = append(why, fmt.Sprintf("module %s is used by the module %s", name, strings.Join(foreign, " and ")))
		}
		if m.uses > len(m.holders) && len(holders) == 0 {
			why = append(why, fmt.Sprintf("module %s is used %s by no process that can be seen: by a console, or inside the kernel", name, trouble.Count(m.uses-len(m.holders), "time")))
		}
	}
	return why, nil
}

var errModuleHeld = errors.New("it is in use")
