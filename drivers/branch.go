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

// oldestBranch is the first branch whose libraries gpuadm can read.
const oldestBranch = 470

// chooseVersion chooses branch, version and the flavour of the kernel modules.
func (p *plan) chooseVersion() error {
	version := p.spec.Version
	if version == "" {
		return p.chooseBranch()
	}

	major, _, exact := strings.Cut(version, ".")
	branch, err := strconv.Atoi(major)
	if err != nil || branch <= 0 || hardware.Numbers(version) == nil {
		return p.refuse(fmt.Sprintf("cannot choose driver %q: it is neither a version nor a branch", version))
	}
	if branch < oldestBranch {
		return p.refuse(fmt.Sprintf("cannot choose driver %s: gpuadm reads the libraries of 470 and newer", version))
	}
	if why := p.whyNot(branch, version); why != nil {
		return p.refuse(why.what, why.try...)
	}

	p.settle(branch)
	if exact {
		p.choice.Version = version
	}
	return nil
}

// settle records the chosen branch and its flavour.
func (p *plan) settle(branch int) {
	p.branch = branch
	p.choice.Branch = strconv.Itoa(branch)
	p.choice.Flavour = p.flavour(branch)
}

// chooseBranch chooses the first of the supported branches that nothing forbids.
func (p *plan) chooseBranch() error {
	candidates := p.candidates()
	if len(candidates) == 0 {
		return refuse(
			fmt.Sprintf("cannot choose a driver branch: this release of gpuadm knows of none that is supported on %s", cmp.Or(p.machine.Day, "any day")),
			"install a newer release of gpuadm, or set the machine's clock if that is not the day",
			"or write the version that you want in [driver]")
	}

	oldest := slices.Min(candidates)
	gpu, last := p.lastBranch()
	if last > 0 && last < oldest && len(candidates) > 1 {
		return p.refuse(fmt.Sprintf("cannot choose a driver with support: %s works with branch %d and older only", gpu, last))
	}

	for _, l := range p.limits {
		if !l.known && l.arch.Open == "must" {
			return refuse(
				fmt.Sprintf("cannot choose a driver branch: %s is newer than this release knows", l),
				"install nvidia-driver-assistant of NVIDIA's repository: its supported-gpus.json names the GPUs of its branch",
				"then write that branch as version in [driver]")
		}
	}

	var first *obstacle
	for _, branch := range candidates {
		why := p.whyNot(branch, strconv.Itoa(branch))
		if why == nil {
			p.settle(branch)
			return nil
		}

		// Where a branch is too new for a GPU, the error is about the older branch for that GPU.
		tooNew := last > 0 && branch > last && branch > oldest
		if first == nil && !tooNew {
			first = why
		}
	}

	return p.refuse(first.what, first.try...)
}

// candidates lists the branches that gpuadm may choose unasked, the safest first; for an archive
// with one branch, that branch.
func (p *plan) candidates() []int {
	if p.repo.onlyOneBranch() {
		return []int{p.repo.First}
	}
	return p.supportedBranches()
}

// supportedBranches lists the branches that gpuadm chooses unasked and that are supported on the
// machine's day: long-term support first, then production; a new feature branch only where a GPU
// works with no older branch.
func (p *plan) supportedBranches() []int {
	var list []int
	_, min := p.needs("0")

	for _, designation := range []string{"LTSB", "PB", "NFB"} {
		for _, row := range slices.Backward(p.catalog.Branches) {
			if row.Designation != designation || row.Default == "" || row.ended(p.machine.Day) {
				continue
			}
			if row.DefaultOn != nil && !slices.Contains(row.DefaultOn, p.repo.Name) {
				continue
			}
			if designation == "NFB" && hardware.Compare(min, strconv.Itoa(row.Branch)) < 0 {
				continue
			}
			list = append(list, row.Branch)
		}
	}

	return list
}

// obstacle is what forbids a branch.
type obstacle struct {
	what string   // the first sentence of the error
	try  []string // remedies other than another version or source
}

// obstacleOf returns an obstacle without remedies of its own; nil if what is "".
func obstacleOf(what string) *obstacle {
	if what == "" {
		return nil
	}
	return &obstacle{what: what}
}

