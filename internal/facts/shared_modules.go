// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
)

// SharedModules are the driver's modules for one kernel, which gpuadm mirror has built once for all
// machines that run it.
type SharedModules struct {
	Package  string      `json:"package"` // gpuadm-modules-open-6.1.0-28-amd64
	Kernel   string      `json:"kernel"`
	Version  string      `json:"version"` // of the driver
	Flavour  string      `json:"flavour"` // open, proprietary
	Vermagic string      `json:"vermagic"`
	Source   string      `json:"source"`  // SHA-256 of the package with the source
	Headers  string      `json:"headers"` // modinfo.Symbols of what they were built with
	Builder  string      `json:"builder"` // system, DKMS and the kernel's compiler
	Signer   modinfo.Key `json:"signer"`
	Problem  string      `json:"-"` // why this machine's kernel would not load them

	// Failure is the compiler's first error where they did not build: then there is no package.
	Failure string `json:"failure,omitempty"`
}

// SameBuild reports whether two are of one driver for one kernel.
func (m SharedModules) SameBuild(o SharedModules) bool { return m.Compare(o) == 0 }

// Compare orders by kernel, flavour and version of the driver, as text.
func (m SharedModules) Compare(o SharedModules) int {
	return cmp.Or(
		strings.Compare(m.Kernel, o.Kernel),
		strings.Compare(m.Flavour, o.Flavour),
		strings.Compare(m.Version, o.Version),
	)
}

// SharedFolder is where their package has modules, below the kernel's folder. depmod prefers the
// folder updates to the kernel's own modules.
const SharedFolder = "updates/gpuadm"

// IsShared says whether a module's file is from the package of shared modules.
func IsShared(file string) bool { return strings.Contains(file, "/"+SharedFolder+"/") }

// SharedPackage returns the name of their package.
func SharedPackage(flavour, kernel string) string { return "gpuadm-modules-" + flavour + "-" + kernel }

// shared reads the modules for target kernels from the list of a mirror. A kernel that has them is
// not compared again.
func (g *gathering) shared(f Facts, list string) []SharedModules {
	data := g.read(list)
	if data == nil || f.Modules == nil {
		return nil
	}
	var lock struct {
		Modules map[string]SharedModules `json:"modules"`
		Failed  []SharedModules          `json:"failed"`
	}
	found := []SharedModules{}
	if err := json.Unmarshal(data, &lock); err != nil {
		return found // the check of the mirror says so, where something is to be installed from it
	}

	kernels := append(f.Kernel.Targets(f.Live), f.Kernel.Fallback())
	for _, file := range slices.Sorted(maps.Keys(lock.Modules)) {
		m := lock.Modules[file]
		if !slices.Contains(kernels, m.Kernel) {
			continue
		}
		k, _ := f.Modules.Of(m.Kernel)
		if k.Nvidia == nil || k.Nvidia.Version != m.Version {
			m.Problem = m.otherBuild(g.v)
		}
		found = append(found, m)
	}
	for _, m := range lock.Failed {
		if slices.Contains(kernels, m.Kernel) {
			found = append(found, m)
		}
	}
	return found
}

// otherBuild says why this machine's kernel would not load the modules; "" if it would, or if that
// is unknown: then the kernel compares the CRCs when it loads them.
func (m SharedModules) otherBuild(v host.View) string {
	symbols, err := modinfo.Symbols(v, m.Kernel)
	switch {
	case err != nil:
		return err.Error()
	case symbols == "" || symbols == m.Headers:
		return ""
	}
	return "they were built for another build of the kernel: the CRCs of its symbols have the digest " +
		m.Headers + " there and " + symbols + " here"
}
