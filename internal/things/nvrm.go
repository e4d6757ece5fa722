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

// kernelWords are the last lines that the kernel has said about NVIDIA's modules, before them what some of them mean.
func kernelWords(ctx context.Context, v host.View) []string {
	out, err := v.Ask(ctx, "journalctl", "--no-pager", "--quiet", "--dmesg", "--output=cat", "--lines=200")
	if err != nil {
		return nil
	}
	var said []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "NVRM:") || strings.Contains(line, "nvidia") {
			said = append(said, line)
		}
	}
	return append(Meanings(said), said[max(0, len(said)-3):]...)
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
			if what := xids()[m[2]]; what != "" {
				means = "Xid " + m[2] + " of GPU " + m[1] + ": " + what
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
		{"fallen off the bus", "a GPU no longer answers on the PCI bus: power, cooling or seating; " + offAndOn},
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

// xids are the errors that say what is the matter with a GPU, or with whom it is not.
// Source: NVIDIA's Xid catalog, https://docs.nvidia.com/deploy/xid-errors.
func xids() map[string]string {
	const program, replace = "a program's fault: see its own log", "have the GPU looked at by its maker if it comes again"
	return map[string]string{
		"13": program, "31": program, "43": program, "45": program + ", or that of the Xid before it", "69": program,
		"48": "memory error that could not be corrected: reset the GPU; " + replace,
		"61": "its microcontroller has stopped: reset the GPU", "62": "its microcontroller has halted: reset the GPU",
		"63":  "a faulty row of its memory is to be replaced by a spare one at the next reset: drain the node and reset the GPU",
		"64":  "a faulty row of its memory could not be noted for replacement: reset the GPU; " + replace,
		"74":  "NVLink error: reset the GPUs; see the other end of the link, and the NVSwitches",
		"79":  "it has fallen off the bus: power, cooling or seating; " + offAndOn,
		"92":  "many corrected memory errors; " + replace,
		"94":  "memory error that one program had to end for: restart it, and reset the GPU when the node is drained",
		"95":  "memory error that may have hit any program: drain the node and reset the GPU",
		"119": "its own processor (GSP) does not answer: reset the GPU; if it comes again, another driver version",
		"120": "its own processor (GSP) has failed: reset the GPU; if it comes again, another driver version",
		"140": "memory error that could not be corrected: drain the node and reset the GPU",
		"143": "it could not be started: " + offAndOn,
	}
}
