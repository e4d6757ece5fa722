// SPDX-License-Identifier: Apache-2.0

package faults

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Xid is an error that the driver reports with a number: of a GPU, or an SXid of an NVSwitch.
type Xid struct {
	Number            int
	Of                Part
	Means             string // in NVIDIA's words, or the driver's name of it
	Remedy            string // in steps that can be typed; first the drain, where a step interrupts
	Rank              int    // root causes come first
	kind, unit, again string
	sub, status       uint64
}

// Part is what an Xid is about.
type Part string

// Parts that an Xid is about.
const (
	OfBus     Part = "bus"     // the GPU is gone, or does not start
	OfMemory  Part = "memory"  // the ECC counters and the row remapper know of it too
	OfLink    Part = "link"    // NVLink, which has two ends
	OfDevice  Part = "device"  // another part of the GPU
	OfProgram Part = "program" // a fault of a program, or a fault that the driver has handled: the GPU works
	OfUnknown Part = "unknown" // the catalogue does not say, or has no such number
)

// Note says that the error alone is no fault of the machine.
func (x Xid) Note() bool { return x.Of == OfProgram || x.Of == OfUnknown }

//go:embed actions.tsv
var words string

// actions are the words of errors.tsv, as an operator reads them, and what to type: actions.tsv.
var actions = sync.OnceValue(func() map[string][2]string {
	all := map[string][2]string{}
	for line := range strings.Lines(words) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			continue // a comment
		}
		for word, row := range all {
			f[1] = strings.ReplaceAll(f[1], "{"+word+"}", row[0])
		}
		all[f[0]] = [2]string{f[1], f[2]}
	}
	return all
})

// Action is all that the error asks for.
func (x Xid) Action() string {
	text := actions()[x.Remedy][0] + actions()["again "+x.again][0]
	return strings.NewReplacer("{apply}", trouble.Command("apply"), "{off and on}", offAndOn).Replace(text)
}

func (x Xid) String() string { return x.Means + ": " + x.Action() }

// Command is what to type of the action, for a GPU or a switch; "" where the operator has to look
// first.
func (x Xid) Command(address string) string {
	return strings.ReplaceAll(actions()[x.Remedy][1], "GPU", address)
}

// XidCatalogue is where NVIDIA says what an Xid means and what to do.
const XidCatalogue = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

//go:embed errors.tsv
var rows string

var table = sync.OnceValue(func() (all []Xid) {
	for line := range strings.Lines(rows) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		number, err := strconv.Atoi(f[min(1, len(f)-1)])
		if len(f) != 9 || err != nil {
			continue // a comment, or the names of the columns
		}
		sub, _ := strconv.ParseUint(f[3], 10, 64) // "" but of nvlink5
		status, _ := strconv.ParseUint(f[4], 10, 64)
		all = append(all, Xid{number, Part(f[5]), f[8], f[6], len(all), f[0], f[2], f[7], sub, status})
	}
	return all
})

// Xids are the Xids of errors.tsv; root causes come first. docs/doctor.md has the same table: make
// update writes it.
func Xids() []Xid {
	return slices.DeleteFunc(slices.Clone(table()), func(x Xid) bool { return x.kind != "xid" })
}

