// SPDX-License-Identifier: Apache-2.0

package facts

import "github.com/gpuadm/gpuadm/internal/modinfo"

// Symbols is what a kernel exports to modules. A kernel loads only modules that were built with the
// same CRCs of the symbols that they use.
type Symbols struct {
	Digest  string // modinfo.Symbols
	Problem string // why the list of symbols could not be read
}

// symbols reads the symbols of the target kernels, and of the kernel that would run instead.
func (g *gathering) symbols(f Facts) map[string]Symbols {
	found := map[string]Symbols{}
	for _, kernel := range append(f.Kernel.Targets(f.Live), f.Kernel.Fallback()) {
		digest, err := modinfo.SymbolsOnce(g.memory(), g.v, kernel)
		switch {
		case err != nil:
			found[kernel] = Symbols{Problem: err.Error()}
		case digest != "":
			found[kernel] = Symbols{Digest: digest}
		}
	}

	return found
}
