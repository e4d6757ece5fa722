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
	Source   string      `json:"source"`             // SHA-256 of the package with the source
	Headers  string      `json:"headers"`            // modinfo.Symbols of what they were built with
	Builder  string      `json:"builder"`            // system, DKMS and the kernel's compiler
	Settings string      `json:"settings,omitempty"` // SHA-256 of DKMS's settings; "" if there are none
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

// FailedBefore returns the failure of the same build: of this driver from the same source and
// headers, by the same builder and settings. "" if there was none: then it may build.
func (l Lock) FailedBefore(m SharedModules) string {
	for _, old := range l.Failed {
		same := old
		same.Failure = m.Failure
		same.Signer = m.Signer // no key makes a compiler fail
		if same == m {
			return old.Failure
		}
	}
	return ""
}

// SharedPackage returns the name of their package.
func SharedPackage(flavour, kernel string) string {
	return "gpuadm-modules-" + flavour + "-" + kernel
}

// SharedIn returns the modules in the text of a MirrorLock, by their packages' files, then those
// that did not build. A text that is no MirrorLock has none: the check of the mirror says so, where
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