// How the driver reports an error. The parts of a MIG slice are there since 515.43.04, "PCI:" is
// missing in old drivers, and a GPU that is gone may have no number. krcReportXid in
// src/nvidia/src/kernel/gpu/rc/kernel_rc.c and nvswitch_report_error in src/common/nvswitch of
// https://github.com/NVIDIA/open-gpu-kernel-modules; components/accelerator/nvidia/xid/kmsg.go of
// https://github.com/leptonai/gpud.
var (
	xidLine    = pattern.Of(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F:]+)(?:\.[0-7])?(?: GPU-I:\w+)?(?: GPU-CI:\w+)?\): (\d+)(?:, ?(.*))?`)
	goneLine   = pattern.Of(`NVRM: GPU ([0-9a-fA-F:]+)\.[0-7]: GPU has fallen off the bus`)
	sxidLine   = pattern.Of(`nvidia-nvswitch\d+: SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (?:(Fatal|Non-fatal|Correctable), )?(.*)`)
	linkFields = pattern.Of(`^(\w+) (Fatal|Nonfatal) XC\d i\d Link -?\d+ \(0x([0-9a-fA-F]+) 0x([0-9a-fA-F]+)`)
)

// ReadXid reads a line of the kernel's log: the GPU's address on the PCI bus, and the error. Of 154
// Means has what the driver says.
func ReadXid(line string) (address string, x Xid, ok bool) {
	m := xidLine().FindStringSubmatch(line)
	if m == nil {
		if m = goneLine().FindStringSubmatch(line); m == nil {
			return "", Xid{}, false
		}
		m = append(m, "79", "")
	}
	number, err := strconv.Atoi(m[2])
	x = errorOf("xid", number)
	if number == RecoveryXid {
		x.Means = m[3]
	}
	return strings.ToLower(m[1]) + ".0", x.ofLink(m[3]), err == nil
}

// RecoveryXid reports which recovery the driver asks for.
const RecoveryXid = 154

// Recovery is what a driver asks for, by the name that host.Recovery has for it. A note needs
// neither reset nor reboot.
func Recovery(name string) Xid {
	if i := slices.IndexFunc(table(), func(x Xid) bool { return x.kind == "recovery" && x.unit == name }); i >= 0 {
		return table()[i]
	}
	return Xid{Means: name + ", which this release does not know", Remedy: "recovery"}
}

// ReadSXid reads a line of the kernel's log about an NVSwitch. An error that the driver calls fatal
// is none of a program's.
func ReadSXid(line string) (address string, x Xid, ok bool) {
	m := sxidLine().FindStringSubmatch(line)
	if m == nil {
		return "", Xid{}, false
	}
	number, err := strconv.Atoi(m[2])
	if x = errorOf("sxid", number); m[3] == "Fatal" && x.Note() {
		x.Of, x.Remedy = OfLink, "reset-linked"
	}
	return strings.ToLower(m[1]), x, err == nil
}

func errorOf(kind string, number int) Xid {
	if i := slices.IndexFunc(table(), func(x Xid) bool { return x.kind == kind && x.Number == number }); i >= 0 {
		return table()[i]
	}
	return Xid{Number: number, Of: OfUnknown, Means: "which NVIDIA's catalogue of October 2025 does not have", Remedy: "report", Rank: len(table()), kind: kind}
}

// ofLink goes by the sub-code of an Xid of NVLink 5, or else by what the driver calls it.
func (x Xid) ofLink(says string) Xid {
	m := linkFields().FindStringSubmatch(says)
	if x.Of != OfLink || m == nil {
		return x
	}
	info, _ := strconv.ParseUint(m[3], 16, 64) // hexadecimal digits
	status, _ := strconv.ParseUint(m[4], 16, 64)
	x.Means += " (" + m[1] + ")"
	i := slices.IndexFunc(table(), func(row Xid) bool {
		return row.kind == "nvlink5" && row.Number == x.Number && row.unit == m[1] && row.sub == info>>20&63 && (row.status == status || row.status&status != 0)
	})
	switch {
	case i >= 0:
		x.Of, x.Remedy, x.again = table()[i].Of, table()[i].Remedy, table()[i].again
	case m[2] == "Nonfatal":
		x.Of, x.Remedy, x.again = OfProgram, "nothing", ""
	}
	return x
}

// Name is the error as an operator looks for it: "Xid 79, GPU has fallen off the bus".
func (x Xid) Name() string {
	return fmt.Sprintf("%s %d, %s", map[bool]string{true: "SXid", false: "Xid"}[x.kind == "sxid"], x.Number, x.Means)
}
