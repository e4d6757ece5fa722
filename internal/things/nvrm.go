// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// kernelWords are the last lines that the kernel has lines about NVIDIA's modules, before them what some of them mean.
func kernelWords(ctx context.Context, v host.View) []string {
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
	words := kernelWords(ctx, v)
	if len(words) == 0 || !strings.HasPrefix(words[0], kernelMeans) {
		return ""
	}
	return words[0]
}

const kernelMeans = "the kernel's log: "

// sayXid is how the driver reports an error of a GPU: NVRM: Xid (PCI:0000:17:00): 79, pid=1234, GPU has fallen off the bus.
var sayXid = pattern.Of(`NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]+)`)

// Meanings says in words what lines of the kernel's log mean, the latest first, each thing once and three at most.
func Meanings(lines []string) (found []string) {
	const most = 3
	for _, line := range slices.Backward(lines) {
		means := ""
		if m := sayXid().FindStringSubmatch(line); m != nil {
			if x, ok := Xids()[m[2]]; ok {
				means = "Xid " + m[2] + " of GPU " + m[1] + ": " + x.String()
			}
		} else if i := slices.IndexFunc(nvrm(), func(say [2]string) bool { return strings.Contains(line, say[0]) }); i >= 0 {
			means = nvrm()[i][1]
		}
		if means = kernelMeans + means; means != kernelMeans && !slices.Contains(found, means) && len(found) < most {
			found = append(found, means)
		}
	}
	return found
}

// offAndOn power cycles a GPU, which a reboot does not.
const offAndOn = "power the machine off and on (in a cloud: stop the instance and start it, which loses what is on its local disks)"

// nvrm are what the driver says when it does not start a GPU, the more special first.
// Source: kernel-open and src/nvidia in https://github.com/NVIDIA/open-gpu-kernel-modules; its issues 789, 943, 1104.
func nvrm() [][2]string {
	const firmware = "the firmware of the GPU's own processor (GSP) could not be started: it is of the driver's version in /lib/firmware/nvidia, or NVreg_EnableGpuFirmware = 0 in parameters in [driver] with proprietary modules before Blackwell"
	return [][2]string{
		{"fallen off the bus", Xids()["79"].String()}, // it says so without the number too
		{"is not supported by open", "the open modules do not know a GPU that is older than Turing: modules = \"proprietary\" in [driver]"},
		{"requires use of the NVIDIA open kernel modules", "the GPU works with the open modules only: modules = \"open\" in [driver]"},
		{"Direct firmware load for nvidia/", firmware},
		{"GSP firmware", firmware},
		{"kgspBootstrap", firmware},
		{"API mismatch", "a program has libraries of another version than the module that is loaded: restart it, or reload the module"},
		{"This PCI I/O region assigned to your NVIDIA device is invalid", "the firmware of the machine gave a GPU no room for its memory: switch on \"Above 4G Decoding\" there"},
		{"The NVIDIA probe routine was not called", "another driver has the GPUs: nouveau, vfio-pci, or an older module nvidia"},
		{"RmInitAdapter failed", "the driver could not start a GPU: after a cold start of the machine it is most likely broken"},
	}
}
