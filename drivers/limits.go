// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// limit is what one GPU asks of a driver.
type limit struct {
	gpu   Device
	arch  Architecture
	known bool // the architecture is
	row   gpuRow
}

// limits returns what each GPU asks, in the order of their addresses, so that the same one is blamed each time.
func (c Catalog) limits(m Machine) []limit {
	var all []limit
	for _, g := range m.GPUs {
		l := limit{gpu: g}
		l.arch, l.known = c.Arch(g.ID)
		if row := c.gpu(strings.ToLower(g.ID)); row != nil {
			l.row = *row
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b limit) int {
		return cmp.Or(strings.Compare(a.gpu.Address, b.gpu.Address), strings.Compare(a.gpu.ID, b.gpu.ID))
	})
	return all
}

// String names the GPU as errors do: GPU 0000:17:00.0 (B200, blackwell).
func (l limit) String() string {
	name := cmp.Or(l.gpu.Model, l.row.Name, "device "+l.gpu.ID)
	if l.arch.Name != "" && l.known {
		name += ", " + l.arch.Name
	}
	return "GPU " + l.gpu.Address + " (" + name + ")"
}

// min returns the first driver version that the GPU works with, "" if none is known.
func (l limit) min() string {
	first := ""
	if l.arch.First > 0 {
		first = strconv.Itoa(l.arch.First)
	}
	if l.row.Confidence == "low" || Compare(l.row.Min, first) < 0 {
		return first
	}
	return l.row.Min
}

// below says whether a version, or every version of a branch, is older than min.
func below(asked, min string) bool {
	if !strings.Contains(asked, ".") {
		min, _, _ = strings.Cut(min, ".")
	}
	return Compare(asked, min) < 0
}

// first returns the first GPU whose architecture says this of open kernel modules.
func (p *plan) first(open string) (limit, bool) {
	i := slices.IndexFunc(p.limits, func(l limit) bool { return l.arch.Open == open })
	if i < 0 {
		return limit{}, false
	}
	return p.limits[i], true
}

// mixed refuses GPUs that no driver has in common, and kernel modules that the GPUs forbid.
func (p *plan) mixed() error {
	for _, l := range p.limits {
		if l.arch.Name == "" {
			return refuse(fmt.Sprintf("cannot choose a driver: GPU %s has the device id %q, which is none", l.gpu.Address, l.gpu.ID),
				"look at /sys/bus/pci/devices/"+l.gpu.Address+"/device")
		}
	}
	must, hasMust := p.first("must")
	no, hasNo := p.first("no")
	const auto = `write modules = "auto" in [driver]`
	switch {
	case hasMust && hasNo:
		return refuse(fmt.Sprintf("cannot choose a driver: %s works with open kernel modules only, which %s forbids", must, no),
			"take one of the two out of the machine")
	case hasNo && p.d.Modules == FlavourOpen:
		return refuse(fmt.Sprintf("cannot use open kernel modules: %s works with proprietary ones only", no), auto)
	case hasMust && p.d.Modules == FlavourProprietary:
		return refuse(fmt.Sprintf("cannot use proprietary kernel modules: %s works with open ones only", must), auto)
	}
	old, last := p.oldest()
	if newer, min := p.highest(); last > 0 && min != "" && below(strconv.Itoa(last), min) {
		return refuse(fmt.Sprintf("cannot choose a driver: %s works with branch %d and older only, and %s needs %s or newer", old, last, newer, min),
			"take one of the two out of the machine")
	}
	return nil
}

// decide settles branch, version and kernel modules.
func (p *plan) decide() error {
	if p.d.Version == "" {
		return p.newest()
	}
	major, _, exact := strings.Cut(p.d.Version, ".")
	branch, err := strconv.Atoi(major)
	if err != nil || branch <= 0 || number(p.d.Version) == nil {
		return refuse(fmt.Sprintf("cannot choose driver %q: it is no version and no branch", p.d.Version),
			`write a version such as "580.95.05", or a branch such as "580"`)
	}
	flavour, err := p.fits(branch, p.d.Version)
	if err != nil {
		return err
	}
	p.settle(branch, flavour)
	if exact {
		p.choice.Version = p.d.Version
	}
	return nil
}

func (p *plan) settle(branch int, flavour string) {
	p.branch, p.choice.Branch, p.choice.Flavour = branch, strconv.Itoa(branch), flavour
}

// newest takes the newest branch with support to come that fits, or the one that the archive has.
func (p *plan) newest() error {
	supported := p.supported()
	old, last := p.oldest()
	if len(supported) == 0 {
		return refuse("cannot choose a driver branch: the catalog has none with support to come", `write version = "580" in [driver], or another branch`)
	}
	if last > 0 && last < slices.Min(supported) && len(supported) > 1 {
		return refuse(fmt.Sprintf("cannot choose a driver with support: %s works with branch %d and older only", old, last),
			fmt.Sprintf(`write version = "%d" in [driver] to have it without support`, last))
	}
	var why []error
	for _, b := range supported {
		flavour, err := p.fits(b, strconv.Itoa(b))
		if err == nil {
			p.settle(b, flavour)
			return nil
		}
		if last > 0 && b > last && b > slices.Min(supported) {
			continue // an older one is meant for this GPU, and what forbids that one is the reason
		}
		why = append(why, err)
	}
	return why[0]
}

