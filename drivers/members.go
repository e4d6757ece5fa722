// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// chooseMembers names the packages of the driver.
func (p *plan) chooseMembers() error {
	if err := p.chooseBuild(); err != nil {
		return err
	}
	instead := "DKMS builds them here"
	if p.choice.Precompiled {
		instead = "the distribution's signed ones are taken"
	}
	for _, why := range p.missing {
		p.warn("%s; %s", why, instead)
	}

	conditions := p.conditions()
	p.addParameters()
	if p.repo.Streams {
		p.choice.Stream = p.stream()
	}

	if p.choice.Source == SourceRunfile {
		if err := p.checkCompanions(conditions, setRow{}); err != nil {
			return err
		}
		p.addBuildTools()
		return p.applySpecPackages()
	}

	set, found := p.packageSet()
	if !found {
		return refuse(
			fmt.Sprintf("cannot name the packages of driver %s from %s: none of that branch are known", p.choice.Branch, p.repo),
			"write a newer version or another source in [driver]")
	}

	if err := p.checkCompanions(conditions, set); err != nil {
		return err
	}
	p.choice.OwnVersion = set.OwnVersion
	p.addSet(set, conditions)
	if !p.choice.Precompiled {
		p.addBuildTools()
	}
	return p.applySpecPackages()
}

// stream names the stream of dnf's module nvidia-driver. Source: dnf module list nvidia-driver;
// NVIDIA Driver Installation Guide, "Red Hat Enterprise Linux: module streams".
func (p *plan) stream() string {
	switch {
	case p.choice.Precompiled:
		return p.choice.Branch
	case p.choice.Flavour == FlavourOpen:
		return p.choice.Branch + "-open"
	}
	return p.choice.Branch + "-dkms"
}

// conditions returns the words of the catalog's column when, and whether each is met.
func (p *plan) conditions() map[string]bool {
	fabrics := map[string]bool{}
	for _, l := range p.limits {
		fabrics[l.row.Fabric] = true
	}

	nvlink5 := fabrics[FabricNVLink5]
	nvswitch := len(p.machine.Switches) > 0
	hasSwitches := nvswitch || nvlink5
	runManager := p.spec.FabricManager == "on"
	switch {
	case runManager || !hasSwitches:
	case p.spec.FabricManager == "off":
		p.warn("the machine has NVSwitches: without the fabric manager programs cannot start CUDA on its GPUs")
	default:
		runManager = true
	}

	return map[string]bool{
		p.choice.Flavour: true,
		"dkms":           !p.choice.Precompiled,
		"precompiled":    p.choice.Precompiled,
		"persistenced":   p.spec.Persistenced,
		"fabric":         runManager,
		"nscq":           nvswitch,
		"nvlsm":          runManager && nvlink5,
		"nvsdm":          nvlink5,
		"imex":           fabrics[FabricRack],
		"gds":            p.spec.GDS,
	}
}

// companion is software that some GPUs need besides the driver.
type companion struct {
	condition string // of its packages
	name      string
	without   string // the setting that does without it; "" if the GPUs work without it
}

// companions returns the software that a source may lack.
func companions() []companion {
	const noManager = `fabricmanager = "off"`
	return []companion{
		{"fabric", "the fabric manager", noManager},
		{"nvlsm", "the NVLink subnet manager (nvlsm)", noManager},
		{"gds", "GPUDirect Storage's module (nvidia-fs)", "gds = false"},
		{"nscq", "NSCQ, by which DCGM sees NVSwitches", ""},
		{"imex", "IMEX, for NVLink between machines", ""},
	}
}

