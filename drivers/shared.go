// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// sharedModules returns the modules for the kernels in the list of the mirror that a spec names;
// nil if there is no such list. A kernel that has them is not compared again.
func sharedModules(m hardware.Machine, s spec.Driver, f facts.Facts) []hardware.SharedModules {
	lock := lockOf(s, f)
	if lock == nil || f.Modules == nil {
		return nil
	}

	kernels := append(slices.Clone(m.Kernels), f.Kernel.Fallback())
	found := []hardware.SharedModules{}
	for _, listed := range packages.SharedIn(lock) {
		if !slices.Contains(kernels, listed.Kernel) {
			continue
		}
		modules := hardware.SharedModules{
			Package: listed.Package,
			Kernel:  listed.Kernel,
			Version: listed.Version,
			Flavour: listed.Flavour,
			Signer:  listed.Signer,
			Failure: listed.Failure,
		}
		if listed.Failure == "" && m.OnDisk[listed.Kernel].Version != listed.Version {
			modules.Problem = otherBuild(listed, f.Symbols[listed.Kernel])
		}
		found = append(found, modules)
	}

	return found
}

// lockOf returns the list of the mirror that a spec names; nil if there is none.
func lockOf(s spec.Driver, f facts.Facts) (lock []byte) {
	for _, list := range packages.LocksOf(s.Repo.URL) {
		lock = f.Files[list]
	}
	return lock
}

// otherBuild says why a kernel would not load shared modules; "" if it would, or if that is
// unknown: then the kernel compares the CRCs when it loads them.
func otherBuild(m packages.SharedModules, kernel facts.Symbols) string {
	switch {
	case kernel.Problem != "":
		return kernel.Problem
	case kernel.Digest == "" || kernel.Digest == m.Headers:
		return ""
	}
	return "they were built for another build of the kernel: the CRCs of its symbols have the digest " +
		m.Headers + " there and " + kernel.Digest + " here"
}

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
// hold several drivers. The operator can act on the reason for the driver that the spec asks for;
// the reason for another driver only says that it is another.
func (p *plan) bestReason(kernel string) string {
	var asked, others []hardware.SharedModules
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

	for _, candidates := range [][]hardware.SharedModules{asked, others} {
		if len(candidates) > 0 {
			return p.whyNotShared(slices.MaxFunc(candidates, byVersion))
		}
	}

	return "the mirror has none"
}

func byVersion(a, b hardware.SharedModules) int {
	return hardware.Compare(a.Version, b.Version)
}

// whyNotShared says why the driver does not work with a mirror's modules, "" if it does.
func (p *plan) whyNotShared(m hardware.SharedModules) string {
	switch {
	case !p.isAsked(m.Version, m.Flavour):
		return fmt.Sprintf(
			"%s is of driver %s, %s, and %s, %s, is asked for",
			m.Package, m.Version, m.Flavour, p.asked(), p.choice.Flavour,
		)
	case m.Failure != "":
		return "driver " + m.Version + " did not build for it where the mirror was written: " + m.Failure
	case m.Problem != "":
		return "cannot use " + m.Package + ": " + m.Problem
	case p.machine.Trust.Demands() && !p.machine.Trust.Trusts(&m.Signer):
		return fmt.Sprintf(
			"cannot use %s: it is signed by %s (serial %s), which the kernel does not trust: enroll that key, or build with an enrolled key",
			m.Package, m.Signer.Name, m.Signer.Serial,
		)
	}
	return ""
}
