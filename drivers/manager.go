// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strconv"
	"strings"
)

// ManagerPackage is the name of the fabric manager's package from where the driver's packages are,
// by the catalog; "" where it knows none. isInstalled says which packages are installed.
func ManagerPackage(c Catalog, version string, isInstalled func(name string) bool) string {
	major, _, _ := strings.Cut(version, ".")
	branch, err := strconv.Atoi(major)
	if err != nil {
		return ""
	}

	best := ""
	most := 0
	for _, set := range c.Sets {
		installed := 0
		manager := ""
		for _, member := range set.Members {
			name := strings.ReplaceAll(member.Name, "{b}", major)
			switch {
			case branch < set.First || branch > set.Last || !member.in(branch):
			case member.Role == "fabricmanager":
				manager = name
			case isInstalled(name):
				installed++
			}
		}

		if manager != "" && installed > most {
			best = manager
			most = installed
		}
	}

	return best
}
