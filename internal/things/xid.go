// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Xid is an error that the driver reports of a GPU.
type Xid struct {
	Means  string // in NVIDIA's words
	Action string // what to do, in steps that can be typed; first the drain, where a step interrupts
}

func (x Xid) String() string { return x.Means + ": " + x.Action }

// XidCatalogue is where NVIDIA says what an Xid means and what to do.
const XidCatalogue = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

// Xids are the Xids that say what is wrong with a GPU, or that nothing is, by number, with the immediate and then the investigatory action
// for A100 and newer. 61 is of older GPUs. A remapped row (63) needs no action until a reset is due anyway, which the drain prepares.
// Sources: XidCatalogue; the same table in https://github.com/leptonai/gpud,
// components/accelerator/nvidia/xid/catalog_generated.go; of 48 and 46 as well
// https://docs.nvidia.com/health-validation/reference/checks/xid.md (drain, reset, service); of 63, 64, 94 and 95
// https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html.
func Xids() map[string]Xid {
	const (
		drain   = "drain the node (kubectl drain NODE --ignore-daemonsets --delete-emptydir-data), then "
		reset   = drain + "reset the GPU (sudo nvidia-smi --gpu-reset -i GPU)"
		support = "; if it comes again, run sudo nvidia-bug-report.sh and send its file to the board's maker"
		link    = "; if it comes again, check both ends of the link (nvidia-smi nvlink --status)"
		restart = "find the cause in the program's own log (kubectl logs POD), and restart the program"
	)
	version := "; if it comes again, install another version of the driver (version in [driver], " + trouble.Command("apply") + ")"
	return map[string]Xid{
		"13":  {"graphics engine exception", restart},
		"31":  {"GPU memory page fault", restart},
		"43":  {"GPU stopped processing", restart},
		"45":  {"preemptive cleanup, due to previous errors", "find the Xid before it (sudo dmesg | grep Xid); without one " + restart},
		"48":  {"double bit ECC error", reset + support},
		"61":  {"breakpoint of an internal microcontroller", "run sudo nvidia-bug-report.sh and send its file to the board's maker"},
		"62":  {"halt of an internal microcontroller", reset + support},
		"63":  {"row remapping event", reset},
		"64":  {"row remapping failure", reset + support},
		"69":  {"graphics engine class error", restart},
		"74":  {"NVLink error", reset + link},
		"79":  {"GPU has fallen off the bus", drain + "reboot (sudo reboot); if the GPU stays away, " + offAndOn + support},
		"92":  {"high single bit ECC error rate", "nothing now" + support},
		"94":  {"contained memory error", "restart the program that had it (kubectl delete pod POD); when it suits, " + reset},
		"95":  {"uncontained memory error", reset + support},
		"109": {"context switch timeout", reset + support},
		"110": {"security fault", reset + version},
		"119": {"GSP RPC timeout", reset + version},
		"120": {"GSP error", reset + version},
		"136": {"link training failed", reset + link},
		"140": {"unrecovered ECC error", reset + support},
		"143": {"GPU initialization error", reset + "; if it cannot be reset, " + offAndOn + support},
		"149": {"NVLink NETIR error", reset + link},
		"158": {"GPU fatal timeout", reset + support},
	}
}
