// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// logged are the faults without a number, the more special first: what the driver says when it does
// not start a GPU.
// Source: kernel-open and src/nvidia in https://github.com/NVIDIA/open-gpu-kernel-modules; its
// issues 789, 943, 1104.
func logged() []Fault {
	return []Fault{
		{
			Code:  "GPU-001",
			Says:  []string{"fallen off the bus"},
			Means: "a GPU does not answer on the PCI bus",
		},
		{
			Code: "DRV-008",
			Says: []string{
				"is not supported by open",
				"requires use of the NVIDIA open kernel modules",
				"require use of the NVIDIA open kernel modules",
			},
			Means: "a GPU needs the other kind of modules",
		},
		{
			Code:  "DRV-009",
			Says:  []string{"Direct firmware load for nvidia/", "GSP firmware", "kgspBootstrap"},
			Means: "the firmware of the GPU's own processor (GSP) could not be started",
		},
		{
			Code:  "DRV-014",
			Says:  []string{"API mismatch"},
			Means: "a program has libraries of another version than the module that is loaded",
		},
		{
			Code:  "DRV-016",
			Says:  []string{"This PCI I/O region assigned to your NVIDIA device is invalid"},
			Means: "the firmware of the machine gave a GPU no room for its memory",
		},
		{
			Code:  "DRV-006",
			Says:  []string{"The NVIDIA probe routine was not called"},
			Means: "another driver has the GPUs: nouveau, vfio-pci, or an older module nvidia",
		},
		{
			Code:  "DRV-017",
			Says:  []string{"RmInitAdapter failed", "rm_init_adapter failed"},
			Means: "the driver could not start a GPU",
		},
	}
}

// linesPatience is how long journalctl has for lines that only explain an error.
const linesPatience = 2 * time.Second

// KernelLines are the kernel's last three lines about NVIDIA's modules, after the meanings that
// gpuadm knows.
func KernelLines(ctx context.Context, v host.View) []string {
	ctx, end := context.WithTimeout(ctx, linesPatience)
	defer end()
	out, err := v.Ask(ctx, "journalctl", "--no-pager", "--quiet", "--dmesg", "--output=cat", "--lines=200")
	if err != nil {
		return nil
	}

	var lines []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "NVRM:") || strings.Contains(line, "nvidia") {
			lines = append(lines, line)
		}
	}

	last := lines[max(0, len(lines)-3):]

	return append(Meanings(lines), last...)
}

// KernelSays is what the kernel's last lines about NVIDIA's modules mean, as far as that is known;
// "" if it is not.
func KernelSays(ctx context.Context, v host.View) string {
	lines := KernelLines(ctx, v)
	if len(lines) == 0 || !strings.HasPrefix(lines[0], kernelMeans) {
		return ""
	}
	return lines[0]
}

const kernelMeans = "the kernel's log: "

// Meanings says what lines of the kernel's log mean, the latest first, each meaning once, three at
// most.
func Meanings(lines []string) []string {
	const most = 3
	var found []string
	for _, line := range slices.Backward(lines) {
		meaning := meaningOf(line)
		if meaning != "" && !slices.Contains(found, kernelMeans+meaning) && len(found) < most {
			found = append(found, kernelMeans+meaning)
		}
	}

	return found
}

// meaningOf says what a line of the kernel's log means; "" if that is not known.
func meaningOf(line string) string {
	address, x, ok := ReadXid(line)
	if ok && strings.Contains(line, "Xid (") {
		if x.Of == OfUnknown {
			return ""
		}
		return fmt.Sprintf("Xid %d of GPU %s: %s", x.Number, address, x)
	}

	i := slices.IndexFunc(logged(), func(f Fault) bool { return f.In(line) })
	if i < 0 {
		return ""
	}
	f := Of(logged()[i].Code)

	return f.Means + ": " + f.Fix
}
