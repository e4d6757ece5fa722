// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
)

// chooseBuild decides who builds the modules: gpuadm mirror, once for all machines; or the
// distribution, which signs them; or DKMS.
func (p *plan) chooseBuild() error {
	shared, err := p.useShared()
	if err != nil {
		return err
	}
	if shared {
		p.choice.Shared = true
		p.choice.Precompiled = true
		return nil
	}

	if err := p.checkBuild(); err != nil {
		return err
	}
	if !p.repo.Precompiled || p.spec.Build == "dkms" {
		return nil
	}
	// A repository with streams has signed modules only in a stream that the spec has to ask for.
	if p.repo.Streams && p.spec.Build != "precompiled" {
		return nil
	}
	return p.choosePrecompiled()
}

// checkBuild refuses a build that the source does not offer.
func (p *plan) checkBuild() error {
	if p.spec.Build == "precompiled" && !p.repo.Precompiled {
		return refuse(
			fmt.Sprintf("cannot take precompiled kernel modules from %s: none are known there that the distribution has signed for each kernel", p.repo),
			`write build = "auto" in [driver], or source = "distro" on Ubuntu`)
	}

	if p.spec.Build == "shared" && p.choice.Source == SourceRunfile {
		return refuse(
			fmt.Sprintf("cannot take shared kernel modules from %s: NVIDIA's installer brings the source of its modules, and DKMS builds them here", p.repo),
			`write build = "auto" in [driver]`)
	}

	if p.spec.Build == "dkms" && p.signedOnly() {
		return refuse(
			fmt.Sprintf("cannot build kernel modules from %s: it has signed ones only", p.repo),
			`write build = "auto" in [driver], or source = "nvidia"`)
	}

	return nil
}

// signedOnly says whether the source has signed modules, and nothing that DKMS could build.
func (p *plan) signedOnly() bool { return p.repo.Precompiled && p.repo.OpenOnly }

// choosePrecompiled takes the modules that the distribution has signed, if the kernels have some.
func (p *plan) choosePrecompiled() error {
	prefix, _, exact := strings.Cut(p.signedModule().Name, "{v}")
	if exact && p.choice.Version == "" {
		prefix = strings.ReplaceAll(prefix, "{64k}", "*")
		try := []string{fmt.Sprintf(`write an exact version in [driver]: dnf list --showduplicates "%s%s*" shows those that there are`, prefix, p.choice.Branch)}
		if !p.signedOnly() {
			try = append(try, `or write build = "dkms"`)
		}
		return refuse(
			fmt.Sprintf("cannot take precompiled kernel modules of branch %s from %s: their packages are named after an exact version", p.choice.Branch, p.repo),
			try...)
	}

	if p.repo.Source == SourceNVIDIA {
		// Source: https://github.com/NVIDIA/yum-packaging-precompiled-kmod/issues/67.
		p.warn("%s has modules that NVIDIA has signed, and the distribution's kernels do not know its key: under Secure Boot it has to be enrolled (mokutil --import)", p.repo)
	}

	running, found := p.machine.OnDisk[p.machine.Running]
	hasSigned := found && !running.DKMS && !running.Shared
	precompiled, err := p.useReadyMade(readyMade{
		kind:    "precompiled",
		stays:   hasSigned || p.machine.RefusesBuilds,
		missing: p.missingSigned,
		remedy:  p.signedRemedy,
	})
	p.choice.Precompiled = precompiled
	return err
}

// missingSigned says why a kernel has no signed modules; "" if it has, or will have. A kernel that
// has modules of the branch keeps them, signed or built. Where the available packages are not
// known, apt decides.
func (p *plan) missingSigned(kernel string) string {
	name := p.packageName(p.signedModule().Name, kernel)
	if name == "" {
		return ""
	}

	on, isOfBranch := p.ofBranch(kernel)
	if isOfBranch && !on.DKMS {
		return ""
	}
	if p.lacksSigned(name) {
		return p.repo.String() + " has no " + name
	}
	if isOfBranch {
		return "DKMS has built its modules of branch " + p.choice.Branch
	}
	return ""
}

// ofBranch returns a kernel's own modules, and whether they are of the branch.
func (p *plan) ofBranch(kernel string) (on hardware.Module, is bool) {
	on, found := p.machine.OnDisk[kernel]
	return on, found && !on.Shared && hardware.InBranch(on.Version, p.choice.Branch)
}

