// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
)

// xid is an error that the driver reports of a GPU, and what it says beside its meaning and action in things.Xids.
type xid struct {
	number  int
	reset   bool  // a reset of the GPU is the action
	memory  bool  // an error of GPU memory, which the ECC counters and the row remapper know of, too
	program bool  // a program's fault: a note, unless another Xid brought it
	after   []int // Xids of the same GPU that bring it with them
}

// xids are those of things.Xids, the root causes first.
func xids() []xid {
	broken := []int{48, 62, 79, 94, 95, 109, 119, 120, 140, 143, 158}
	return []xid{
		{number: 79},
		{number: 143, reset: true},
		{number: 48, reset: true, memory: true},
		{number: 95, reset: true, memory: true, after: []int{48}},
		{number: 140, reset: true, memory: true},
		{number: 94, reset: true, memory: true, after: []int{48, 95}},
		{number: 64, reset: true, memory: true, after: []int{48, 94, 95}},
		{number: 63, reset: true, memory: true, after: []int{48, 94, 95}},
		{number: 119, reset: true, after: []int{62, 79, 120}},
		{number: 120, reset: true, after: []int{79}},
		{number: 61, after: []int{79}},
		{number: 62, reset: true, after: []int{79}},
		{number: 109, reset: true, after: []int{62, 79, 119, 120}},
		{number: 110, reset: true},
		{number: 136, reset: true},
		{number: 158, reset: true, after: []int{79}},
		{number: 74, reset: true, after: []int{79, 95}},
		{number: 149, reset: true},
		{number: 92, program: true, memory: true},
		{number: 13, program: true, after: broken},
		{number: 31, program: true, after: broken},
		{number: 43, program: true, after: append(slices.Clone(broken), 13, 31)},
		{number: 45, program: true, after: append(slices.Clone(broken), 13, 31, 43, 74)},
	}
}

func (x xid) known() things.Xid { return things.Xids()[strconv.Itoa(x.number)] }

func (x xid) code() string { return fmt.Sprintf("XID-%03d", x.number) }

func xidChecks() (all []Check) {
	for _, x := range xids() {
		c := Check{
			Code: x.code(), Title: "Xid " + strconv.Itoa(x.number) + ": " + x.known().Means,
			Reads: "the kernel log since the module was last loaded", Meaning: "the driver reported an error of this GPU; programs on it failed",
			Fix: x.known().Action, Interrupts: "programs on this GPU, and on those that NVLink joins it with", Note: x.program,
			Find: x.find, Sources: []string{things.XidCatalogue, "https://github.com/leptonai/gpud (catalog_generated.go)"},
		}
		if x.program {
			c.Meaning, c.Interrupts = "a program on this GPU failed; the GPU itself works", "the program"
		}
		all = append(all, c)
	}
	return append(all, Check{
		Code: "XID-154", Title: "the driver asks for a recovery of a GPU",
		Reads: "the kernel log: GPU recovery action changed", Meaning: "the GPU cannot be used until that is done",
		Fix: "do what the driver asks for", Interrupts: "programs on this GPU; by a reboot the node", Find: recovery,
		Sources: []string{things.XidCatalogue, "https://github.com/NVIDIA/open-gpu-kernel-modules/discussions/1496"},
	})
}

func xidEdges() (all []Edge) {
	for _, x := range xids() {
		for _, by := range x.after {
			all = append(all, Edge{By: xid{number: by}.code(), Explains: x.code(), Of: sameObject})
		}
		if !x.program {
			all = append(all, Edge{By: x.code(), Explains: "XID-154", Of: sameObject})
		}
		if x.memory && !x.program {
			all = append(all, Edge{By: x.code(), Explains: "GPU-005", Of: sameObject})
		}
		if x.number == 79 || x.number == 143 {
			for _, code := range []string{"GPU-002", "GPU-003", "DRV-017"} {
				all = append(all, Edge{By: x.code(), Explains: code, Of: sameObject})
			}
			all = append(all, Edge{By: x.code(), Explains: "DRV-015"})
		}
	}
	for _, code := range []string{"XID-154", "GPU-003"} { // a link has two ends: the GPU that is gone is another one
		all = append(all, Edge{By: "GPU-001", Explains: code, Of: sameObject})
	}
	all = append(all, Edge{By: "XID-154", Explains: "GPU-003", Of: sameObject}, Edge{By: "GPU-001", Explains: "XID-074"})
	return all
}

// xidLine is how the driver reports one: NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.
// Sources: https://docs.nvidia.com/deploy/xid-errors; nvErrorLog in https://github.com/NVIDIA/open-gpu-kernel-modules.
var xidLine = pattern.Of(`NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?:\.[0-7])?\): (\d+), ?(.*)`)

// seen are the lines of an Xid, by the GPU's address.
func (m *Machine) seenXids(number int) map[string][]string {
	found := map[string][]string{}
	for _, line := range m.sinceLoad() {
		if x := xidLine().FindStringSubmatch(line); x != nil && x[2] == strconv.Itoa(number) {
			address := strings.ToLower(x[1]) + ".0"
			found[address] = append(found[address], x[3])
		}
	}
	return found
}

// find leaves out what is over: the log keeps the words of a GPU that was reset since.
func (x xid) find(m *Machine) (found []Finding) {
	gpus, answers := m.NVML()
	for address, lines := range m.seenXids(x.number) {
		g, there := gpus[address]
		if answers && there && x.over(g) {
			continue
		}
		f := Finding{Object: address, What: fmt.Sprintf("GPU %s reported Xid %d, %s", address, x.number, x.known().Means)}
		if n := len(lines); n > 1 {
			f.What += fmt.Sprintf(", %d times", n)
		}
		switch {
		case x.reset:
			f.Command = resetCommand(host.GPU{Address: address})
		case x.number == 79:
			f.Command = "sudo reboot"
		case !x.program:
			f.Command = "sudo nvidia-bug-report.sh"
		}
		found = append(found, f)
	}
	return found
}

// over says whether a GPU has no sign of the error any more.
func (x xid) over(g host.GPU) bool {
	switch {
	case g.Lost != "":
		return false
	case x.number == 79 || x.number == 143:
		return true
	case x.number == 63 || x.number == 64:
		return !g.RemapWaits && !g.RemapFails
	case x.memory && g.ECC == "on" && !x.program:
		return g.Uncorrected == 0 && !g.RemapWaits && !g.RemapFails
	}
	return false
}

// recovery reads the driver's last word on each GPU: 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required).
func recovery(m *Machine) (found []Finding) {
	for address, lines := range m.seenXids(154) {
		last := lines[len(lines)-1]
		_, to, ok := strings.Cut(last, ") to 0x")
		_, action, opened := strings.Cut(to, "(")
		action, _, closed := strings.Cut(action, ")")
		if !ok || !opened || !closed || action == "None" {
			continue
		}
		f := Finding{Object: address, What: "of GPU " + address + " the driver asks for: " + action, Command: resetCommand(host.GPU{Address: address})}
		if strings.Contains(action, "Reboot") {
			f.Command = "reboot"
		}
		found = append(found, f)
	}
	return found
}
