// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/gputable"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// limit says which drivers one GPU works with.
type limit struct {
	gpu   hardware.Device
	arch  Architecture
	known bool // the catalog knows the architecture
	row   gputable.GPU

	served gputable.Served
	listed bool // a list of NVIDIA's drivers has the GPU: served is its row
}

// limits returns the limit of each GPU, ordered by address, so that errors always name the same
// GPU.
func (c Catalog) limits(m hardware.Machine) []limit {
	var all []limit
	for _, gpu := range m.GPUs {
		l := limit{gpu: gpu}
		l.arch, l.known = c.Arch(gpu.ID)
		if row := c.gpu(strings.ToLower(gpu.ID)); row != nil {
			l.row = *row
		}
		l.served, l.listed = gputable.ServedBy(strings.ToLower(gpu.ID))
		all = append(all, l)
	}

	sorting.By(all, func(a, b limit) int {
		return cmp.Or(strings.Compare(a.gpu.Address, b.gpu.Address), strings.Compare(a.gpu.ID, b.gpu.ID))
	})
	return all
}

// String names the GPU as errors do: GPU 0000:17:00.0 (B200, blackwell).
func (l limit) String() string {
	served := strings.TrimPrefix(l.served.Name, "NVIDIA ")
	name := cmp.Or(l.gpu.Model, l.row.Product, served, "device "+l.gpu.ID)
	if l.arch.Name != "" && l.known {
		name += ", " + l.arch.Name
	}
	return "GPU " + l.gpu.Address + " (" + name + ")"
}

// needs returns the first driver version for the GPU that is as new as a version, or as the newest
// of a branch; "" if that version serves the GPU, or nothing is known against it.
func (l limit) needs(asked string) string {
	if !l.listed {
		first := strconv.Itoa(l.arch.First)
		if l.arch.First > 0 && below(asked, first) {
			return first
		}
		return ""
	}

	branch := branchNumber(asked)
	for _, entry := range l.served.First {
		first, all := strings.CutSuffix(entry, "+")
		begins := branchNumber(first)
		switch {
		case all && branch >= begins && !below(asked, first):
			return ""
		case all && begins == oldestListed:
			return "" // of older branches the lists say nothing
		case branch == begins && !below(asked, first):
			return ""
		case branch <= begins:
			return first
		}
	}

	return ""
}

// oldestListed is the first branch whose lists of GPUs are known: the first with open modules.
const oldestListed = 515

// firstIn returns the first driver version for the GPU in a branch that serves it; where all of the
// branch do, the branch from which on all do. "" if nothing is known.
func (l limit) firstIn(branch int) string {
	if !l.listed {
		if l.arch.First == 0 {
			return ""
		}
		return strconv.Itoa(l.arch.First)
	}

	found := ""
	for _, entry := range l.served.First {
		first, all := strings.CutSuffix(entry, "+")
		begins := branchNumber(first)
		if begins > branch || all && begins == oldestListed {
			break
		}
		found = first
	}

	return found
}

// branchNumber returns the branch of a version, or of a branch.
func branchNumber(version string) int {
	branch, _, _ := strings.Cut(version, ".")
	number, err := strconv.Atoi(branch)
	if err != nil {
		return 0
	}
	return number
}

// below says whether a version, or every version of a branch, is older than min.
func below(asked, min string) bool {
	if !strings.Contains(asked, ".") {
		min, _, _ = strings.Cut(min, ".")
	}
	return hardware.Compare(asked, min) < 0
}

// gpuWith returns the first GPU whose architecture has this value for open kernel modules: must,
// may or no.
func (p *plan) gpuWith(open string) (limit, bool) {
	i := slices.IndexFunc(p.limits, func(l limit) bool { return l.arch.Open == open })
	if i < 0 {
		return limit{}, false
	}
	return p.limits[i], true
}

// needs returns the GPU that a version, or the newest of a branch, does not serve, and the version
// that it needs; of several the GPU that needs the newest. "" if the version serves all.
func (p *plan) needs(asked string) (gpu limit, version string) {
	for _, l := range p.limits {
		first := l.needs(asked)
		if first != "" && (version == "" || hardware.Compare(first, version) > 0) {
			gpu = l
			version = first
		}
	}
	return gpu, version
}

// minimum returns the first driver version of the chosen branch that serves all GPUs.
func (p *plan) minimum() (version string) {
	for _, l := range p.limits {
		first := l.firstIn(p.branch)
		if first != "" && (version == "" || hardware.Compare(first, version) > 0) {
			version = first
		}
	}
	return version
}