// checkCompanions refuses a source without a companion that the GPUs need: a companion from another
// source would mix packages that do not fit together. It only warns of a missing companion that the
// GPUs do not need.
func (p *plan) checkCompanions(conditions map[string]bool, set setRow) error {
	for _, c := range companions() {
		if !conditions[c.condition] || set.has(c.condition, p.branch) {
			continue
		}

		switch {
		case c.without == "":
			p.warn("%s has no %s", p.repo, c.name)
		case p.repo.Source == SourceNVIDIA:
			return refuse(
				fmt.Sprintf("cannot install %s from %s: none is known there for branch %s, and packages of two sources cannot be mixed", c.name, p.repo, p.choice.Branch),
				"write "+c.without+" in [driver], and install it yourself")
		default:
			try := "write " + c.without + " in [driver], and install it yourself"
			if p.nvidiaIsUsable() {
				try = `write source = "nvidia" in [driver], or ` + c.without
			}
			return refuse(
				fmt.Sprintf("cannot install %s from %s: that source has no such package, and packages of two sources cannot be mixed", c.name, p.repo),
				try)
		}
	}
	return nil
}

// has says whether the set has packages of a branch that are for a condition.
func (s setRow) has(condition string, branch int) bool {
	return slices.ContainsFunc(s.Members, func(row memberRow) bool {
		return row.in(branch) && slices.Contains(row.When, condition)
	})
}

// packageSet returns the package names for the repository and the branch.
func (p *plan) packageSet() (setRow, bool) {
	for _, set := range p.catalog.Sets {
		if set.First > p.branch || p.branch > set.Last {
			continue
		}
		if slices.Contains(set.Sources, p.repo.Source) && slices.Contains(set.Distros, p.repo.Name) {
			return set, true
		}
	}
	return setRow{}, false
}

// addSet adds the packages of a set whose conditions are met; shared modules replace those of the
// set.
func (p *plan) addSet(set setRow, conditions map[string]bool) {
	for _, row := range set.Members {
		if row.Role != "module" || !p.choice.Shared {
			p.addRow(row, conditions)
		}
	}

	if p.choice.Shared {
		p.addRow(memberRow{
			Role: "module",
			Name: packages.SharedPackage(p.choice.Flavour, "{k}"),
		}, conditions)
	}
}

// addRow adds a row's packages, one for each kernel if the name has a kernel in it.
func (p *plan) addRow(row memberRow, conditions map[string]bool) {
	if !row.in(p.branch) || row.Arch != "" && row.Arch != p.machine.Arch {
		return
	}
	if strings.Contains(row.Name, "{v}") && p.choice.Version == "" {
		return
	}
	for _, condition := range row.When {
		if !conditions[condition] {
			return
		}
	}

	kernels := []string{""}
	if strings.Contains(row.Name, "{k") {
		kernels = p.machine.Kernels
		p.warnNoKernel()
	}
	for _, kernel := range kernels {
		name := p.packageName(row.Name, kernel)
		if row.Extra {
			p.choice.Extras = append(p.choice.Extras, name)
			continue
		}
		p.addMember(Member{
			Name:      name,
			Role:      row.Role,
			Lockstep:  !row.Own,
			PerKernel: kernel,
		})
	}
}

// packageName returns a row's name with branch, version and kernel filled in.
func (p *plan) packageName(name, kernel string) string {
	pages := ""
	if strings.HasSuffix(kernel, "+64k") {
		pages = "64k-"
	}

	return strings.NewReplacer(
		"{64k}", pages,
		"{b}", p.choice.Branch,
		"{v}", p.choice.Version,
		"{kv}", bareKernel(kernel),
		"{k}", kernel,
	).Replace(name)
}

// bareKernel is a RHEL kernel's release without distribution and architecture, as NVIDIA's
// precompiled modules are named: 5.14.0-687.54.1 of 5.14.0-687.54.1.el9_8.x86_64.
func bareKernel(release string) string {
	if i := strings.Index(release, ".el"); i > 0 {
		return release[:i]
	}
	return release
}

// applySpecPackages adds the packages that the spec names, and leaves out those that it excludes: a
// catalog with a wrong row must not keep a branch from being installed until the next release.
func (p *plan) applySpecPackages() error {
	for _, name := range p.spec.Without {
		if !slices.Contains(p.names(), name) {
			return trouble.WithKeys(refuse(
				fmt.Sprintf("cannot leave out package %s: driver %s from %s does not ask for it", name, p.choice.Branch, p.repo),
				"remove it from without in [driver]",
				"the packages asked for: "+strings.Join(p.names(), ", ")), "driver.without")
		}

		p.choice.Members = slices.DeleteFunc(p.choice.Members, func(m Member) bool {
			return m.Name == name
		})
		p.choice.Extras = slices.DeleteFunc(p.choice.Extras, func(extra string) bool {
			return extra == name
		})
	}

	for _, name := range p.spec.Packages {
		if !slices.Contains(p.names(), name) {
			p.addMember(Member{Name: name, Role: "spec"})
		}
	}

	return nil
}

