// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"slices"
	"strings"
)

// Edge says that one fault brings another one with it.
type Edge struct {
	By, Explains string // codes, with the part of the finding where it has one
	Of           scope
}

// scope says of which objects an Edge speaks.
type scope string

const (
	anyObject  scope = ""     // a fault of the machine, or of what all objects need
	sameObject scope = "same" // a fault of a GPU explains that of the same GPU only
)

// edges makes one Edge for each pair: every code in By explains every code in Explains.
func edges() []Edge {
	const (
		driverDaemons = "FAB-001 FAB-002 FAB-003 GPU-010"
		brokenGPU     = "GPU-011/bus GPU-011/memory GPU-011/device GPU-011/link" // Xids that are no program's
	)
	return []Edge{
		{By: "SYS-001 SYS-002 SYS-006", Explains: "PKG-001 PKG-002 PKG-003 PKG-004 DRV-002"},
		{By: "SYS-006", Explains: "SYS-001"},
		{By: "SYS-005", Explains: "SYS-004"},
		{By: "SYS-001", Explains: "RUN-005 KUB-001"},
		{By: "SYS-008", Explains: "RUN-005 RUN-013 KUB-001 KUB-004 KUB-010 KUB-016"},

		{By: "PKG-004", Explains: "PKG-001 PKG-002 PKG-003"},
		{By: "PKG-001", Explains: "PKG-003 DRV-001"},
		{By: "PKG-003", Explains: "DRV-014 FAB-001"},

		{By: "DRV-003", Explains: "DRV-002 DRV-001 PKG-001"},
		{By: "DRV-002", Explains: "DRV-001 PKG-001"},
		{By: "DRV-016", Explains: "DRV-017", Of: sameObject},
		{By: "DRV-008 DRV-009", Explains: "DRV-017 GPU-002"},
		{By: "DRV-014", Explains: "DRV-013"},
		{By: "DRV-006 DRV-016 DRV-017", Explains: "GPU-002", Of: sameObject},
		{By: "DRV-007", Explains: "DRV-006"}, // nouveau takes what the refused module leaves
		{By: "DRV-004 DRV-006 DRV-007 DRV-018", Explains: "DRV-005 DRV-015"},
		{By: "DRV-008 DRV-009 DRV-010 DRV-013 DRV-014 DRV-016 DRV-017", Explains: "DRV-015"},
		// The module of the wrong kind takes no GPU and is not loaded: https://github.com/negativo17/nvidia-driver/issues/158.
		{By: "DRV-008", Explains: "DRV-005"},
		{By: "DRV-001 DRV-005 DRV-008 DRV-009 DRV-013 DRV-015 DRV-019", Explains: driverDaemons},
		{By: "DRV-014", Explains: "FAB-002 FAB-003 GPU-010"},
		// The plugin ends where no driver answers.
		{By: "DRV-001 DRV-005 DRV-006 DRV-007 DRV-013 DRV-014 DRV-015 DRV-017 DRV-019", Explains: "KUB-004"},

		{By: "GPU-001", Explains: "GPU-003 GPU-002 DRV-017 GPU-011/program GPU-011/unknown GPU-011/recovery " + brokenGPU, Of: sameObject},
		{By: "GPU-001", Explains: "DRV-015 GPU-011/link"}, // a link has two ends: the GPU that is gone is another one
		{By: "GPU-003", Explains: "GPU-002", Of: sameObject},
		{By: "GPU-006 GPU-007", Explains: "GPU-005 GPU-011/memory", Of: sameObject},
		{By: "FAB-001 FAB-004", Explains: "FAB-002 FAB-003"},
		{By: "FAB-002", Explains: "FAB-003"},
		{By: "FAB-005", Explains: "GPU-011/link GPU-015 FAB-003"}, // a switch has links to all GPUs
		{By: "GPU-001 GPU-003 GPU-011/link GPU-011/bus FAB-002", Explains: "GPU-015"},
		{By: "GPU-008 GPU-009", Explains: "GPU-013", Of: sameObject},

		{By: brokenGPU, Explains: "GPU-011/program GPU-011/unknown GPU-011/recovery", Of: sameObject},
		{By: "GPU-011/bus", Explains: "GPU-002 GPU-003 DRV-017 GPU-011/memory GPU-011/device GPU-011/link", Of: sameObject},
		{By: "GPU-011/bus", Explains: "DRV-015"},
		{By: "GPU-001 " + brokenGPU, Explains: "DRV-019"},
		{By: "GPU-011/memory", Explains: "GPU-005 GPU-011/link", Of: sameObject},
		{By: "GPU-011/recovery", Explains: "GPU-003", Of: sameObject},

		{By: "MIG-002", Explains: "MIG-001 MIG-003", Of: sameObject},
		{By: "MIG-003", Explains: "MIG-001", Of: sameObject},
		{By: "MIG-002", Explains: "CDI-001"},

		{By: "RUN-003", Explains: "RUN-002"}, // a restart would stop the engine
		{By: "RUN-003", Explains: "RUN-005"},
		{By: "RUN-003", Explains: "KUB-001"}, // kubelet ends where the engine serves no pods: https://github.com/containerd/containerd/issues/4581
		{By: "RUN-001", Explains: "RUN-002"}, // adding the handler restarts it
		{By: "RUN-005", Explains: "KUB-001"},
		{By: "RUN-008", Explains: "RUN-007"},                         // while no container starts, none lacks a device
		{By: "RUN-004 RUN-004/default RUN-001", Explains: "KUB-004"}, // the device plugin's pod needs the handler
		{By: "RUN-004/default", Explains: "KUB-013 KUB-016"},         // the pod of the network add-on does not start either
		{By: "RUN-009", Explains: "KUB-004 KUB-009 KUB-010"},         // its log shows that no taint kept it away

		{By: "KUB-002", Explains: "KUB-001 KUB-007"},                         // its fix restarts kubelet
		{By: "RUN-002", Explains: "KUB-007", Of: sameObject},                 // of K3s and RKE2 kubelet and engine are one unit
		{By: "KUB-006 KUB-012 KUB-015 KUB-020", Explains: "KUB-001 KUB-007"}, // a restart would end kubelet
		{By: "KUB-005", Explains: "KUB-001 KUB-004"},
		{By: "KUB-001", Explains: "KUB-004"},
		{By: "KUB-013", Explains: "KUB-004 KUB-009"}, // the taint is the cluster's, for a node that is not ready
		{By: "KUB-009", Explains: "KUB-004"},
		{By: "RUN-003 RUN-005 RUN-013 KUB-001 KUB-005 KUB-013 SYS-001 SYS-002 SYS-006", Explains: "KUB-016"},
		{By: "RUN-003 RUN-005", Explains: "RUN-013"},
		{By: "RUN-013", Explains: "KUB-001 KUB-004 KUB-013 RUN-002"}, // a restart ends what still serves
		{By: "KUB-016", Explains: "KUB-004 KUB-009"},
		{By: "GPU-001 GPU-011/bus DRV-019", Explains: "CDI-001"},
		{By: "CDI-001", Explains: "RUN-012"},                                                 // the runtime has no spec to inject by
		{By: "SYS-003 SYS-007", Explains: "SYS-004 KUB-001 KUB-005 KUB-016 KUB-017 KUB-018"}, // by a wrong clock a certificate is not yet valid, or no longer
		{By: "KUB-017 KUB-018", Explains: "KUB-001 KUB-004 KUB-008 KUB-016"},
		// The plugin does not offer what does not work, but for an Xid of a program's.
		{By: "GPU-001 GPU-002 GPU-003 GPU-005 GPU-006 GPU-007 GPU-011/recovery " + brokenGPU, Explains: "KUB-010"},
		{By: "RUN-001 RUN-002 RUN-004 RUN-004/default FAB-001 FAB-002 FAB-003 MIG-001 MIG-002 MIG-003 KUB-003", Explains: "KUB-010"},
	}
}

