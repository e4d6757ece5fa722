// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// refuse returns an error that says what forbids a driver, and which supported driver works with
// all GPUs; more lists further remedies.
func (p *plan) refuse(what string, more ...string) error {
	try := append(p.instead(), more...)
	if len(try) == 0 {
		try = []string{`no supported driver is known that works with all GPUs here: remove those that it does not support, or write owner = "other" in [driver] and manage the driver yourself`}
	}
	return refuse(what, try...)
}

// instead says what to write in [driver] for a driver that is supported today and works with all
// GPUs: from the same source, else from another. It never names a branch that has ended, and is
// empty if there is no such driver.
func (p *plan) instead() []string {
	for _, repo := range p.repositories() {
		if !p.isUsable(repo) {
			continue
		}

		other := *p
		other.repo = repo
		for _, branch := range p.supportedBranches() {
			version := other.versionToWrite(branch)
			if version == "" {
				continue
			}
			if repo.Source == p.repo.Source {
				return []string{fmt.Sprintf(`write version = "%s" in [driver]`, version)}
			}
			return []string{fmt.Sprintf(`write source = "%s" and version = "%s" in [driver]`, repo.specSource(), version)}
		}
	}
	return nil
}

// isUsable says whether gpuadm can install from a repository: it has packages for the machine, and
// its address and key are known.
func (p *plan) isUsable(repo repositoryRow) bool {
	if repo.arch(p.machine.Arch) == "" || repo.Refused != "" {
		return false
	}

	trial := *p
	trial.repo = repo
	return trial.setURLAndKey() == nil
}

// nvidiaIsUsable says whether gpuadm can install from NVIDIA's repository for the machine.
func (p *plan) nvidiaIsUsable() bool {
	return slices.ContainsFunc(p.repositories(), func(row repositoryRow) bool {
		return row.Source == SourceNVIDIA && p.isUsable(row)
	})
}

// repositories lists the repositories that have drivers for this machine; the plan's own comes
// first.
func (p *plan) repositories() []repositoryRow {
	rows, _ := p.catalog.repositories(p.machine)
	if len(p.catalog.Runfiles) > 0 {
		rows = append(slices.Clone(rows), p.runfileRow())
	}

	list := []repositoryRow{p.repo}
	for _, row := range rows {
		if row.Source != p.repo.Source && row.arch(p.machine.Arch) != "" {
			list = append(list, row)
		}
	}

	return list
}

// specSource is the value of the spec's source that asks for the repository.
func (r repositoryRow) specSource() string {
	if r.Source == SourceNVIDIA || r.Source == SourceRunfile {
		return r.Source
	}
	return "distro"
}

// versionToWrite is how the spec asks for a branch that the plan would succeed with: by the branch
// or, for a runfile and for packages that are named after an exact version, by a known version.
// "" if neither would succeed.
func (p *plan) versionToWrite(branch int) string {
	asked := strconv.Itoa(branch)
	if p.repo.Source != SourceRunfile && p.wouldPlan(branch, asked) {
		return asked
	}

	row := p.catalog.branch(branch)
	if row == nil || row.Known == "" || !p.wouldPlan(branch, row.Known) {
		return ""
	}
	return row.Known
}

// wouldPlan says whether the plan would succeed with a branch, or with a version of it.
func (p *plan) wouldPlan(branch int, asked string) bool {
	if p.whyNot(branch, asked) != nil {
		return false
	}

	trial := *p
	trial.choice = Choice{Source: p.repo.Source}
	trial.spec.Packages = nil
	trial.spec.Without = nil
	trial.settle(branch)
	if strings.Contains(asked, ".") {
		trial.choice.Version = asked
	}
	return trial.chooseMembers() == nil
}
