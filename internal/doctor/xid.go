// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// xidCode is the code of the check of all Xids.
const xidCode = "GPU-011"

// seenXids counts the errors in the log by the GPU's address, and returns what the driver last
// asked for.
func (m *Machine) seenXids() (seen map[string]map[faults.Xid]int, asked map[string]string) {
	seen = map[string]map[faults.Xid]int{}
	asked = map[string]string{}
	for _, line := range m.sinceLoad() {
		address, xid, ok := faults.ReadXid(line)
		if !ok {
			continue
		}
		if xid.Number == faults.RecoveryXid {
			if action, ok := recoveryAction(xid.Means); ok {
				asked[address] = action
			}
			continue
		}

		// The driver tells a fall off the bus in two lines, the second without a number: osinit.c in
		// https://github.com/NVIDIA/open-gpu-kernel-modules.
		isSecond := seen[address][xid] > 0 && !strings.Contains(line, "Xid (")
		if isSecond {
			continue
		}
		if seen[address] == nil {
			seen[address] = map[faults.Xid]int{}
		}
		seen[address][xid]++
	}

	return seen, asked
}

// recoveryAction reads the new action in "GPU recovery action changed from 0x0 (None) to 0x2 (Node
// Reboot Required)".
func recoveryAction(message string) (action string, ok bool) {
	_, number, _ := strings.Cut(message, ") to 0x")
	number, _, _ = strings.Cut(number, " ")
	n, err := strconv.ParseUint(number, 16, 32)
	if err != nil {
		return "", false
	}
	return host.Recovery(n), true
}

// xids returns one finding for each part of each GPU that reported errors: the root cause, which
// names the others. It leaves out errors that are over.
func xids(m *Machine) (found []Finding) {
	gpus, _ := m.NVML()
	seen, asked := m.seenXids()
	for address, counts := range seen {
		gpu, answers := gpus[address]
		findingOf := map[faults.Part]int{}
		for _, xid := range byRank(counts) {
			count := counts[xid]
			unsure := ""
			if answers && works(gpu) && !xid.Note() {
				if gpu.Recovery != "" || noTrace(xid, gpu) {
					continue
				}
				xid.Of = faults.OfUnknown
				unsure = ": the GPU answers, and this driver does not say whether it was reset since"
			}

			what := xid.Name()
			if count > 1 {
				what += fmt.Sprintf(", %d times", count)
			}
			if i, more := findingOf[xid.Of]; more {
				found[i].What += "; " + what
				continue
			}

			findingOf[xid.Of] = len(found)
			now := xid.Under(m.asksNow(gpu))
			found = append(found, Finding{
				Object:  address,
				What:    "GPU " + address + " reported " + what + unsure,
				Part:    string(xid.Of),
				Fix:     now.Action(),
				Command: now.Command(address),
				Note:    xid.Note(),
			})
		}
	}

	for address, gpu := range gpus {
		if gpu.Lost == "" { // no line of the log says that a reset has ended what the driver asked for
			asked[address] = gpu.Recovery
		}
	}

	for address, action := range asked {
		found = append(found, recovery(address, action)...)
	}
	return found
}

// asksNow is the recovery that NVML names for a GPU that answers; "" for another. A driver that
// hangs resets no GPU: nvidia-smi waits for it as NVML does.
func (m *Machine) asksNow(gpu host.GPU) string {
	switch {
	case hangs(m.Facts()):
		return "reboot"
	case gpu.Lost != "":
		return ""
	}
	return gpu.Recovery
}

// byRank sorts errors: the root cause comes first. All numbers that the catalogue does not have are
// of one rank, and so are the sub-codes of a number.
func byRank(counts map[faults.Xid]int) []faults.Xid {
	ranked := slices.Collect(maps.Keys(counts))
	sorting.By(ranked, func(a, b faults.Xid) int {
		return cmp.Or(
			cmp.Compare(a.Rank, b.Rank),
			cmp.Compare(a.Number, b.Number),
			cmp.Compare(a.Means, b.Means),
			cmp.Compare(a.Remedy, b.Remedy),
		)
	})
	return ranked
}

// works reports whether a GPU that answers works again, as far as the driver says.
func works(gpu host.GPU) bool {
	return gpu.Lost == "" && (gpu.Recovery == "" || faults.Recovery(gpu.Recovery).Note())
}

// noTrace reports whether a GPU shows no sign of an error any more. It is for drivers that do not
// say what they ask for.
func noTrace(xid faults.Xid, gpu host.GPU) bool {
	if xid.Of == faults.OfBus {
		return true
	}
	if gpu.RemapWaits || gpu.RemapFails {
		return false
	}

	isRemapping := xid.Number == 63 || xid.Number == 64
	noMemoryErrors := gpu.ECC == "on" && gpu.Uncorrected == 0
	return isRemapping || xid.Of == faults.OfMemory && noMemoryErrors
}

// recovery finds what the driver asks for, in NVML's words. Some GPUs need no reset.
func recovery(address, action string) []Finding {
	xid := faults.Recovery(action)
	if action == "" || xid.Remedy == "nothing" {
		return nil
	}
	return []Finding{{
		Object:  address,
		What:    "the driver asks for a recovery of GPU " + address + ": " + xid.Means,
		Part:    "recovery",
		Fix:     xid.Action(),
		Command: xid.Command(address),
	}}
}

// sxids finds the errors of each NVSwitch, one finding a switch. They are over, and only a note,
// where all GPUs answer, want nothing, and have no link down.
func sxids(m *Machine) (found []Finding) {
	gpus, over := m.NVML()
	for _, gpu := range gpus {
		answers := gpu.Lost == "" && gpu.Recovery == "none"
		connected := len(m.faultyLinks(gpu)) == 0 && gpu.Fabric.Faults == ""
		over = over && answers && connected
	}

	findingOf := map[string]int{}
	for _, line := range m.sinceLoad() {
		address, sxid, ok := faults.ReadSXid(line)
		if !ok {
			continue
		}
		i, more := findingOf[address]
		switch {
		case !more:
			i = len(found)
			findingOf[address] = i
			found = append(found, Finding{
				Object: address,
				What:   "NVSwitch " + address + " reported " + sxid.Name(),
				Note:   true,
			})
		case !strings.Contains(found[i].What, sxid.Name()):
			found[i].What += "; " + sxid.Name()
		}

		finding := &found[i] // a number may be reported as fatal after it was not
		if !over && !sxid.Note() && finding.Note {
			finding.Note = false
			finding.Fix = sxid.Action()
			finding.Command = sxid.Command(address)
		}
	}

	return found
}
