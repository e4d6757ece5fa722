// SPDX-License-Identifier: Apache-2.0

// Package gputable knows NVIDIA's GPUs by their PCI device id. It is the one table of GPU models:
// facts, drivers, mig and the tests' GPUs read it, and gpus.tsv says what its columns mean.
package gputable

import (
	_ "embed"
	"strings"
	"sync"
)

// GPU is a row of gpus.tsv. A column that says "-" is "".
type GPU struct {
	ID      string // PCI device id, lower case: 2330
	Name    string // for users: H100 80GB; "" if only its boards have names, or none is known
	Boards  []Board
	Product string // for messages about drivers: H100 SXM

	Arch     string // of drivers/catalog/gpus.toml: hopper; "" for an NVSwitch
	Coherent bool   // CPU and GPU have one memory
	Arm      bool   // on one board with an Arm processor of NVIDIA's
	Fabric   string // hgx, nvlink5, rack
	MIG      string // name of its MIG table, H100-80GB, or of the reason why there is none

	Recorded Recorded
	Source   Source
}

// Board is a name by the PCI subsystem.
type Board struct {
	Subsystem string // 10de:14a9
	Name      string // A16
}

// Recorded is what nvidia-smi printed of a board; zero if no output was recorded.
type Recorded struct {
	Name       string // NVML's: NVIDIA H100 80GB HBM3
	Subsystem  string // 10de:16c1
	MiB        string // memory
	Capability string // CUDA compute capability: 9.0
}

// Source says where a row's facts come from and how far to trust them.
type Source struct {
	Checked    string
	Confidence string
	Date       string
	Origin     string
}

//go:embed gpus.tsv
var text string

// columns is how many columns a row has.
const columns = 17

// All are the rows of the table, in its order. Callers share them and must not write to them.
var All = sync.OnceValue(func() []GPU {
	var all []GPU
	for _, fields := range Rows("gpus.tsv", text, columns) {
		all = append(all, parse(fields))
	}

	return all
})

// parse reads the fields of a row.
func parse(fields []string) GPU {
	g := GPU{
		ID:       fields[0],
		Name:     fields[1],
		Product:  fields[3],
		Arch:     fields[4],
		Coherent: fields[5] == "yes",
		Arm:      fields[6] == "yes",
		Fabric:   fields[7],
		MIG:      fields[8],
		Recorded: Recorded{
			Name:       fields[9],
			Subsystem:  fields[10],
			MiB:        fields[11],
			Capability: fields[12],
		},
		Source: Source{
			Checked:    fields[13],
			Confidence: fields[14],
			Date:       fields[15],
			Origin:     fields[16],
		},
	}
	if fields[2] == "" {
		return g
	}

	for _, board := range strings.Split(fields[2], ", ") {
		subsystem, name, _ := strings.Cut(board, "=")
		g.Boards = append(g.Boards, Board{subsystem, name})
	}

	return g
}

// Of returns the row of a PCI device id in lower case; nil if the table has none.
func Of(id string) *GPU {
	all := All()
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}

	return nil
}

// Switch reports whether the row is of an NVSwitch.
func (g GPU) Switch() bool { return g.Arch == "" }

// NameOf returns the name of a board of this GPU.
func (g GPU) NameOf(subsystem string) string {
	for _, board := range g.Boards {
		if board.Subsystem == subsystem {
			return board.Name
		}
	}
	return g.Name
}

// Device is the id as NVML writes it: 0x233010DE.
func (g GPU) Device() string { return "0x" + strings.ToUpper(g.ID) + "10DE" }

// NVMLArch is the architecture as host.GPU names it: to NVML a variant is its family.
func (g GPU) NVMLArch() string {
	switch g.Arch {
	case "ada":
		return "ada-lovelace"
	case "grace-hopper":
		return "hopper"
	case "blackwell-ultra":
		return "blackwell"
	}
	return g.Arch
}
