// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
)

// limit says which drivers one GPU works with.
type limit struct {
	gpu   hardware.Device
	arch  Architecture
	known bool // the catalog knows the architecture
	row   gpuRow
}

// limits returns the limit of each GPU, ordered by address, so that errors always name the same
// GPU.
func (c Catalog) limits(m hardware.Machine) []limit {
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
	if l.row.Confidence == "low" || hardware.Compare(l.row.Min, first) < 0 {
		return first
	}
	return l.row.Min
}

// below says whether a version, or every version of a branch, is older than min.
func below(asked, min string) bool {
	if !strings.Contains(asked, ".") {
		min, _, _ = strings.Cut(min, ".")
	}
	return hardware.Compare(asked, min) < 0
}

// first returns the first GPU whose architecture has this value for open kernel modules: must, may
// or no.
func (p *plan) first(open string) (limit, bool) {
	i := slices.IndexFunc(p.limits, func(l limit) bool { return l.arch.Open == open })
	if i < 0 {
		return limit{}, false
	}
	return p.limits[i], true
}

// mixed refuses GPUs that no single driver serves, and kernel modules that the GPUs do not work
// with.
func (p *plan) mixed() error {
	for _, l := range p.limits {
		if l.arch.Name == "" {
			return refuse(fmt.Sprintf("cannot choose a driver: GPU %s has the device id %q, which is none", l.gpu.Address, l.gpu.ID),
				"cat /sys/bus/pci/devices/"+l.gpu.Address+"/device")
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
		return p.careful()
	}
	major, _, exact := strings.Cut(p.d.Version, ".")
	branch, err := strconv.Atoi(major)
	if err != nil || branch <= 0 || hardware.Numbers(p.d.Version) == nil {
		return p.refuse(fmt.Sprintf("cannot choose driver %q: it is no version and no branch", p.d.Version))
	}
	if branch < 470 {
		return p.refuse(fmt.Sprintf("cannot choose driver %s: gpuadm reads the libraries of 470 and newer", p.d.Version))
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

// careful chooses the first of the supported branches that fits.
func (p *plan) careful() error {
	supported := p.supported()
	old, last := p.oldest()
	if len(supported) == 0 {
		return refuse(fmt.Sprintf("cannot choose a driver branch: this release of gpuadm knows of none that is supported on %s", cmp.Or(p.m.Day, "any day")),
			"install a newer release of gpuadm, or set the machine's clock if that is not the day", "or write the version that you want in [driver]")
	}
	if last > 0 && last < slices.Min(supported) && len(supported) > 1 {
		return p.refuse(fmt.Sprintf("cannot choose a driver with support: %s works with branch %d and older only", old, last))
	}
	for _, l := range p.limits {
		if !l.known && l.arch.Open == "must" {
			return refuse(fmt.Sprintf("cannot choose a driver branch: %s is newer than this release knows", l),
				"install nvidia-driver-assistant of NVIDIA's repository: its supported-gpus.json names the GPUs of its branch", "then write that branch as version in [driver]")
		}
	}
	var why []error
	for _, b := range supported {
		flavour, err := p.fits(b, strconv.Itoa(b))
		if err == nil {
			p.settle(b, flavour)
			return nil
		}
		if last > 0 && b > last && b > slices.Min(supported) {
			continue // an older branch is meant for this GPU: the error says what forbids that branch
		}
		why = append(why, err)
	}
	return why[0]
}

// supported lists the branches that gpuadm may choose unasked, the safest first; for an archive
// with one branch, that branch.
func (p *plan) supported() []int {
	if p.repo.First > 0 && p.repo.First == p.repo.Last {
		return []int{p.repo.First}
	}
	return p.alive()
}

// fits returns the flavour of kernel modules for a branch, or an error that says what forbids the
// branch. asked is the branch or a version.
func (p *plan) fits(branch int, asked string) (flavour string, err error) {
	flavour, what, more := p.judge(branch, asked)
	if what != "" {
		return "", p.refuse(what, more...)
	}
	return flavour, nil
}

// judge says what forbids a branch, "" if nothing does, and what may help beside another version or
// source.
func (p *plan) judge(branch int, asked string) (flavour, what string, more []string) {
	if l, last := p.oldest(); last > 0 && branch > last {
		return "", fmt.Sprintf("cannot install driver %s: %s works with branch %d and older only", asked, l, last), nil
	}
	if l, min := p.highest(); min != "" && below(asked, min) {
		return "", fmt.Sprintf("cannot install driver %s: %s needs %s or newer", asked, l, min), nil
	}
	if what := p.published(branch, asked); what != "" {
		return "", what, nil
	}
	for _, e := range p.exceptions(asked) {
		if e.Refused && !p.d.TrustVersion {
			return "", fmt.Sprintf("cannot install driver %s: %s", asked, e.Why), []string{"or write trust_version = true in [driver], if this driver is meant all the same"}
		}
	}
	flavour = p.flavour(branch)
	what, more = p.possible(branch, asked, flavour)
	return flavour, what, more
}

// highest returns the GPU that needs the newest driver, and that driver's version.
func (p *plan) highest() (of limit, min string) {
	for _, l := range p.limits {
		if m := l.min(); m != "" && (min == "" || hardware.Compare(m, min) > 0) {
			of, min = l, m
		}
	}
	return of, min
}

// oldest returns the GPU with the oldest last branch, and that branch; 0 if none has a last one.
func (p *plan) oldest() (of limit, last int) {
	for _, l := range p.limits {
		if l.arch.Last > 0 && (last == 0 || l.arch.Last < last) {
			of, last = l, l.arch.Last
		}
	}
	return of, last
}

// flavour picks the kernel modules for a branch; possible checks whether they exist.
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
		return FlavourProprietary // the streams have signed modules of that flavour only
	case p.repo.OpenOnly, p.d.GDS && p.repo.Source == SourceNVIDIA:
		return FlavourOpen
	}
	for _, e := range p.exceptions(strconv.Itoa(branch)) {
		if e.Flavour == FlavourOpen || e.Flavour == FlavourProprietary && branch <= p.proprietaryLast() {
			return e.Flavour
		}
	}
	if branch >= p.c.rule("open-default") {
		return FlavourOpen
	}
	return FlavourProprietary
}

// proprietaryLast returns the last branch with proprietary kernel modules in the repository.
func (p *plan) proprietaryLast() int {
	return cmp.Or(p.repo.ProprietaryLast, p.c.rule("proprietary-last"))
}

// possible says why a branch or a repository lacks kernel modules of a flavour, "" if it has them,
// and what may help.
func (p *plan) possible(branch int, asked, flavour string) (what string, more []string) {
	who := "the spec asks for"
	if l, found := p.first("must"); found && flavour == FlavourOpen {
		who = l.String() + " works with"
	}
	if l, found := p.first("no"); found && flavour == FlavourProprietary {
		who = l.String() + " works with"
	}
	if p.d.Modules == FlavourProprietary {
		more = []string{`write modules = "auto" in [driver]`}
	}
	open, last := p.c.rule("open-first"), p.proprietaryLast()
	switch {
	case flavour == FlavourProprietary && p.d.GDS && p.repo.Source == SourceNVIDIA:
		// From 2.17.5 on; NVIDIA's repositories have newer ones. Source: the GPUDirect Storage
		// release notes.
		return fmt.Sprintf("cannot install GPUDirect Storage with driver %s: nvidia-fs works with open kernel modules, and %s proprietary ones", asked, who),
			append(more, "write gds = false in [driver]")
	case flavour == FlavourOpen && p.repo.Streams && p.d.Build == "precompiled":
		return fmt.Sprintf("cannot take precompiled kernel modules from %s: it has proprietary ones only, and %s open ones", p.repo, who),
			[]string{`write build = "dkms" in [driver]`}
	case flavour == FlavourOpen && branch < open:
		return fmt.Sprintf("cannot install driver %s: %s open kernel modules, which begin with branch %d", asked, who, open), nil
	case flavour == FlavourProprietary && branch > last:
		return fmt.Sprintf("cannot install driver %s: %s proprietary kernel modules, which end with branch %d", asked, who, last), more
	case flavour == FlavourProprietary && p.repo.OpenOnly:
		return fmt.Sprintf("cannot install from %s: it has open kernel modules only, and %s proprietary ones", p.repo, who), more
	}
	return "", nil
}