// whoNeeds returns the GPU of a machine that a driver version does not serve, and the version that
// it needs; "" if the version serves all.
func whoNeeds(f facts.Facts, version string) (gpu limit, needs string) {
	catalog := Load()
	p := plan{limits: catalog.limits(hardware.MachineOf(f, f.Cloud.Type))}
	return p.needs(version)
}

// lastBranch returns the GPU with the oldest last branch, and that branch; 0 if no GPU has a last
// one.
func (p *plan) lastBranch() (gpu limit, branch int) {
	for _, l := range p.limits {
		if l.arch.Last > 0 && (branch == 0 || l.arch.Last < branch) {
			gpu = l
			branch = l.arch.Last
		}
	}
	return gpu, branch
}

// checkGPUs refuses GPUs that no single driver serves, and kernel modules that the GPUs do not work
// with.
func (p *plan) checkGPUs() error {
	for _, l := range p.limits {
		if l.arch.Name == "" {
			return refuse(
				fmt.Sprintf("cannot choose a driver: GPU %s: %q is not a PCI device id", l.gpu.Address, l.gpu.ID),
				"cat /sys/bus/pci/devices/"+l.gpu.Address+"/device")
		}
	}

	if err := p.checkFlavours(); err != nil {
		return err
	}

	old, last := p.lastBranch()
	newer, min := p.needs(strconv.Itoa(last))
	if last > 0 && min != "" {
		return refuse(
			fmt.Sprintf("cannot choose a driver: %s works with branch %d and older only, and %s needs %s or newer", old, last, newer, min),
			"take one of the two out of the machine")
	}

	return nil
}

// checkFlavours refuses GPUs, and a spec, that need different flavours of kernel modules.
func (p *plan) checkFlavours() error {
	const auto = `write modules = "auto" in [driver]`
	must, hasMust := p.gpuWith("must")
	no, hasNo := p.gpuWith("no")

	switch {
	case hasMust && hasNo:
		return refuse(
			fmt.Sprintf("cannot choose a driver: %s works with open kernel modules only, which %s forbids", must, no),
			"take one of the two out of the machine")
	case hasNo && p.spec.Modules == FlavourOpen:
		return refuse(fmt.Sprintf("cannot use open kernel modules: %s works with proprietary ones only", no), auto)
	case hasMust && p.spec.Modules == FlavourProprietary:
		return refuse(fmt.Sprintf("cannot use proprietary kernel modules: %s works with open ones only", must), auto)
	}

	return nil
}

// exceptions returns the rows that apply to the machine, to one of its GPUs, and to the version or
// branch asked for.
func (p *plan) exceptions(asked string) []exceptionRow {
	var rows []exceptionRow
	for _, row := range p.catalog.Exceptions {
		if row.concerns(asked) && p.isOn(row) && p.hasGPUOf(row) {
			rows = append(rows, row)
		}
	}

	return rows
}

// concerns says whether the exception is about a version or branch. Of a branch the newest version
// is meant: an exception that ended within the branch is none of it.
func (r exceptionRow) concerns(asked string) bool {
	if below(asked, r.From) {
		return false
	}
	branch, _, ended := strings.Cut(r.Below, ".")
	if ended && asked == branch {
		return false
	}
	return r.Below == "" || hardware.Compare(asked, r.Below) < 0
}

// isOn says whether the plan's machine is of the kind that an exception is about.
func (p *plan) isOn(row exceptionRow) bool {
	if row.RDMA && !p.machine.RDMA || row.MIG && !p.machine.MIG || row.Whole && !p.machine.Whole {
		return false
	}
	if len(row.Clouds) > 0 && !slices.Contains(row.Clouds, p.machine.Cloud) {
		return false
	}
	if len(row.Instances) == 0 {
		return true
	}

	family, _, _ := strings.Cut(p.machine.Instance, ".")
	return slices.ContainsFunc(row.Instances, func(kind string) bool {
		return kind == family || strings.HasSuffix(kind, "-") && strings.HasPrefix(family, kind)
	})
}

// hasGPUOf says whether the plan's machine has a GPU that an exception is about, and none that it
// excepts.
func (p *plan) hasGPUOf(row exceptionRow) bool {
	return !p.hasGPU(row.Except) && (len(row.IDs) == 0 || p.hasGPU(row.IDs))
}

// hasGPU says whether one of the GPUs has one of the device ids: 2330, or 2330:1733 with the board.
func (p *plan) hasGPU(ids []string) bool {
	return slices.ContainsFunc(p.limits, func(l limit) bool {
		id := strings.ToLower(l.gpu.ID)
		return slices.Contains(ids, id) || slices.Contains(ids, id+":"+l.gpu.Board)
	})
}