// supported lists the branches that may be chosen unasked, newest first.
func (p *plan) supported() []int {
	if p.repo.First > 0 && p.repo.First == p.repo.Last {
		return []int{p.repo.First}
	}
	var list []int
	for _, b := range p.c.Branches {
		if (b.Designation == "PB" || b.Designation == "LTSB") && b.End != "" && !b.past() {
			list = append(list, b.Branch)
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	return list
}

// fits returns the kernel modules to take with a branch, or why something forbids it. Asked is the branch or a version.
func (p *plan) fits(branch int, asked string) (flavour string, err error) {
	if l, last := p.oldest(); last > 0 && branch > last {
		return "", refuse(fmt.Sprintf("cannot install driver %s: %s works with branch %d and older only", asked, l, last),
			fmt.Sprintf(`write version = "%d" in [driver]`, last))
	}
	if l, min := p.highest(); min != "" && below(asked, min) {
		major, _, _ := strings.Cut(min, ".")
		return "", refuse(fmt.Sprintf("cannot install driver %s: %s needs %s or newer", asked, l, min),
			fmt.Sprintf(`write version = "%s" in [driver], or a newer branch`, major))
	}
	if err := p.published(branch, asked); err != nil {
		return "", err
	}
	flavour = p.flavour(branch)
	return flavour, p.possible(branch, asked, flavour)
}

// highest returns the GPU that needs the newest driver, and which.
func (p *plan) highest() (of limit, min string) {
	for _, l := range p.limits {
		if m := l.min(); m != "" && (min == "" || Compare(m, min) > 0) {
			of, min = l, m
		}
	}
	return of, min
}

// oldest returns the GPU whose last branch is the oldest, and which; 0 if none has a last one.
func (p *plan) oldest() (of limit, last int) {
	for _, l := range p.limits {
		if l.arch.Last > 0 && (last == 0 || l.arch.Last < last) {
			of, last = l, l.arch.Last
		}
	}
	return of, last
}

// flavour picks the kernel modules for a branch; whether they exist is asked by possible.
func (p *plan) flavour(branch int) string {
	_, must := p.first("must")
	_, no := p.first("no")
	switch {
	case must:
		return FlavourOpen
	case no:
		return FlavourProprietary
	case p.d.Modules == FlavourOpen || p.d.Modules == FlavourProprietary:
		return p.d.Modules
	case p.repo.Streams && p.d.Build == "precompiled":
		return FlavourProprietary // the streams have signed modules of that kind alone
	case p.repo.OpenOnly, p.d.GDS && p.repo.Source == SourceNVIDIA:
		return FlavourOpen
	}
	for _, e := range p.exceptions(branch) {
		if e.Flavour == FlavourOpen || e.Flavour == FlavourProprietary && branch <= p.c.rule("proprietary-last") {
			return e.Flavour
		}
	}
	if branch >= p.c.rule("open-default") {
		return FlavourOpen
	}
	return FlavourProprietary
}

// possible refuses kernel modules that a branch or a repository lacks.
func (p *plan) possible(branch int, asked, flavour string) error {
	who := "the spec asks for"
	if l, found := p.first("must"); found && flavour == FlavourOpen {
		who = l.String() + " works with"
	}
	if l, found := p.first("no"); found && flavour == FlavourProprietary {
		who = l.String() + " works with"
	}
	open, last := p.c.rule("open-first"), p.c.rule("proprietary-last")
	switch {
	case flavour == FlavourProprietary && p.d.GDS && p.repo.Source == SourceNVIDIA:
		// From 2.17.5 on; NVIDIA's repositories have newer ones. Source: the GPUDirect Storage release notes.
		return refuse(fmt.Sprintf("cannot install GPUDirect Storage with driver %s: nvidia-fs works with open kernel modules, and %s proprietary ones", asked, who),
			`write gds = false in [driver], or modules = "auto" where the GPUs allow it`)
	case flavour == FlavourOpen && p.repo.Streams && p.d.Build == "precompiled":
		return refuse(fmt.Sprintf("cannot take precompiled kernel modules from %s: it has proprietary ones only, and %s open ones", p.repo, who),
			`write build = "dkms" in [driver]`)
	case flavour == FlavourOpen && branch < open:
		return refuse(fmt.Sprintf("cannot install driver %s: %s open kernel modules, which begin with branch %d", asked, who, open),
			fmt.Sprintf(`write version = "%d" in [driver], or a newer branch`, open))
	case flavour == FlavourProprietary && branch > last:
		return refuse(fmt.Sprintf("cannot install driver %s: %s proprietary kernel modules, which end with branch %d", asked, who, last),
			`write modules = "auto" in [driver], or an older version`)
	case flavour == FlavourProprietary && p.repo.OpenOnly:
		return refuse(fmt.Sprintf("cannot install from %s: it has open kernel modules only, and %s proprietary ones", p.repo, who),
			`write source = "runfile" and a version in [driver], or modules = "auto" where the GPUs allow it`)
	}
	return nil
}
