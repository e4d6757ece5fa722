// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// mirrorModules is the command by which modules for a kernel are built once.
func mirrorModules(kernel string) string {
	return trouble.Command("mirror --for ID --modules " + kernel + " --module-key FILE --module-cert FILE -o DIR")
}

// taken settles whether modules of a kind are taken that are not built on the machine, shared or
// precompiled: if each kernel that may boot has some. A machine that stays on them where some
// kernel has none leaves that one without: DKMS builds for every kernel with headers, and depmod
// prefers updates/dkms to kernel/ (Ubuntu's /etc/depmod.d/ubuntu.conf), so the two cannot coexist.
// lacks says why a kernel has none; cure how it gets some.
func (p *plan) taken(kind string, stays bool, lacks, cure func(kernel string) string) (bool, error) {
	var has, without, why []string
	for _, kernel := range p.m.Kernels {
		switch lack := lacks(kernel); {
		case lack == "":
			has = append(has, kernel)
		case p.d.Build == kind:
			return false, refuse(fmt.Sprintf("cannot take %s kernel modules for kernel %s: %s", kind, kernel, lack), cure(kernel),
				`write build = "auto" in [driver], by which other modules are taken, or DKMS builds some`)
		default:
			without, why = append(without, kernel), append(why, fmt.Sprintf("no %s kernel modules for kernel %s: %s", kind, kernel, lack))
		}
	}
	// The kernel that ran before keeps its modules while it is installed, as distributions keep it:
	// apt's autoremove keeps the running, the newest and the second newest
	// (/etc/kernel/postinst.d/apt-auto-removal of apt), dnf three (installonly_limit in dnf.conf(5)
	// and RHEL's dnf.conf).
	listed := kind == "shared" && p.m.Shared != nil
	if on := p.m.OnDisk[p.m.Fallback]; on.Shared == (kind == "shared") && !on.DKMS && on.Version != "" && (listed || p.asked(on.Version, on.Flavour)) && lacks(p.m.Fallback) == "" {
		has = append(has, p.m.Fallback)
	}
	switch {
	case len(without) == 0:
		p.m.Kernels = has
		return true, nil
	case !stays || !slices.Contains(has, p.m.Running):
		p.lacking = append(p.lacking, why[0])
		return false, nil
	}
	for i, kernel := range without {
		p.warn("%s; gpuadm installs none for it, since DKMS would also replace the modules of kernel %s. Under kernel %s no GPU works until it has modules: %s", why[i], p.m.Running, kernel, cure(kernel))
	}
	p.m.Kernels, p.choice.Without = has, without
	return true, nil
}

// shared settles whether modules are taken that gpuadm mirror has built.
func (p *plan) shared() (bool, error) {
	onDisk := slices.ContainsFunc(p.m.Kernels, func(kernel string) bool { return p.m.OnDisk[kernel].Shared })
	onDisk = onDisk && p.d.Repo.URL != "" // without a mirror none would come with the next version or kernel
	if p.choice.Source == SourceRunfile || p.d.Build != "shared" && (p.d.Build != "auto" || len(p.m.Shared) == 0 && !onDisk) {
		return false, nil
	}
	return p.taken("shared", p.m.OnDisk[p.m.Running].Shared, p.unshared, func(kernel string) string {
		if p.d.GDS {
			return "write gds = false in [driver]"
		}
		return mirrorModules(kernel) + ", where the mirror is written; then copy its folder here"
	})
}

// asked says whether modules are of the driver that is asked for.
func (p *plan) asked(version, flavour string) bool {
	return flavour == p.choice.Flavour && (version == p.choice.Version || p.choice.Version == "" && hardware.InBranch(version, p.choice.Branch))
}

// unshared says why a kernel has no shared modules that fit, neither on its disk nor in the mirror;
// "" if it has.
func (p *plan) unshared(kernel string) (why string) {
	version, on := cmp.Or(p.choice.Version, p.choice.Branch), p.m.OnDisk[kernel]
	switch {
	case p.d.GDS:
		return "DKMS builds GPUDirect Storage's module nvidia-fs"
	case on.Shared && p.asked(on.Version, on.Flavour), p.m.Shared == nil && p.d.Build == "shared": // no folder that can be listed: the packager knows
		return ""
	}
	why = "the mirror has none"
	for _, m := range p.m.Shared {
		switch {
		case m.Kernel != kernel:
		case !p.asked(m.Version, m.Flavour):
			why = fmt.Sprintf("%s is of driver %s, %s, and %s, %s, is asked for", m.Package, m.Version, m.Flavour, version, p.choice.Flavour)
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