// Edges lists which fault explains which. What holds of a kubelet or an engine that does not run holds of one that ends again and again.
func Edges() (all []Edge) {
	for _, row := range edges() {
		for by := range strings.FieldsSeq(row.By) {
			for explains := range strings.FieldsSeq(row.Explains) {
				all = append(all, Edge{by, explains, row.Of})
			}
		}
	}
	for _, codes := range [][2]string{{"KUB-001", "KUB-014"}, {"RUN-005", "RUN-010"}} {
		stopped, ending := codes[0], codes[1]
		for _, e := range all { // also those that the first pair has added
			if e.Explains == stopped {
				all = append(all, Edge{e.By, ending, e.Of})
			}
			if e.By == stopped {
				all = append(all, Edge{ending, e.Explains, e.Of})
			}
		}
	}
	return all
}

// fault is a finding and its check.
type fault struct {
	check Check
	Finding
}

// code is what an Edge calls the fault: its check's code, with the part that the finding is about.
func (f fault) code() string { return strings.TrimSuffix(f.check.Code+"/"+f.Part, "/") }

func (f fault) found() Found { return Found{f.check.Code, f.Object, f.What} }

// explains says whether one edge leads from a fault to another.
func (f fault) explains(o fault, edges []Edge) bool {
	return slices.ContainsFunc(edges, func(e Edge) bool {
		return e.By == f.code() && e.Explains == o.code() && (e.Of == anyObject || f.Object == o.Object)
	})
}

