// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// mirrorModules is the command by which modules for a kernel are built once.
func mirrorModules(kernel string) string {
	return trouble.Command("mirror --for ID --modules " + kernel + " --module-key FILE --module-cert FILE -o DIR")
}

// shared settles whether modules are taken that gpuadm mirror has built: if each kernel that may boot has some that fit. A machine that
// runs on them stays on them, as one on signed modules does, and a kernel that has none is left without.
func (p *plan) shared() (taken bool, err error) {
	demanded := p.d.Build == "shared"
	onDisk := slices.ContainsFunc(p.m.Kernels, func(kernel string) bool { return p.m.OnDisk[kernel].Shared })
	if p.choice.Source == SourceRunfile || !demanded && (p.d.Build != "auto" || len(p.m.Shared) == 0 && !onDisk) {
		return false, nil
	}
	var has, without []string
	why := "" // of the first kernel without
	for _, kernel := range p.m.Kernels {
		switch lacks := p.unshared(kernel); {
		case lacks == "":
			has = append(has, kernel)
		default:
			without, why = append(without, kernel), cmp.Or(why, fmt.Sprintf("for kernel %s: %s", kernel, lacks))
		}
	}
	if p.d.GDS {
		without, why = p.m.Kernels, "for GPUDirect Storage: DKMS builds its module nvidia-fs"
	}
	switch {
	case len(without) == 0 && (demanded || len(has) > 0):
		return true, nil
	case demanded:
		try := []string{`write build = "auto" in [driver], by which the distribution's signed modules are taken, or DKMS builds them`}
		if !p.d.GDS {
			try = append([]string{"build them where the mirror is written: " + mirrorModules(without[0]) + ", and copy its folder here"}, try...)
		}
		return false, refuse("cannot take shared kernel modules "+why, try...)
	case !p.d.GDS && slices.Contains(has, p.m.Running) && p.m.OnDisk[p.m.Running].Shared:
		p.m.Kernels, p.choice.Without = has, without
		p.warn("no shared kernel modules %s; it is left without, and has no GPUs until there are some: %s builds them where the mirror is written", why, mirrorModules(without[0]))
		return true, nil
	}
	p.warn("no shared kernel modules %s", why)
	return false, nil
}

// unshared says why a kernel has no shared modules that fit, neither on its disk nor in the mirror; "" if it has.
func (p *plan) unshared(kernel string) (why string) {
	asked := cmp.Or(p.choice.Version, p.choice.Branch)
	fits := func(version, flavour string) bool {
		return flavour == p.choice.Flavour && (version == p.choice.Version || p.choice.Version == "" && hardware.InBranch(version, p.choice.Branch))
	}
	if on := p.m.OnDisk[kernel]; on.Shared && fits(on.Version, on.Flavour) {
		return ""
	}
	if p.m.Shared == nil && p.d.Build == "shared" {
		return "" // no folder that can be listed: the packager knows
	}
	why = "the mirror has none"
	for _, m := range p.m.Shared {
		switch {
		case m.Kernel != kernel:
		case !fits(m.Version, m.Flavour):
			why = fmt.Sprintf("%s is of driver %s, %s, and %s, %s, is asked for", m.Package, m.Version, m.Flavour, asked, p.choice.Flavour)
		case m.Problem != "":
			why = "cannot use " + m.Package + ": " + m.Problem
		case p.m.Trust.Demands() && !p.m.Trust.Trusts(&m.Signer):
			why = fmt.Sprintf("cannot use %s: it is signed by %s (serial %s), which the kernel does not trust: enroll that key, or build with an enrolled key", m.Package, m.Signer.Name, m.Signer.Serial)
		default:
			return ""
		}
	}
	return why
}

// sharedMembers adds the package of each kernel's modules.
func (p *plan) sharedMembers() {
	if len(p.m.Kernels) == 0 {
		p.warnNoKernel()
	}
	for _, kernel := range p.m.Kernels {
		p.add(Member{Name: facts.SharedPackage(p.choice.Flavour, kernel), Role: "module", Lockstep: true, PerKernel: kernel})
	}
}