// lacksSigned says whether the source is known to have no package of signed modules.
func (p *plan) lacksSigned(name string) bool {
	return p.machine.Signed != nil && !slices.Contains(p.machine.Signed, name)
}

// signedRemedy says how a kernel gets signed modules. DKMS's package calls its source nvidia or
// nvidia-open.
func (p *plan) signedRemedy(kernel string) string {
	on, isOfBranch := p.ofBranch(kernel)
	if !isOfBranch || p.lacksSigned(p.packageName(p.signedModule().Name, kernel)) {
		return "sudo apt-get update, if the archive has them by now"
	}

	owner := "dpkg -S"
	if p.repo.Family == "dnf" {
		owner = "rpm -qf"
	}
	const remove = "%s /usr/src/nvidia*-%s/dkms.conf, which names the package of DKMS's modules: remove it, then run the same command again"
	return fmt.Sprintf(remove, owner, on.Version)
}

// signedModule is the row of the packages with signed modules, empty if the source has none.
func (p *plan) signedModule() memberRow {
	set, _ := p.packageSet()
	for _, row := range set.Members {
		signed := row.Role == "module" && slices.Contains(row.When, "precompiled")
		if signed && row.in(p.branch) && slices.Contains(row.When, p.choice.Flavour) {
			return row
		}
	}

	return memberRow{}
}

// readyMade describes modules that are not built on this machine.
type readyMade struct {
	kind    string                     // shared or precompiled, as the spec's build has it
	stays   bool                       // the running kernel keeps them, so no kernel can have DKMS's
	missing func(kernel string) string // why a kernel has none; "" if it has
	remedy  func(kernel string) string // how it gets some
}

// useReadyMade decides whether ready-made modules are used: they are if each kernel that may boot
// has some. A machine that stays on them where some kernel has none leaves that one without: DKMS
// builds for every kernel with headers, and depmod prefers updates/dkms to kernel/ (Ubuntu's
// /etc/depmod.d/ubuntu.conf), so the two cannot coexist.
func (p *plan) useReadyMade(ready readyMade) (bool, error) {
	var has, skipped, why []string
	for _, kernel := range p.machine.Kernels {
		missing := ready.missing(kernel)
		if missing == "" {
			has = append(has, kernel)
			continue
		}

		if p.spec.Build == ready.kind {
			return false, refuse(
				fmt.Sprintf("cannot take %s kernel modules for kernel %s: %s", ready.kind, kernel, missing),
				ready.remedy(kernel),
				`write build = "auto" in [driver], by which other modules are taken, or DKMS builds some`)
		}

		skipped = append(skipped, kernel)
		why = append(why, fmt.Sprintf("no %s kernel modules for kernel %s: %s", ready.kind, kernel, missing))
	}

	if p.fallbackKeeps(ready) {
		has = append(has, p.machine.Fallback)
	}
	if len(skipped) == 0 {
		p.machine.Kernels = has
		return true, nil
	}
	if !ready.stays || !slices.Contains(has, p.machine.Running) {
		p.missing = append(p.missing, why[0])
		return false, nil
	}

	for i, kernel := range skipped {
		p.warn("%s; gpuadm installs none for it, since DKMS would also replace the modules of kernel %s. Under kernel %s no GPU works until it has modules: %s",
			why[i], p.machine.Running, kernel, ready.remedy(kernel))
	}

	p.machine.Kernels = has
	p.choice.Skipped = skipped
	return true, nil
}

// fallbackKeeps says whether the kernel that ran before keeps its ready-made modules while it is
// installed, as distributions keep it: apt's autoremove keeps the running, the newest and the
// second newest (/etc/kernel/postinst.d/apt-auto-removal of apt), dnf three (installonly_limit in
// dnf.conf(5) and RHEL's dnf.conf).
func (p *plan) fallbackKeeps(ready readyMade) bool {
	shared := ready.kind == "shared"
	on := p.machine.OnDisk[p.machine.Fallback]
	if on.Version == "" || on.DKMS || on.Shared != shared {
		return false
	}

	listed := shared && p.machine.Shared != nil
	if !listed && !p.isAsked(on.Version, on.Flavour) {
		return false
	}
	return ready.missing(p.machine.Fallback) == ""
}

// isAsked says whether modules are of the driver that is asked for.
func (p *plan) isAsked(version, flavour string) bool {
	if flavour != p.choice.Flavour {
		return false
	}
	if p.choice.Version != "" {
		return version == p.choice.Version
	}
	return hardware.InBranch(version, p.choice.Branch)
}
