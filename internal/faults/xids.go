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
	Number int
	Of     Part
	Means  string // in NVIDIA's words, or the driver's name of it
	Remedy string // in steps that can be typed; first the drain, where a step interrupts
	Rank   int    // root causes come first

	kind  string // xid, sxid, nvlink5, recovery
	unit  string // of NVLink 5; the name of a recovery
	again string // what to do when the error comes again

	// The sub-code of NVLink 5, and the bits of its status; 0 for all others.
	sub    uint64
	status uint64
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

// Note reports whether the error alone is not a fault of the machine.
func (x Xid) Note() bool { return x.Of == OfProgram || x.Of == OfUnknown }

//go:embed actions.tsv
var actionRows string

// action is a row of actions.tsv: a word of errors.tsv, as an operator reads it, and what to type.
type action struct {
	text    string
	command string
}

// actions are the rows of actions.tsv, by their word. A row may use the rows above it: {word}.
var actions = sync.OnceValue(func() map[string]action {
	all := map[string]action{}
	for line := range strings.Lines(actionRows) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 {
			continue // a comment
		}
		text := fields[1]
		for word, above := range all {
			text = strings.ReplaceAll(text, "{"+word+"}", above.text)
		}
		all[fields[0]] = action{text, fields[2]}
	}

	return all
})

// Action is all that the error asks for.
func (x Xid) Action() string {
	text := actions()[x.Remedy].text + actions()["again "+x.again].text
	return strings.NewReplacer("{apply}", trouble.Command("apply"), "{off and on}", offAndOn).Replace(text)
}

// Under is the error of a GPU for which the driver asks for a recovery now: what the driver asks
// for replaces another reset or reboot that the error's row names.
func (x Xid) Under(recovery string) Xid {
	asked := Recovery(recovery)
	if recovery != "" && interrupts(x.Remedy) && interrupts(asked.Remedy) {
		x.Remedy = asked.Remedy
	}
	return x
}

// interrupts reports whether a remedy resets GPUs or restarts the machine.
func interrupts(remedy string) bool {
	switch remedy {
	case "reset", "reset-linked", "idle-reset", "bus-reset", "reboot", "power":
		return true
	}
	return false
}

func (x Xid) String() string { return x.Means + ": " + x.Action() }

// Command is what to type of the action, for a GPU or a switch; "" where the operator has to look
// first.
func (x Xid) Command(address string) string {
	return strings.ReplaceAll(actions()[x.Remedy].command, "GPU", address)
}

// Name is the error as an operator looks for it: "Xid 79, GPU has fallen off the bus".
func (x Xid) Name() string {
	kind := "Xid"
	if x.kind == "sxid" {
		kind = "SXid"
	}
	return fmt.Sprintf("%s %d, %s", kind, x.Number, x.Means)
}

// XidCatalogue is where NVIDIA says what an Xid means and what to do.
const XidCatalogue = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

//go:embed errors.tsv
var errorRows string

// table is errors.tsv.
var table = sync.OnceValue(func() []Xid {
	var all []Xid
	for line := range strings.Lines(errorRows) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 9 {
			continue // a comment
		}
		number, err := strconv.Atoi(fields[1])
		if err != nil {
			continue // the names of the columns
		}

		x := Xid{
			kind:   fields[0],
			Number: number,
			unit:   fields[2],
			Of:     Part(fields[5]),
			Remedy: fields[6],
			again:  fields[7],
			Means:  fields[8],
			Rank:   len(all),
		}
		x.sub, _ = strconv.ParseUint(fields[3], 10, 64) // "" but of nvlink5
		x.status, _ = strconv.ParseUint(fields[4], 10, 64)
		all = append(all, x)
	}

	return all
})

// Xids are the Xids of errors.tsv; root causes come first. docs/doctor.md has the same table: make
// update writes it.
func Xids() []Xid {
	return slices.DeleteFunc(slices.Clone(table()), func(x Xid) bool {
		return x.kind != "xid"
	})
}

