// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuadm/gpuadm/drivers/hardware"
)

// refuse returns an error that says what forbids a driver, and which supported driver fits all
// GPUs; more lists further remedies.
func (p *plan) refuse(what string, more ...string) error {
	try := append(p.instead(), more...)
	if len(try) == 0 {
		try = []string{`no supported driver is known that works with all GPUs here: remove those that it does not support, or write owner = "other" in [driver] and manage the driver yourself`}
	}
	return refuse(what, try...)
}

// instead says what to write in [driver] for a driver that is supported today and fits all GPUs:
// from the same source, else from another. It never names a branch that has ended, and is empty if
// there is no such driver.
func (p *plan) instead() []string {
	for i, r := range p.sources() {
		q := *p
		q.repo = r
		for _, branch := range p.alive() {
			version := q.named(branch)
			if r.arch(p.m.Arch) == "" || r.Refused != "" || version == "" || !q.works(branch, version) {
				continue
			}
			if i == 0 {
				return []string{fmt.Sprintf(`write version = "%s" in [driver]`, version)}
			}
			return []string{fmt.Sprintf(`write source = "%s" and version = "%s" in [driver]`, r.word(), version)}
		}
	}
	return nil
}

// sources lists the repositories that have drivers for this machine; the plan's own comes first.
func (p *plan) sources() []repositoryRow {
	list := []repositoryRow{p.repo}
	rows, _ := p.c.repositories(p.m)
	if len(p.c.Runfiles) > 0 {
		rows = append(slices.Clone(rows), p.runfileRow())
	}
	for _, r := range rows {
		if r.Source != p.repo.Source && r.arch(p.m.Arch) != "" {
			list = append(list, r)
		}
	}
	return list
}

// word is what the spec's source says for the repository.
func (r repositoryRow) word() string {
	if r.Source == SourceNVIDIA || r.Source == SourceRunfile {
		return r.Source
	}
	return "distro"
}

// named is how the spec asks for a branch: a runfile is of one exact version. "" if none is known.
func (p *plan) named(branch int) string {
	if p.repo.Source != SourceRunfile {
		return strconv.Itoa(branch)
	}
	for _, b := range p.c.Branches {
		if b.Branch == branch {
			return b.Known
		}
	}
	return ""
}

// works says whether the plan would succeed with a version of a branch.
func (p *plan) works(branch int, version string) bool {
	flavour, what, _ := p.judge(branch, version)
	if what != "" {
		return false
	}
	q := *p
	q.choice, q.d.Packages, q.d.Without = Choice{Source: p.repo.Source}, nil, nil
	q.settle(branch, flavour)
	return q.compose() == nil
}

// alive lists the branches that gpuadm chooses unasked and that are supported on the machine's day:
// long-term support first, then production; a new feature branch only where a GPU works with no
// older branch.
func (p *plan) alive() []int {
	var list []int
	_, min := p.highest()
	for _, designation := range []string{"LTSB", "PB", "NFB"} {
		for _, b := range slices.Backward(p.c.Branches) {
			needed := designation != "NFB" || hardware.Compare(min, strconv.Itoa(b.Branch)) >= 0
			if b.Designation == designation && b.Default != "" && needed && !b.ended(p.m.Day) {
				list = append(list, b.Branch)
			}
		}
	}
	return list
}
