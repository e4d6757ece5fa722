// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// mirrorModules is the command that builds modules for a kernel once.
func mirrorModules(kernel string) string {
	return trouble.Command("mirror --for ID --modules " + kernel + " --module-key FILE --module-cert FILE -o DIR")
}

// useShared decides whether modules are used that gpuadm mirror has built.
func (p *plan) useShared() (bool, error) {
	if p.choice.Source == SourceRunfile {
		return false, nil
	}

	switch p.spec.Build {
	case "shared":
	case "auto":
		if len(p.machine.Shared) == 0 && !p.keepsShared() {
			return false, nil
		}
	default:
		return false, nil
	}

	return p.useReadyMade(readyMade{
		kind:    "shared",
		stays:   p.machine.OnDisk[p.machine.Running].Shared,
		missing: p.missingShared,
		remedy: func(kernel string) string {
			if p.spec.GDS {
				return "write gds = false in [driver]"
			}
			return mirrorModules(kernel) + ", where the mirror is written; then copy its folder here"
		},
	})
}

// keepsShared says whether a kernel has shared modules on disk. Without a mirror none would come
// with the next version or kernel.
func (p *plan) keepsShared() bool {
	if p.spec.Repo.URL == "" {
		return false
	}
	for _, kernel := range p.machine.Kernels {
		if p.machine.OnDisk[kernel].Shared {
			return true
		}
	}
	return false
}

// missingShared says why a kernel has no shared modules of the driver, neither on its disk nor in
// the mirror; "" if it has.
func (p *plan) missingShared(kernel string) string {
	on := p.machine.OnDisk[kernel]
	switch {
	case p.spec.GDS:
		return "DKMS builds GPUDirect Storage's module nvidia-fs"
	case on.Shared && p.isAsked(on.Version, on.Flavour):
		return ""
	case p.machine.Shared == nil && p.spec.Build == "shared":
		return "" // no folder that can be listed: the packager knows
	}

	return p.bestReason(kernel)
}

// bestReason says why none of a mirror's modules for a kernel works; "" if some do. A mirror may
// hold several drivers, and the reason of the one that is asked for is what the operator can act
// on: that of another driver only says that it is another.
func (p *plan) bestReason(kernel string) string {
	var asked, others []facts.SharedModules
	for _, m := range p.machine.Shared {
		switch {
		case m.Kernel != kernel:
		case p.isAsked(m.Version, m.Flavour):
			asked = append(asked, m)
		case m.Failure != "": // of another driver: nothing to choose from
		default:
			others = append(others, m)
		}
	}

	for _, m := range asked {
		if p.whyNotShared(m) == "" {
			return ""
		}
	}
	for _, candidates := range [][]facts.SharedModules{asked, others} {
		if len(candidates) > 0 {
			return p.whyNotShared(slices.MaxFunc(candidates, byVersion))
		}
	}
	return "the mirror has none"
}

func byVersion(a, b facts.SharedModules) int { return hardware.Compare(a.Version, b.Version) }

// whyNotShared says why the driver does not work with a mirror's modules, "" if it does.
func (p *plan) whyNotShared(m facts.SharedModules) string {
	switch {
	case !p.isAsked(m.Version, m.Flavour):
		return fmt.Sprintf("%s is of driver %s, %s, and %s, %s, is asked for", m.Package, m.Version, m.Flavour, p.asked(), p.choice.Flavour)
	case m.Failure != "":
		return "driver " + m.Version + " did not build for it where the mirror was written: " + m.Failure
	case m.Problem != "":
		return "cannot use " + m.Package + ": " + m.Problem
	case p.machine.Trust.Demands() && !p.machine.Trust.Trusts(&m.Signer):
		return fmt.Sprintf("cannot use %s: it is signed by %s (serial %s), which the kernel does not trust: enroll that key, or build with an enrolled key", m.Package, m.Signer.Name, m.Signer.Serial)
	}
	return ""
}
