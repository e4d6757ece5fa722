// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// xidCode is the code of the check of all Xids.
const xidCode = "GPU-011"

// recoveryPart is the Part of Xid 154, which says what others lead to.
const recoveryPart things.Part = "recovery"

func xidChecks() []Check {
	return []Check{{
		Code: xidCode, Title: "the driver reported an Xid",
		Reads:   "the kernel log since the module was last loaded, and what NVML says of the GPU now",
		Meaning: "an error of this GPU ended programs on it; one of a program's own is a note",
		Fix:     "what NVIDIA's catalogue says of the number", Interrupts: reset, Find: xids,
		Sources: []string{
			things.XidCatalogue, "https://github.com/leptonai/gpud (catalog_generated.go)",
			"https://github.com/NVIDIA/open-gpu-kernel-modules/discussions/1496",
		},
	}}
}

// seenXids are what the driver says beside the Xids of each GPU, by address and number.
func (m *Machine) seenXids() map[string]map[int][]string {
	found := map[string]map[int][]string{}
	for _, line := range m.sinceLoad() {
		address, number, says, ok := things.ReadXid(line)
		if !ok {
			continue
		}
		if found[address] == nil {
			found[address] = map[int][]string{}
		}
		found[address][number] = append(found[address][number], says)
	}
	return found
}

// xids finds the Xids of each GPU, one for each part: the root cause, which names the others. It leaves out what is over: the log keeps the
// words of a GPU that was reset since.
func xids(m *Machine) (found []Finding) {
	gpus, _ := m.NVML()
	for address, seen := range m.seenXids() {
		g, answers := gpus[address]
		at := map[things.Part]int{}
		for _, x := range things.Xids() {
			lines := seen[x.Number]
			if len(lines) == 0 || answers && over(x, g) {
				continue
			}
			what := fmt.Sprintf("Xid %d, %s", x.Number, x.Means)
			if n := len(lines); n > 1 {
				what += fmt.Sprintf(", %d times", n)
			}
			if i, more := at[x.Of]; more {
				found[i].What += "; " + what
				continue
			}
			at[x.Of] = len(found)
			found = append(found, Finding{
				Object: address, Part: string(x.Of), What: "GPU " + address + " reported " + what, Fix: x.Action(),
				Command: xidCommand(x, address), Note: x.Of == things.OfProgram,
			})
		}
		found = append(found, recovery(address, seen[154])...)
	}
	return found
}

func xidCommand(x things.Xid, address string) string {
	switch x.Remedy {
	case things.Reset:
		return resetCommand(host.GPU{Address: address})
	case things.Power:
		return "sudo poweroff"
	case things.Report:
		return "sudo nvidia-bug-report.sh"
	}
	return ""
}

// over says whether a GPU that answers has no sign of the error any more.
func over(x things.Xid, g host.GPU) bool {
	clean := !g.RemapWaits && !g.RemapFails
	switch {
	case g.Lost != "":
		return false
	case x.Of == things.OfBus:
		return true
	case x.Number == 63 || x.Number == 64:
		return clean
	}
	return x.Of == things.OfMemory && g.ECC == "on" && g.Uncorrected == 0 && clean
}

// recovery reads the driver's last word on a GPU: 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required).
func recovery(address string, lines []string) []Finding {
	if len(lines) == 0 {
		return nil
	}
	_, to, ok := strings.Cut(lines[len(lines)-1], ") to 0x")
	_, action, opened := strings.Cut(to, "(")
	action, _, closed := strings.Cut(action, ")")
	if !ok || !opened || !closed || action == "None" {
		return nil
	}
	f := Finding{
		Object: address, Part: string(recoveryPart), What: "of GPU " + address + " the driver asks for: " + action,
		Fix: "do what the driver asks for", Command: resetCommand(host.GPU{Address: address}),
	}
	if strings.Contains(action, "Reboot") {
		f.Command = "sudo reboot"
	}
	return []Finding{f}
}
