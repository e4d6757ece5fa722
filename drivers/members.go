// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
)

// compose names the members of the driver.
func (p *plan) compose() error {
	if err := p.built(); err != nil {
		return err
	}
	for _, why := range p.lacking {
		p.warn("%s; %s", why, map[bool]string{true: "the distribution's signed ones are taken", false: "DKMS builds them here"}[p.choice.Precompiled])
	}
	want := p.wants()
	p.parameters()
	if p.repo.Streams {
		switch { // dnf module list nvidia-driver; NVIDIA Driver Installation Guide, "Red Hat Enterprise Linux: module streams"
		case p.choice.Precompiled:
			p.choice.Stream = p.choice.Branch
		case p.choice.Flavour == FlavourOpen:
			p.choice.Stream = p.choice.Branch + "-open"
		default:
			p.choice.Stream = p.choice.Branch + "-dkms"
		}
	}
	if p.choice.Source == SourceRunfile {
		if err := p.lacks(want, setRow{}); err != nil {
			return err
		}
		p.tools()
		return nil
	}
	set, found := p.set()
	if !found {
		return refuse(fmt.Sprintf("cannot name the packages of driver %s from %s: none of that branch are known", p.choice.Branch, p.repo),
			"write a newer version or another source in [driver]")
	}
	if err := p.lacks(want, set); err != nil {
		return err
	}
	p.choice.Apart = set.Apart
	for _, row := range set.Members {
		if row.Role != "module" || !p.choice.Shared {
			p.member(row, want)
		}
	}
	if p.choice.Shared {
		p.member(memberRow{Role: "module", Name: facts.SharedPackage(p.choice.Flavour, "{k}")}, want)
	}
	if !p.choice.Precompiled {
		p.tools()
	}
	return p.ownNames()
}

// built decides who builds the modules: gpuadm mirror, once for all machines; or the distribution,
// which signs them; or DKMS.
func (p *plan) built() (err error) {
	if p.choice.Shared, err = p.shared(); p.choice.Shared || err != nil {
		p.choice.Precompiled = p.choice.Shared
		return err
	}
	if p.d.Build == "precompiled" && !p.repo.Precompiled {
		return refuse(fmt.Sprintf("cannot take precompiled kernel modules from %s: none are known there that the distribution has signed for each kernel", p.repo),
			`write build = "auto" in [driver], or source = "distro" on Ubuntu`)
	}
	signedOnly := p.repo.Precompiled && p.repo.OpenOnly
	if p.d.Build == "dkms" && signedOnly {
		return refuse(fmt.Sprintf("cannot build kernel modules from %s: it has signed ones only", p.repo), `write build = "auto" in [driver], or source = "nvidia"`)
	}
	p.choice.Precompiled = p.repo.Precompiled && (p.d.Build == "precompiled" || p.d.Build != "dkms" && !p.repo.Streams)
	begin, _, exact := strings.Cut(p.signedModule().Name, "{v}")
	switch {
	case !p.choice.Precompiled:
		return nil
	case exact && p.choice.Version == "":
		begin = strings.ReplaceAll(begin, "{64k}", "*")
		try := []string{fmt.Sprintf(`write an exact version in [driver]: dnf list --showduplicates "%s%s*" shows those that there are`, begin, p.choice.Branch)}
		if !signedOnly {
			try = append(try, `or write build = "dkms"`)
		}
		return refuse(fmt.Sprintf("cannot take precompiled kernel modules of branch %s from %s: their packages are named after an exact version", p.choice.Branch, p.repo), try...)
	case p.repo.Source == SourceNVIDIA:
		// Source: https://github.com/NVIDIA/yum-packaging-precompiled-kmod/issues/67.
		p.warn("%s has modules that NVIDIA has signed, and the distribution's kernels do not know its key: under Secure Boot it has to be enrolled (mokutil --import)", p.repo)
	}
	m, there := p.m.OnDisk[p.m.Running]
	p.choice.Precompiled, err = p.taken("precompiled", there && !m.DKMS && !m.Shared || p.m.RefusesBuilds, p.unsigned, func(string) string { return "apt-get update, if the archive has them by now" })
	return err
}

// unsigned names the package of signed modules that a kernel would need and that is not available;
// "" if it has some. A kernel that has modules of the branch keeps them, signed or built. Where the
// available packages are not known, apt decides.
func (p *plan) unsigned(kernel string) string {
	name := p.rendered(p.signedModule().Name, kernel)
	lacks := name != "" && p.m.Signed != nil && !slices.Contains(p.m.Signed, name)
	if m, there := p.m.OnDisk[kernel]; there && !m.Shared && hardware.InBranch(m.Version, p.choice.Branch) {
		lacks = name != "" && m.DKMS
	}
	if !lacks {
		return ""
	}
	return p.repo.String() + " has no " + name
}

