// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package faults knows what lines of the kernel's log mean for a GPU, Xids among them, and what to do about it.
package faults

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
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
		if address, number, _, ok := ReadXid(line); ok {
			if x, known := xidOf(number); known {
				means = fmt.Sprintf("Xid %d of GPU %s: %s", number, address, x)
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

// Xid is an error that the driver reports of a GPU.
type Xid struct {
	Number int
	Of     Part
	Means  string // in NVIDIA's words
	Remedy Remedy
	Then   string // what else to do; begins with "; "
}

// Part is what an Xid is about.
type Part string

// Parts that an Xid is about.
const (
	OfBus     Part = "bus"     // the GPU is gone, or does not start
	OfMemory  Part = "memory"  // the ECC counters and the row remapper know of it too
	OfLink    Part = "link"    // NVLink, which has two ends
	OfDevice  Part = "device"  // another part of the GPU
	OfProgram Part = "program" // a program's fault, or one that the driver has handled: the GPU works
)

// Remedy is what an Xid asks for, in steps that can be typed; first the drain, where a step interrupts.
type Remedy string

// Remedies that an Xid asks for.
const (
	Reset   Remedy = drain + "reset the GPU (sudo nvidia-smi --gpu-reset -i GPU)"
	Power   Remedy = drain + offAndOn
	Program Remedy = "find the cause in the program's own log (kubectl logs POD), and restart the program"
	Report  Remedy = "run sudo nvidia-bug-report.sh and send its file to the board's maker"

	drain = "drain the node (kubectl drain NODE --ignore-daemonsets --delete-emptydir-data), then "
)

// Action is all that the Xid asks for.
func (x Xid) Action() string { return string(x.Remedy) + x.Then }

func (x Xid) String() string { return x.Means + ": " + x.Action() }

// XidCatalogue is where NVIDIA says what an Xid means and what to do.
const XidCatalogue = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

// Xids are the Xids that say that a GPU has a fault, or that it has none; root causes come first. Each row has NVIDIA's immediate and
// then its investigatory action for A100 and newer. 61 is of older GPUs. A remapped row (63) needs no action before the next reset, which
// the drain prepares. docs/doctor.md has the same table: make update writes it.
// Sources: XidCatalogue; the same table in https://github.com/leptonai/gpud,
// components/accelerator/nvidia/xid/catalog_generated.go; of 48 and 46 as well
// https://docs.nvidia.com/health-validation/reference/checks/xid.md (drain, reset, service); of 63, 64, 94 and 95
// https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html.
func Xids() []Xid {
	const (
		support = "; if it comes again, " + string(Report)
		link    = "; if it comes again, check both ends of the link (nvidia-smi nvlink --status)"
	)
	version := "; if it comes again, install another version of the driver (version in [driver], " + trouble.Command("apply") + ")"
	return []Xid{
		{79, OfBus, "GPU has fallen off the bus", Power, support},
		{143, OfBus, "GPU initialization error", Reset, "; if it cannot be reset, " + offAndOn + support},
		{48, OfMemory, "double bit ECC error", Reset, support},
		{95, OfMemory, "uncontained memory error", Reset, support},
		{140, OfMemory, "unrecovered ECC error", Reset, support},
		{94, OfMemory, "contained memory error", Reset, ", when it suits; restart the program that had it now (kubectl delete pod POD)"},
		{64, OfMemory, "row remapping failure", Reset, support},
		{63, OfMemory, "row remapping event", Reset, ""},
		{62, OfDevice, "halt of an internal microcontroller", Reset, support},
		{120, OfDevice, "GSP error", Reset, version},
		{119, OfDevice, "GSP RPC timeout", Reset, version},
		{61, OfDevice, "breakpoint of an internal microcontroller", Report, ""},
		{158, OfDevice, "GPU fatal timeout", Reset, support},
		{109, OfDevice, "context switch timeout", Reset, support},
		{110, OfDevice, "security fault", Reset, version},
		{136, OfLink, "link training failed", Reset, link},
		{74, OfLink, "NVLink error", Reset, link},
		{149, OfLink, "NVLink NETIR error", Reset, link},
		{92, OfProgram, "high single bit ECC error rate", "nothing now", support},
		{13, OfProgram, "graphics engine exception", Program, ""},
		{31, OfProgram, "GPU memory page fault", Program, ""},
		{69, OfProgram, "graphics engine class error", Program, ""},
		{43, OfProgram, "GPU stopped processing", Program, ""},
		{45, OfProgram, "preemptive cleanup, due to previous errors", "find the Xid before it (sudo journalctl --dmesg --grep Xid)", "; without one " + string(Program)},
	}
}

// xidLine is how the driver reports one: NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.
// Sources: https://docs.nvidia.com/deploy/xid-errors; nvErrorLog in https://github.com/NVIDIA/open-gpu-kernel-modules.
var xidLine = pattern.Of(`NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?:\.[0-7])?\): (\d+)(?:, ?(.*))?`)

// ReadXid reads a line of the kernel's log: the GPU's address on the PCI bus, and what the driver says beside the number.
func ReadXid(line string) (address string, number int, says string, ok bool) {
	m := xidLine().FindStringSubmatch(line)
	if m == nil {
		return "", 0, "", false
	}
	number, err := strconv.Atoi(m[2])
	return strings.ToLower(m[1]) + ".0", number, m[3], err == nil
}

// xidOf is the row of a number.
func xidOf(number int) (Xid, bool) {
	all := Xids()
	i := slices.IndexFunc(all, func(x Xid) bool { return x.Number == number })
	if i < 0 {
		return Xid{}, false
	}
	return all[i], true
}
