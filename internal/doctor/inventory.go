// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"maps"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/apt"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
)

// inventory is what the packager's database says.
type inventory struct {
	packager string // apt, dnf; "" for none that is known
	audit    packages.Audit
	packages map[string]packages.State
	// incomplete are held packages that lack a package which they depend on.
	incomplete []string
}

func incompleteOf(all map[string]packages.State) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].Broken == packages.Incomplete {
			names = append(names, name)
		}
	}
	return names
}

// Packages are the packages that are installed, as dpkg or rpm says.
func (m *Machine) Packages() inventory {
	all, _ := m.packages.read(m, "packages", func() (inventory, error) {
		found := inventory{packager: facts.PackagerOf(m.View).Name}
		p := packages.NewReading(apt.New(), dnf.New(nil)).Named(found.packager)
		if p == nil {
			return found, nil
		}
		all, err := p.Installed(m.ctx, m.View)
		if err != nil {
			return found, err
		}

		installed := func() (map[string]packages.State, error) { return all, nil }
		found.audit, err = p.Audit(m.ctx, m.View, installed)
		if err != nil {
			return found, err // in the midst of a transaction the packages are of two versions
		}
		found.packages = all
		found.incomplete = incompleteOf(all)
		return found, nil
	})
	return all
}