// whyNot says what forbids a branch, nil if nothing does. asked is the branch or a version of it.
func (p *plan) whyNot(branch int, asked string) *obstacle {
	if gpu, last := p.lastBranch(); last > 0 && branch > last {
		return obstacleOf(fmt.Sprintf("cannot install driver %s: %s works with branch %d and older only", asked, gpu, last))
	}
	if gpu, min := p.needs(asked); min != "" {
		return obstacleOf(fmt.Sprintf("cannot install driver %s: %s needs %s or newer", asked, gpu, min))
	}
	if what := p.notInRepository(branch, asked); what != "" {
		return obstacleOf(what)
	}

	for _, e := range p.exceptions(asked) {
		if e.Refused && !p.spec.TrustVersion {
			return &obstacle{
				what: fmt.Sprintf("cannot install driver %s: %s", asked, e.Why),
				try: []string{
					"or write trust_version = true in [driver], if this driver is meant all the same",
				},
			}
		}
	}

	if p.flavour(branch) == FlavourOpen {
		return p.whyNotOpen(branch, asked)
	}
	return p.whyNotProprietary(branch, asked)
}

// flavour picks the kernel modules for a branch; whyNot checks whether they exist.
func (p *plan) flavour(branch int) string {
	_, must := p.gpuWith("must")
	_, no := p.gpuWith("no")
	switch {
	case must:
		return FlavourOpen
	case no:
		return FlavourProprietary
	case p.spec.Modules == FlavourOpen || p.spec.Modules == FlavourProprietary:
		return p.spec.Modules
	case p.repo.Streams && p.spec.Build == "precompiled":
		return FlavourProprietary // the streams have signed modules of that flavour only
	case p.repo.OpenOnly:
		return FlavourOpen
	case p.spec.GDS && p.repo.Source == SourceNVIDIA:
		return FlavourOpen
	}

	for _, e := range p.exceptions(strconv.Itoa(branch)) {
		if e.Flavour == FlavourOpen {
			return FlavourOpen
		}
		if e.Flavour == FlavourProprietary && branch <= p.lastProprietary() {
			return FlavourProprietary
		}
	}

	if branch >= p.catalog.rule("open-default") {
		return FlavourOpen
	}
	return FlavourProprietary
}

// lastProprietary returns the last branch with proprietary kernel modules in the repository.
func (p *plan) lastProprietary() int {
	return cmp.Or(p.repo.ProprietaryLast, p.catalog.rule("proprietary-last"))
}

// whyNotOpen says why a branch or the repository has no open kernel modules, nil if it has.
func (p *plan) whyNotOpen(branch int, asked string) *obstacle {
	who := "the spec asks for"
	if gpu, found := p.gpuWith("must"); found {
		who = gpu.String() + " works with"
	}

	first := p.catalog.rule("open-first")
	switch {
	case p.repo.Streams && p.spec.Build == "precompiled":
		return &obstacle{
			what: fmt.Sprintf("cannot take precompiled kernel modules from %s: it has proprietary ones only, and %s open ones", p.repo, who),
			try:  []string{`write build = "dkms" in [driver]`},
		}
	case branch < first:
		return obstacleOf(fmt.Sprintf("cannot install driver %s: %s open kernel modules, which begin with branch %d", asked, who, first))
	}

	return nil
}

// whyNotProprietary says why a branch or the repository has no proprietary kernel modules, nil if
// it has; or what does not work with them.
func (p *plan) whyNotProprietary(branch int, asked string) *obstacle {
	who := "the spec asks for"
	var try []string
	gpu, needsThem := p.gpuWith("no")
	ofStream := p.repo.Streams && p.spec.Build == "precompiled"
	asks := p.spec.Modules == FlavourProprietary
	switch {
	case needsThem:
		who = gpu.String() + " works with"
	case ofStream && asks:
		try = []string{`write modules = "auto" and build = "dkms" in [driver]`}
	case ofStream:
		who = `build = "precompiled" takes`
		try = []string{`write build = "dkms" in [driver]`}
	case asks:
		try = []string{`write modules = "auto" in [driver]`}
	}

	last := p.lastProprietary()
	switch {
	case p.spec.GDS && p.repo.Source == SourceNVIDIA:
		// From 2.17.5 on; NVIDIA's repositories have newer ones. Source: the GPUDirect Storage
		// release notes.
		return &obstacle{
			what: fmt.Sprintf("cannot install GPUDirect Storage with driver %s: nvidia-fs works with open kernel modules, and %s proprietary ones", asked, who),
			try:  append(try, "write gds = false in [driver]"),
		}
	case branch > last:
		return &obstacle{
			what: fmt.Sprintf("cannot install driver %s: %s proprietary kernel modules, which end with branch %d", asked, who, last),
			try:  try,
		}
	case p.repo.OpenOnly:
		return &obstacle{
			what: fmt.Sprintf("cannot install from %s: it has open kernel modules only, and %s proprietary ones", p.repo, who),
			try:  try,
		}
	}

	return nil
}
