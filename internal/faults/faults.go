// SPDX-License-Identifier: Apache-2.0

// Package faults knows what lines of the kernel's log mean for a GPU, Xids among them, and what to do about it.
package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Fault is a fault of a GPU that shows in the kernel's log or on the PCI bus. Apply, preflight and doctor advise its Fix.
type Fault struct {
	Code  string   // of doctor's check
	Says  []string // what a line of the kernel's log has of it
	Means string
	Fix   string
}

// offAndOn power cycles a GPU.
const offAndOn = "power the machine off and on, which a reboot does not do (in a cloud: stop the instance and start it, which loses what is on its local disks)"

// All are the faults without a number, the more special first: what the driver says when it does not start a GPU.
// Source: kernel-open and src/nvidia in https://github.com/NVIDIA/open-gpu-kernel-modules; its issues 789, 943, 1104.
func All() []Fault {
	return []Fault{
		{"GPU-001", []string{"fallen off the bus"}, "a GPU does not answer on the PCI bus", offAndOn + "; if it comes again, have the board replaced"},
		{
			"DRV-008",
			[]string{"is not supported by open", "requires use of the NVIDIA open kernel modules", "require use of the NVIDIA open kernel modules"},
			"a GPU needs the other kind of modules",
			`write modules = "open" in [driver] for Turing and newer GPUs (from Blackwell on nothing else works), or modules = "proprietary" for older ones; then ` + trouble.Command("apply"),
		},
		{
			"DRV-009",
			[]string{"Direct firmware load for nvidia/", "GSP firmware", "kgspBootstrap"},
			"the firmware of the GPU's own processor (GSP) could not be started",
			"install the driver's firmware package of the same version, whose files are in /lib/firmware/nvidia; before Blackwell, proprietary modules run without it: NVreg_EnableGpuFirmware = 0 in parameters in [driver]",
		},
		{
			"DRV-014",
			[]string{"API mismatch"},
			"a program has libraries of another version than the module that is loaded",
			"load the module of the libraries' version: reboot, or stop what uses the GPUs and load it again",
		},
		{
			"DRV-016",
			[]string{"This PCI I/O region assigned to your NVIDIA device is invalid"},
			"the firmware of the machine gave a GPU no room for its memory",
			`switch on "Above 4G Decoding" and large BARs in the firmware; of a virtual machine, give it more room for PCI devices`,
		},
		{
			"DRV-006",
			[]string{"The NVIDIA probe routine was not called"},
			"another driver has the GPUs: nouveau, vfio-pci, or an older module nvidia",
			"keep that driver from loading, in the initramfs too, and reboot",
		},
		{"DRV-017", []string{"RmInitAdapter failed", "rm_init_adapter failed"}, "the driver could not start a GPU", offAndOn + "; if it comes again, have the board replaced"},
	}
}

// Of is the fault of a code of doctor's; the zero Fault if the table has none.
func Of(code string) Fault {
	for _, f := range All() {
		if f.Code == code {
			return f
		}
	}
	return Fault{}
}

// In says whether a line of the kernel's log has the fault.
func (f Fault) In(line string) bool {
	return slices.ContainsFunc(f.Says, func(text string) bool { return strings.Contains(line, text) })
}

// KernelWords are the kernel's last three lines about NVIDIA's modules, after the meanings that gpuadm knows.
func KernelWords(ctx context.Context, v host.View) []string {
	out, err := v.Ask(ctx, "journalctl", "--no-pager", "--quiet", "--dmesg", "--output=cat", "--lines=200")
	if err != nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "NVRM:") || strings.Contains(line, "nvidia") {
			lines = append(lines, line)
		}
	}
	return append(Meanings(lines), lines[max(0, len(lines)-3):]...)
}

// KernelSays is what the kernel's last lines about NVIDIA's modules mean, as far as that is known; "" if it is not.
func KernelSays(ctx context.Context, v host.View) string {
	words := KernelWords(ctx, v)
	if len(words) == 0 || !strings.HasPrefix(words[0], kernelMeans) {
		return ""
	}
	return words[0]
}

const kernelMeans = "the kernel's log: "

// Meanings says what lines of the kernel's log mean, the latest first, each meaning once, three at most.
func Meanings(lines []string) (found []string) {
	const most = 3
	for _, line := range slices.Backward(lines) {
		means := ""
		if address, x, ok := ReadXid(line); ok && strings.Contains(line, "Xid (") {
			if x.Of != OfUnknown {
				means = fmt.Sprintf("Xid %d of GPU %s: %s", x.Number, address, x)
			}
		} else if i := slices.IndexFunc(All(), func(f Fault) bool { return f.In(line) }); i >= 0 {
			means = All()[i].Means + ": " + All()[i].Fix
		}
		if means = kernelMeans + means; means != kernelMeans && !slices.Contains(found, means) && len(found) < most {
			found = append(found, means)
		}
	}
	return found
}