// signedModule is the row of the packages with signed modules, empty if the source has none.
func (p *plan) signedModule() memberRow {
	set, _ := p.set()
	for _, m := range set.Members {
		if m.Role == "module" && m.in(p.branch) && slices.Contains(m.When, "precompiled") && slices.Contains(m.When, p.choice.Flavour) {
			return m
		}
	}
	return memberRow{}
}

// wants returns the conditions of members that are met.
func (p *plan) wants() map[string]bool {
	has := map[string]bool{}
	for _, l := range p.limits {
		has[l.row.Fabric] = true
	}
	switches, nvlink5 := len(p.m.Switches) > 0, has["nvlink5"]
	run := p.d.FabricManager == "on" || p.d.FabricManager != "off" && (switches || nvlink5)
	if p.d.FabricManager == "off" && (switches || nvlink5) {
		p.warn("the machine has NVSwitches: without the fabric manager programs cannot start CUDA on its GPUs")
	}
	return map[string]bool{
		p.choice.Flavour: true,
		"dkms":           !p.choice.Precompiled,
		"precompiled":    p.choice.Precompiled,
		"persistenced":   p.d.Persistenced,
		"fabric":         run,
		"nscq":           switches,
		"nvlsm":          run && nvlink5,
		"nvsdm":          nvlink5,
		"imex":           has["rack"],
		"gds":            p.d.GDS,
	}
}

// lacks refuses a source without a companion that the GPUs need: a companion from another source
// would mix packages that do not fit together. It only warns of a missing companion that the GPUs
// do not need.
func (p *plan) lacks(want map[string]bool, set setRow) error {
	const without = `fabricmanager = "off"`
	for _, c := range []struct {
		when, name string
		without    string // the setting that does without it; "" for a warning only
	}{
		{"fabric", "the fabric manager", without},
		{"nvlsm", "the NVLink subnet manager (nvlsm)", without},
		{"gds", "GPUDirect Storage's module (nvidia-fs)", "gds = false"},
		{"nscq", "NSCQ, by which DCGM sees NVSwitches", ""},
		{"imex", "IMEX, for NVLink between machines", ""},
	} {
		there := slices.ContainsFunc(set.Members, func(m memberRow) bool { return m.in(p.branch) && slices.Contains(m.When, c.when) })
		switch {
		case !want[c.when] || there:
		case c.without != "" && p.repo.Source == SourceNVIDIA:
			return refuse(fmt.Sprintf("cannot install %s from %s: none is known there for branch %s, and packages of two sources do not go together", c.name, p.repo, p.choice.Branch),
				"write "+c.without+" in [driver], and install it yourself")
		case c.without != "":
			return refuse(fmt.Sprintf("cannot install %s from %s: it has none, and packages of two sources do not go together", c.name, p.repo),
				`write source = "nvidia" in [driver], or `+c.without)
		default:
			p.warn("%s has no %s", p.repo, c.name)
		}
	}
	return nil
}

// set returns the package names for the repository and the branch.
func (p *plan) set() (setRow, bool) {
	for _, s := range p.c.Sets {
		if slices.Contains(s.Sources, p.repo.Source) && slices.Contains(s.Distros, p.repo.Name) && s.First <= p.branch && p.branch <= s.Last {
			return s, true
		}
	}
	return setRow{}, false
}

// member adds a row's packages, one for each kernel if the name has a kernel in it.
func (p *plan) member(row memberRow, want map[string]bool) {
	if !row.in(p.branch) || row.Arch != "" && row.Arch != p.m.Arch || strings.Contains(row.Name, "{v}") && p.choice.Version == "" {
		return
	}
	for _, w := range row.When {
		if !want[w] {
			return
		}
	}
	kernels := []string{""}
	if strings.Contains(row.Name, "{k") {
		if kernels = p.m.Kernels; len(kernels) == 0 {
			p.warnNoKernel()
		}
	}
	for _, k := range kernels {
		name := p.rendered(row.Name, k)
		if row.Extra {
			p.choice.Extras = append(p.choice.Extras, name)
			continue
		}
		p.add(Member{Name: name, Role: row.Role, Lockstep: !row.Own, PerKernel: k})
	}
}

// rendered returns a member's name with branch, version and kernel filled in.
func (p *plan) rendered(name, kernel string) string {
	pages := ""
	if strings.HasSuffix(kernel, "+64k") {
		pages = "64k-"
	}
	for _, part := range [][2]string{{"{64k}", pages}, {"{b}", p.choice.Branch}, {"{v}", p.choice.Version}, {"{kv}", bareKernel(kernel)}, {"{k}", kernel}} {
		name = strings.ReplaceAll(name, part[0], part[1])
	}
	return name
}

// bareKernel is a RHEL kernel's release without distribution and architecture, as NVIDIA's
// precompiled modules are named: 5.14.0-687.54.1 of 5.14.0-687.54.1.el9_8.x86_64.
func bareKernel(release string) string {
	if i := strings.Index(release, ".el"); i > 0 {
		return release[:i]
	}
	return release
}

