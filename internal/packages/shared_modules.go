// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

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

// SharedPackage returns the name of their package.
func SharedPackage(flavour, kernel string) string { return "gpuadm-modules-" + flavour + "-" + kernel }

// SharedIn returns the modules in the text of a MirrorLock, by their packages' files, then those that
// did not build. A text that is no MirrorLock has none: the check of the mirror says so, where
// something is to be installed from it.
func SharedIn(lock []byte) []SharedModules {
	var l struct {
		Modules map[string]SharedModules `json:"modules"`
		Failed  []SharedModules          `json:"failed"`
	}
	if json.Unmarshal(lock, &l) != nil {
		return nil
	}

	var all []SharedModules
	for _, file := range slices.Sorted(maps.Keys(l.Modules)) {
		all = append(all, l.Modules[file])
	}
	return append(all, l.Failed...)
}
