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
)

// xidCode is the code of the check of all Xids.
const xidCode = "GPU-011"

// seenXids are the errors in the log, by the GPU's address, with how often each is there, and what
// the driver last asked for.
func (m *Machine) seenXids() (seen map[string]map[faults.Xid]int, asked map[string]string) {
	seen, asked = map[string]map[faults.Xid]int{}, map[string]string{}
	for _, line := range m.sinceLoad() {
		address, x, ok := faults.ReadXid(line)
		switch {
		case !ok:
			continue
		case x.Number == faults.RecoveryXid: // GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
			_, to, _ := strings.Cut(x.Means, ") to 0x")
			to, _, _ = strings.Cut(to, " ")
			if action, err := strconv.ParseUint(to, 16, 32); err == nil {
				asked[address] = host.Recovery(action)
			}
			continue
		case seen[address] == nil:
			seen[address] = map[faults.Xid]int{}
		}
		seen[address][x]++
	}
	return seen, asked
}

// xids finds the Xids of each GPU, one finding for each part: the root cause, which names the
// others. It leaves out what is over.
func xids(m *Machine) (found []Finding) {
	gpus, _ := m.NVML()
	seen, asked := m.seenXids()
	for address, of := range seen {
		g, answers := gpus[address]
		at := map[faults.Part]int{}
		for _, x := range slices.SortedFunc(maps.Keys(of), func(a, b faults.Xid) int { return cmp.Compare(a.Rank, b.Rank) }) {
			over, unsure := answers && over(x, g), ""
			if over && g.Recovery != "" && !x.Note() || over && g.Recovery == "" && clean(x, g) {
				continue
			}
			if over && !x.Note() {
				x.Of, unsure = faults.OfUnknown, ": the GPU answers, and this driver does not say whether it was reset since"
			}
			what := x.Name()
			if n := of[x]; n > 1 {
				what += fmt.Sprintf(", %d times", n)
			}
			if i, more := at[x.Of]; more {
				found[i].What += "; " + what
				continue
			}
			at[x.Of] = len(found)
			found = append(found, Finding{
				Object: address, Part: string(x.Of), What: "GPU " + address + " reported " + what + unsure, Fix: x.Action(),
				Command: x.Command(address), Note: x.Note(),
			})
		}
	}
	for address, g := range gpus {
		if g.Lost == "" { // no line of the log says that a reset has ended what the driver asked for
			asked[address] = g.Recovery
		}
	}
	for address, what := range asked {
		found = append(found, recovery(address, what)...)
	}
	return found
}

// over says whether a GPU that answers works again, as far as the driver says.
func over(x faults.Xid, g host.GPU) bool {
	return g.Lost == "" && !x.Note() && (g.Recovery == "" || faults.Recovery(g.Recovery).Note())
}

// clean says whether a GPU of a driver that does not say what it asks for shows no sign of the
// error any more.
func clean(x faults.Xid, g host.GPU) bool {
	rows := !g.RemapWaits && !g.RemapFails
	return x.Of == faults.OfBus || (x.Number == 63 || x.Number == 64) && rows || x.Of == faults.OfMemory && g.ECC == "on" && g.Uncorrected == 0 && rows
}

// recovery is what the driver asks for, in NVML's words. Some ask for no reset.
func recovery(address, asked string) []Finding {
	x := faults.Recovery(asked)
	if asked == "" || x.Remedy == "nothing" {
		return nil
	}
	return []Finding{{Object: address, Part: "recovery", What: "of GPU " + address + " the driver asks for: " + x.Means, Fix: x.Action(), Command: x.Command(address)}}
}

// sxids finds the errors of each NVSwitch, one finding a switch. Where all GPUs answer, want
// nothing, and no link is down, they are over.
func sxids(m *Machine) (found []Finding) {
	gpus, answers := m.NVML()
	for _, g := range gpus {
		answers = answers && g.Lost == "" && g.Recovery == "none" && len(m.down(g)) == 0 && g.Fabric.Faults == ""
	}
	at := map[string]int{}
	for _, line := range m.sinceLoad() {
		address, x, ok := faults.ReadSXid(line)
		i, more := at[address]
		if !ok || more && strings.Contains(found[i].What, x.Name()) {
			continue
		}
		if !more {
			i = len(found)
			at[address] = i
			found = append(found, Finding{Object: address, What: "NVSwitch " + address + " reported ", Note: true})
		}
		f := &found[i]
		if !strings.HasSuffix(f.What, " reported ") {
			f.What += "; "
		}
		f.What += x.Name()
		if !x.Note() && !answers && f.Note {
			f.Note, f.Fix, f.Command = false, x.Action(), x.Command(address)
		}
	}
	return found
}
