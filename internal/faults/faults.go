// SPDX-License-Identifier: Apache-2.0

// Package faults is the one table of faults and what to do about each: doctor's checks, and lines
// of the kernel's log, Xids among them.
package faults

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Check is a row of checks.toml: a fault that doctor looks for.
type Check struct {
	Code  string // DRV-001; it never gets another meaning
	Title string // the fault, in a few words

	Reads      string // which files and answers doctor reads
	Meaning    string // what the fault does to the node
	Fix        string // what to do, in one sentence
	Command    string // what to type; "" where a finding has its own, or where nothing can be typed
	Interrupts string // what the fix interrupts
	NoRepair   string `toml:"no_repair"` // why gpuadm repair cannot fix it; "" where it can
	Sources    []string
}

//go:embed checks.toml
var checkRows string

var command = pattern.Of(`\{gpuadm ([^}]*)\}`)

// Checks are the rows of checks.toml.
var Checks = sync.OnceValue(func() []Check {
	text := command().ReplaceAllStringFunc(checkRows, func(c string) string { return trouble.Command(strings.TrimSuffix(c[len("{gpuadm "):], "}")) })
	var table struct{ Check []Check }
	if err := toml.NewDecoder(strings.NewReader(strings.ReplaceAll(text, "{off and on}", offAndOn))).DisallowUnknownFields().Decode(&table); err != nil {
		panic("internal error: checks.toml: " + err.Error()) // it is a part of this program
	}
	return table.Check
})

// Fault is a fault that errors name. Apply, preflight and doctor advise its Fix. Of a GPU it may
// show in the kernel's log.
type Fault struct {
	Code  string   // of doctor's check
	Says  []string // what a line of the kernel's log has of it
	Means string

	Fix, Command string
}

// offAndOn power cycles a GPU.
const offAndOn = "power the machine off and on, which a reboot does not do (in a cloud: stop the instance and start it, which loses what is on its local disks)"

// logged are the faults without a number, the more special first: what the driver says when it does
// not start a GPU.
// Source: kernel-open and src/nvidia in https://github.com/NVIDIA/open-gpu-kernel-modules; its
// issues 789, 943, 1104.
func logged() []Fault {
	return []Fault{
		{Code: "GPU-001", Says: []string{"fallen off the bus"}, Means: "a GPU does not answer on the PCI bus"},
		{
			Code: "DRV-008", Means: "a GPU needs the other kind of modules",
			Says: []string{"is not supported by open", "requires use of the NVIDIA open kernel modules", "require use of the NVIDIA open kernel modules"},
		},
		{
			Code: "DRV-009", Means: "the firmware of the GPU's own processor (GSP) could not be started",
			Says: []string{"Direct firmware load for nvidia/", "GSP firmware", "kgspBootstrap"},
		},
		{Code: "DRV-014", Says: []string{"API mismatch"}, Means: "a program has libraries of another version than the module that is loaded"},
		{
			Code: "DRV-016", Says: []string{"This PCI I/O region assigned to your NVIDIA device is invalid"},
			Means: "the firmware of the machine gave a GPU no room for its memory",
		},
		{
			Code: "DRV-006", Says: []string{"The NVIDIA probe routine was not called"},
			Means: "another driver has the GPUs: nouveau, vfio-pci, or an older module nvidia",
		},
		{Code: "DRV-017", Says: []string{"RmInitAdapter failed", "rm_init_adapter failed"}, Means: "the driver could not start a GPU"},
	}
}

// Of is the fault of a code of doctor's; the zero Fault if the table has none.
func Of(code string) (f Fault) {
	if i := slices.IndexFunc(logged(), func(f Fault) bool { return f.Code == code }); i >= 0 {
		f = logged()[i]
	}
	if i := slices.IndexFunc(Checks(), func(c Check) bool { return c.Code == code }); i >= 0 {
		f.Code, f.Fix, f.Command = code, Checks()[i].Fix, Checks()[i].Command
	}
	return f
}

// In says whether a line of the kernel's log has the fault.
func (f Fault) In(line string) bool {
	return slices.ContainsFunc(f.Says, func(text string) bool { return strings.Contains(line, text) })
}

// KernelWords are the kernel's last three lines about NVIDIA's modules, after the meanings that
// gpuadm knows.
func KernelWords(ctx context.Context, v host.View) []string {
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

// KernelSays is what the kernel's last lines about NVIDIA's modules mean, as far as that is known;
// "" if it is not.
func KernelSays(ctx context.Context, v host.View) string {
	words := KernelWords(ctx, v)
	if len(words) == 0 || !strings.HasPrefix(words[0], kernelMeans) {
		return ""
	}
	return words[0]
}

const kernelMeans = "the kernel's log: "

// Meanings says what lines of the kernel's log mean, the latest first, each meaning once, three at
// most.
func Meanings(lines []string) (found []string) {
	const most = 3
	for _, line := range slices.Backward(lines) {
		means := ""
		if address, x, ok := ReadXid(line); ok && strings.Contains(line, "Xid (") {
			if x.Of != OfUnknown {
				means = fmt.Sprintf("Xid %d of GPU %s: %s", x.Number, address, x)
			}
		} else if i := slices.IndexFunc(logged(), func(f Fault) bool { return f.In(line) }); i >= 0 {
			f := Of(logged()[i].Code)
			means = f.Means + ": " + f.Fix
		}
		if means = kernelMeans + means; means != kernelMeans && !slices.Contains(found, means) && len(found) < most {
			found = append(found, means)
		}
	}
	return found
}