// causes picks the faults that no other one explains, and puts below each of them all that it explains, directly or not. A fault with two
// roots is below both. Root causes of one check with one fix are one Cause; those that are no fault
// of the machine are notes.
func causes(faults []fault, edges []Edge) (list []Cause, notes []Found) {
	list = []Cause{}
	for i, f := range faults {
		if slices.ContainsFunc(faults, func(o fault) bool { return o.explains(f, edges) }) {
			continue
		}
		if f.Note {
			notes = append(notes, f.found())
			continue
		}
		fix := cmp.Or(f.Fix, f.check.Fix)
		at := slices.IndexFunc(list, func(c Cause) bool { return c.Code == f.check.Code && c.Fix == fix })
		if at < 0 {
			at = len(list)
			ch := f.check
			list = append(list, Cause{Code: ch.Code, Title: ch.Title, Meaning: ch.Meaning, Fix: fix, Interrupts: ch.Interrupts, NoRepair: ch.NoRepair, Sources: ch.Sources})
		}
		c := &list[at]
		c.Found = append(c.Found, f.found())
		if command := cmp.Or(f.Command, f.check.Command); command != "" && !slices.Contains(c.Commands, command) {
			c.Commands = append(c.Commands, command)
		}
		for _, o := range explained(i, faults, edges) {
			if o := o.found(); !slices.Contains(c.Explains, o) {
				c.Explains = append(c.Explains, o)
			}
		}
	}
	return list, notes
}

// explained returns what a fault explains, directly or by another one.
func explained(root int, faults []fault, edges []Edge) (below []fault) {
	seen := map[int]bool{root: true}
	for open := []int{root}; len(open) > 0; open = open[1:] {
		for i, o := range faults {
			if !seen[i] && faults[open[0]].explains(o, edges) {
				seen[i] = true
				open = append(open, i)
				below = append(below, o)
			}
		}
	}
	return below
}

// Format is the version of the report's form.
const Format = 1

// Report is what doctor says of a machine.
type Report struct {
	Format int      `json:"format"`
	Host   string   `json:"host"`             // what machine this is, in a line
	Causes []Cause  `json:"causes"`           // root causes; none: no fault was found
	Unread []Unread `json:"unread,omitempty"` // what could not be checked
	Checks int      `json:"checks"`           // how many there are
	Notes  []Found  `json:"notes,omitempty"`  // what is no fault of the machine, and an operator should know
}

// Cause is a root cause: a fault that no other one explains.
type Cause struct {
	Code       string   `json:"code"`
	Title      string   `json:"title"`
	Found      []Found  `json:"found"`
	Meaning    string   `json:"meaning"`
	Explains   []Found  `json:"explains,omitempty"`
	Fix        string   `json:"fix"`
	Commands   []string `json:"commands,omitempty"`
	Interrupts string   `json:"interrupts"`
	NoRepair   string   `json:"noRepair,omitempty"` // why gpuadm repair cannot fix it
	Sources    []string `json:"sources"`
}

// Found is one fault that was found.
type Found struct {
	Code   string `json:"code,omitempty"`
	Object string `json:"object,omitempty"`
	What   string `json:"what"`
}

// Unread is a part of the machine that could not be read, so that its checks say nothing.
type Unread struct {
	What string `json:"what"`
	Why  string `json:"why"`
}
