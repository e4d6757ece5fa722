// SPDX-License-Identifier: Apache-2.0

// Package faults is the one table of faults and what to do about each: doctor's checks, and lines
// of the kernel's log, Xids among them.
package faults

import (
	_ "embed"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Check is a row of checks.toml: a fault that doctor looks for.
type Check struct {
	Code     string // DRV-001; it never gets another meaning
	Title    string // the fault, in a few words
	Severity string // what the fault takes: down, part or risk

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
	text := command().ReplaceAllStringFunc(checkRows, func(match string) string {
		verb := strings.TrimSuffix(match[len("{gpuadm "):], "}")
		return trouble.Command(verb)
	})
	text = strings.ReplaceAll(text, "{off and on}", offAndOn)

	var table struct{ Check []Check }
	d := toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields()
	if err := d.Decode(&table); err != nil {
		panic("internal error: checks.toml: " + err.Error()) // it is a part of this program
	}

	return table.Check
})

// Fault is a fault that errors name. Apply, preflight and doctor advise its Fix. A fault of a GPU
// may show in the kernel's log.
type Fault struct {
	Code  string   // of doctor's check
	Says  []string // texts in a line of the kernel's log: one of them shows the fault
	Means string

	Fix     string
	Command string
}

// offAndOn power cycles a GPU.
const offAndOn = "power the machine off and on, which a reboot does not do (in a cloud: stop the instance and start it, which loses what is on its local disks)"

// Of is the fault of a code of doctor's; the zero Fault if the table has none.
func Of(code string) Fault {
	var f Fault
	if i := slices.IndexFunc(logged(), func(f Fault) bool { return f.Code == code }); i >= 0 {
		f = logged()[i]
	}
	if i := slices.IndexFunc(Checks(), func(c Check) bool { return c.Code == code }); i >= 0 {
		check := Checks()[i]
		f.Code = code
		f.Fix = check.Fix
		f.Command = check.Command
	}

	return f
}

// In reports whether a line of the kernel's log shows the fault.
func (f Fault) In(line string) bool {
	return slices.ContainsFunc(f.Says, func(text string) bool {
		return strings.Contains(line, text)
	})
}