// names lists the packages that the choice has so far.
func (p *plan) names() []string {
	var names []string
	for _, m := range p.choice.Members {
		names = append(names, m.Name)
	}
	return append(names, p.choice.Extras...)
}

// warnNoKernel warns, once, if no kernel is known that needs modules.
func (p *plan) warnNoKernel() {
	const text = "no kernel is known: cannot determine which one the modules are for"
	if len(p.machine.Kernels) == 0 && !slices.Contains(p.choice.Warnings, text) {
		p.warn(text)
	}
}

// addMember adds a package that the choice does not have yet.
func (p *plan) addMember(m Member) {
	if !slices.Contains(p.choice.Members, m) {
		p.choice.Members = append(p.choice.Members, m)
	}
}

// addBuildTools adds the packages that build modules: DKMS, a compiler and the headers of exactly
// the target kernels.
func (p *plan) addBuildTools() {
	if p.repo.Family == "" {
		p.warn("what builds kernel modules on %s is not known: DKMS, a compiler and each kernel's headers must be there", p.system())
		return
	}

	for _, tool := range p.catalog.Tools {
		if tool.Family != p.repo.Family {
			continue
		}
		if len(tool.Distros) == 0 || slices.Contains(tool.Distros, p.distro()) {
			p.addMember(Member{Name: tool.Name, Role: tool.Role})
		}
	}

	p.warnNoKernel()
	for _, kernel := range p.machine.Kernels {
		if compiler := p.machine.Compilers[kernel]; compiler != "" {
			p.addMember(Member{
				Name:      compiler,
				Role:      "compiler",
				PerKernel: kernel,
			})
		}

		p.addHeaders(kernel)
	}
}

// addHeaders adds the packages of a kernel's headers by the first row that is for the kernel.
func (p *plan) addHeaders(kernel string) {
	for _, row := range p.catalog.Headers {
		if row.Family != p.repo.Family || !p.isOfDistro(row) || !row.isFor(kernel) {
			continue
		}

		release := strings.TrimSuffix(kernel, row.Suffix)
		headers := strings.ReplaceAll(row.Name, "{k}", release)
		p.addMember(Member{Name: headers, Role: "headers", PerKernel: kernel})
		if row.Extra != "" {
			extra := strings.ReplaceAll(row.Extra, "{k}", release)
			p.addMember(Member{
				Name:      extra,
				Role:      "kernel-modules",
				PerKernel: kernel,
			})
		}

		return
	}
}

// isOfDistro says whether the row is for the machine's distribution.
func (p *plan) isOfDistro(h headerRow) bool {
	if len(h.IDs) > 0 && !slices.Contains(h.IDs, p.machine.ID) {
		return false
	}
	return len(h.Distros) == 0 || slices.Contains(h.Distros, p.distro())
}

// isFor says whether the row is for a kernel, by its release.
func (h headerRow) isFor(kernel string) bool {
	return strings.HasPrefix(kernel, h.Prefix) &&
		strings.Contains(kernel, h.Contains) &&
		strings.HasSuffix(kernel, h.Suffix)
}

// addParameters adds the exceptions' module parameters that the spec does not set.
func (p *plan) addParameters() {
	for _, e := range p.exceptions(p.asked()) {
		if e.Flavour != "" && e.Flavour != p.choice.Flavour {
			p.warn("%s; %s kernel modules were chosen nevertheless", e.Why, p.choice.Flavour)
			continue
		}

		for name, value := range e.Parameters {
			if _, set := p.spec.Parameters[name]; set {
				continue
			}
			if p.choice.Parameters == nil {
				p.choice.Parameters = map[string]string{}
			}
			p.choice.Parameters[name] = value
		}
	}
}
