// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import "slices"

// Systems are the operating systems that the catalog knows, as os-release says them: ubuntu-24.04, rocky-9; of those with a driver
// of their own, and of those of which every version will do, the ID alone.
func (c Catalog) Systems() []string {
	var all []string
	for _, r := range c.Repositories {
		for _, id := range r.IDs {
			if r.Version != "*" {
				id += "-" + r.Version
			}
			all = append(all, id)
		}
	}
	for _, o := range c.Owners {
		all = append(all, o.IDs...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