// ownNames adds the packages that the spec names, and leaves out those that it excludes: a catalog
// with a wrong row must not keep a branch from being installed until the next release.
func (p *plan) ownNames() error {
	for _, name := range p.d.Without {
		n := len(p.choice.Members) + len(p.choice.Extras)
		p.choice.Members = slices.DeleteFunc(p.choice.Members, func(m Member) bool { return m.Name == name })
		p.choice.Extras = slices.DeleteFunc(p.choice.Extras, func(extra string) bool { return extra == name })
		if n == len(p.choice.Members)+len(p.choice.Extras) {
			return refuse(fmt.Sprintf("cannot leave out package %s: driver %s from %s does not ask for it", name, p.choice.Branch, p.repo),
				"remove it from without in [driver]", "the packages asked for: "+strings.Join(p.names(), ", "))
		}
	}
	for _, name := range p.d.Packages {
		if !slices.Contains(p.names(), name) {
			p.add(Member{Name: name, Role: "spec"})
		}
	}
	return nil
}

func (p *plan) names() (names []string) {
	for _, m := range p.choice.Members {
		names = append(names, m.Name)
	}
	return append(names, p.choice.Extras...)
}

func (p *plan) warnNoKernel() {
	const text = "no kernel is known: cannot determine which one the modules are for"
	if !slices.Contains(p.choice.Warnings, text) {
		p.warn(text)
	}
}

// add appends a member unless it is there.
func (p *plan) add(m Member) {
	if !slices.Contains(p.choice.Members, m) {
		p.choice.Members = append(p.choice.Members, m)
	}
}

// tools adds the packages that build modules: DKMS, a compiler and the headers of exactly the
// target kernels.
func (p *plan) tools() {
	if p.repo.Family == "" {
		p.warn("what builds kernel modules on %s is not known: DKMS, a compiler and each kernel's headers must be there", p.system())
		return
	}
	for _, t := range p.c.Tools {
		if t.Family == p.repo.Family && (len(t.Distros) == 0 || slices.Contains(t.Distros, p.repo.Name)) {
			p.add(Member{Name: t.Name, Role: t.Role})
		}
	}
	if len(p.m.Kernels) == 0 {
		p.warnNoKernel()
	}
	for _, k := range p.m.Kernels {
		if compiler := p.m.Compilers[k]; compiler != "" {
			p.add(Member{Name: compiler, Role: "compiler", PerKernel: k})
		}
		for _, h := range p.c.Headers {
			if !h.fits(p.repo.Family, p.m.ID, k) {
				continue
			}
			release := strings.TrimSuffix(k, h.Suffix)
			p.add(Member{Name: strings.ReplaceAll(h.Name, "{k}", release), Role: "headers", PerKernel: k})
			if h.Extra != "" {
				p.add(Member{Name: strings.ReplaceAll(h.Extra, "{k}", release), Role: "kernel-modules", PerKernel: k})
			}
			break
		}
	}
}

func (h headerRow) fits(family, id, kernel string) bool {
	return h.Family == family && (len(h.IDs) == 0 || slices.Contains(h.IDs, id)) &&
		strings.HasPrefix(kernel, h.Prefix) && strings.Contains(kernel, h.Contains) && strings.HasSuffix(kernel, h.Suffix)
}

// exceptions returns the rows that apply to the machine, to one of its GPUs, and to the version or
// branch asked for.
func (p *plan) exceptions(asked string) []exceptionRow {
	family, _, _ := strings.Cut(p.m.Instance, ".")
	var rows []exceptionRow
	for _, e := range p.c.Exceptions {
		gpu := func(ids []string) bool {
			return slices.ContainsFunc(p.limits, func(l limit) bool {
				id := strings.ToLower(l.gpu.ID)
				return slices.Contains(ids, id) || slices.Contains(ids, id+":"+l.gpu.Board)
			})
		}
		of := func(i string) bool { return i == family || strings.HasSuffix(i, "-") && strings.HasPrefix(family, i) }
		switch {
		case below(asked, e.From), e.Below != "" && hardware.Compare(asked, e.Below) >= 0, e.RDMA && !p.m.RDMA, gpu(e.Except):
		case len(e.IDs) > 0 && !gpu(e.IDs), len(e.Clouds) > 0 && !slices.Contains(e.Clouds, p.m.Cloud):
		case len(e.Instances) > 0 && !slices.ContainsFunc(e.Instances, of):
		default:
			rows = append(rows, e)
		}
	}
	return rows
}

// parameters adds the exceptions' module parameters that the spec does not set.
func (p *plan) parameters() {
	for _, e := range p.exceptions(cmp.Or(p.choice.Version, p.choice.Branch)) {
		if cmp.Or(e.Flavour, p.choice.Flavour) != p.choice.Flavour {
			p.warn("%s; %s kernel modules were chosen nevertheless", e.Why, p.choice.Flavour)
			continue
		}
		for name, value := range e.Parameters {
			if _, set := p.d.Parameters[name]; set {
				continue
			}
			if p.choice.Parameters == nil {
				p.choice.Parameters = map[string]string{}
			}
			p.choice.Parameters[name] = value
		}
	}
}