// find returns the first row for which is holds.
func find(is func(Xid) bool) (Xid, bool) {
	i := slices.IndexFunc(table(), is)
	if i < 0 {
		return Xid{}, false
	}
	return table()[i], true
}

func errorOf(kind string, number int) Xid {
	x, known := find(func(x Xid) bool { return x.kind == kind && x.Number == number })
	if known {
		return x
	}

	return Xid{
		Number: number,
		Of:     OfUnknown,
		Means:  "which NVIDIA's catalogue of October 2025 does not have",
		Remedy: "report",
		Rank:   len(table()),
		kind:   kind,
	}
}

// Recovery is what a driver asks for, by the name that host.Recovery has for it. A note needs
// neither reset nor reboot.
func Recovery(name string) Xid {
	x, known := find(func(x Xid) bool { return x.kind == "recovery" && x.unit == name })
	if known {
		return x
	}
	return Xid{Means: name + ", which this release does not know", Remedy: "recovery"}
}

// How the driver reports an error. The parts of a MIG slice exist since 515.43.04, "PCI:" is
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

// InJournal is the pattern by which journalctl finds the driver's errors, and when it was
// loaded. It has capitals: journalctl(1), --case-sensitive. Each line of the patterns above has
// one of the texts.
const InJournal = `NVRM: Xid|SXid|fallen off the bus|NVRM: loading NVIDIA UNIX`

var inJournal = pattern.Of(`NVRM: Xid|SXid|fallen off the bus|NVRM: loading NVIDIA UNIX`)

// IsInJournal reports whether InJournal finds a line.
func IsInJournal(line string) bool { return inJournal().MatchString(line) }

// RecoveryXid reports which recovery the driver asks for.
const RecoveryXid = 154

// busXid reports a GPU that has fallen off the bus.
const busXid = "79"

// ReadXid reads a line of the kernel's log: the GPU's address on the PCI bus, and the error. For
// RecoveryXid, Means is what the driver says.
func ReadXid(line string) (address string, x Xid, ok bool) {
	m := xidLine().FindStringSubmatch(line)
	if m == nil {
		m = goneLine().FindStringSubmatch(line)
		if m == nil {
			return "", Xid{}, false
		}
		m = append(m, busXid, "")
	}

	number, err := strconv.Atoi(m[2])
	says := m[3]
	x = errorOf("xid", number)
	if number == RecoveryXid {
		x.Means = says
	}

	return strings.ToLower(m[1]) + ".0", x.ofLink(says), err == nil
}

// ReadSXid reads a line of the kernel's log about an NVSwitch. An error that the driver calls fatal
// is never a program's.
func ReadSXid(line string) (address string, x Xid, ok bool) {
	m := sxidLine().FindStringSubmatch(line)
	if m == nil {
		return "", Xid{}, false
	}

	number, err := strconv.Atoi(m[2])
	x = errorOf("sxid", number)
	if m[3] == "Fatal" && x.Note() {
		x.Of = OfLink
		x.Remedy = "reset-linked"
	}

	return strings.ToLower(m[1]), x, err == nil
}

// ofLink goes by the sub-code of an Xid of NVLink 5, or else by what the driver calls it.
func (x Xid) ofLink(says string) Xid {
	m := linkFields().FindStringSubmatch(says)
	if x.Of != OfLink || m == nil {
		return x
	}

	unit := m[1]
	info, _ := strconv.ParseUint(m[3], 16, 64) // hexadecimal digits
	status, _ := strconv.ParseUint(m[4], 16, 64)
	sub := info >> 20 & 63
	x.Means += " (" + unit + ")"
	row, known := find(func(row Xid) bool {
		sameError := row.kind == "nvlink5" && row.Number == x.Number && row.unit == unit && row.sub == sub
		return sameError && (row.status == status || row.status&status != 0)
	})
	switch {
	case known:
		x.Of = row.Of
		x.Remedy = row.Remedy
		x.again = row.again
	case m[2] == "Nonfatal":
		x.Of = OfProgram
		x.Remedy = "nothing"
		x.again = ""
	}

	return x
}
