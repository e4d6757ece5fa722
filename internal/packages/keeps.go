// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// keeps says of what gets replaced whether it can be had again; gone says why a version of a package cannot, "" if it
// can. Of those asked for half is nothing: if one cannot go back, none does. A dependency that was drawn to a newer
// version serves the older ones as well.
func Keeps(changes []converge.Change, gone func(name, version string) string) {
	whole := ""
	for i, c := range changes {
		before, after := Parse(c.Before), Parse(c.After)
		if !before.Installed() || before.Version == after.Version && after.Installed() && before.Broken == "" {
			continue
		}
		why := ""
		if before.Broken != "" {
			why = fmt.Sprintf("%s was %s, which nobody wants back", c.Name, before.Broken)
		} else {
			why = gone(c.Name, before.Version)
		}
		if changes[i].Keeps = cmp.Or(why, c.Keeps); why != "" && before.Broken == "" && !(c.Drawn && after.Installed()) {
			whole = why
		}
	}
	for i, c := range changes {
		if whole != "" && c.Keeps == "" {
			changes[i].Keeps = whole
		}
	}
}
