// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
			return whyNotLoaded(ctx, h, name, s.disk, err)
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
		Because: faults.KernelLines(ctx, h),
		Try:     []string{faults.Of("DRV-008").Fix},
	}
}

// refusal is an error of the kernel's for a module that it does not load.
type refusal struct {
	words string // in modprobe's output: strerror's
	why   string
	try   string
}

// refusals are the kernel's errors for a module that it does not load. It ignores a parameter that
// the module does not have (unknown_module_param_cb), and refuses a wrong value. Source:
// kernel/module/main.c and signing.c in the kernel's tree; modules_disabled in its
// Documentation/admin-guide/sysctl/kernel.rst; modprobe(8).
func refusals(module string) []refusal {
	const sign = "build = \"precompiled\" in [driver], for modules that the distribution signs; or enroll the key: " +
		"mokutil --import FILE with its certificate, which DKMS keeps in /var/lib/dkms/mok.pub, " +
		"and on Ubuntu in /var/lib/shim-signed/mok/MOK.der; then reboot, and confirm it at the console"
	const locked = "if sysctl kernel.modules_disabled shows 1: reboot, since a boot loads modules before it sets sysctls; " +
		"if the kernel is locked down: " + sign
	values := "fix the value, in parameters in [driver] or in the other options lines of /etc/modprobe.d"
	if module != "nvidia" { // parameters in [driver] are the module nvidia's
		values = "fix the value in the options lines of /etc/modprobe.d"
	}
	values += "; modinfo -p " + module + " lists the types"

	kernels := trouble.Command("plan") + ", to see for which kernels modules are built"
	return []refusal{
		{"Key was rejected", "the kernel does not trust the key that signed it", sign},
		{"Required key not available", "the kernel wants modules signed by a key it trusts", sign},
		{"Operation not permitted", "the kernel is locked down, takes no modules until the next boot, or not from this caller", locked},
		{"Exec format error", "it was built for another kernel", kernels},
		{"Invalid argument", "it does not take the value of a parameter", values},
		{"Unknown symbol", "the kernel lacks functions that it needs", "a kernel that the driver supports, or a newer driver"},
		{"No such device", "it finds no GPU that it supports", faults.Of("DRV-008").Fix},
		{"not found in directory", "it is not there for the running kernel", kernels},
	}
}

// whyNotLoaded explains why the kernel refused a module, and quotes modprobe and the kernel's log.
func whyNotLoaded(ctx context.Context, v host.View, name, version string, err error) error {
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot load the module %s %s: %v", name, version, err),
		Because: faults.KernelLines(ctx, v),
		Err:     err,
	}
	output := err.Error()
	var command *host.CommandError
	if errors.As(err, &command) {
		output = command.Stderr
	}

	// The first refusal in the output is the kernel's. If a package has modprobe run a command for
	// the module, as Debian's do ("install nvidia modprobe -i nvidia-current-open"), the outer
	// modprobe adds "Invalid argument": command_do in libkmod.
	first := len(output)
	for _, r := range refusals(name) {
		at := strings.Index(output, r.words)
		if at >= 0 && at < first {
			first = at
			t.What = fmt.Sprintf("cannot load the module %s %s: %s", name, version, r.why)
			t.Try = []string{r.try}
		}
	}

	if first < len(output) {
		t.Because = append(quoted("modprobe", output), t.Because...)
	}

	return t
}

// quoted is a program's output, a reason for each line.
func quoted(program, output string) []string {
	var lines []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" {
			lines = append(lines, program+": "+line)
		}
	}

	return lines
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
		case "nouveau", "NovaCore":
			unbound = append(unbound, f.Address+" ("+f.Driver+" holds it)")
		}
	}

	if len(unbound) == 0 {
		return "", nil
	}
	served := all - len(unbound)

	others := strings.Join(unbound, ", ")
	return fmt.Sprintf("the module nvidia serves %d of %d GPUs, and not %s", served, all, others), nil
}
