// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
)

const packageKind = "package"

func packageRef(name string) converge.Ref {
	return converge.Ref{Kind: packageKind, Name: name}
}

// indexOf returns the index of a package's change; -1 if there is none.
func indexOf(changes []converge.Change, name string) int {
	return slices.IndexFunc(changes, func(c converge.Change) bool { return c.Name == name })
}

// Named returns the names of the changes as a set.
func Named(changes []converge.Change) map[string]bool {
	named := map[string]bool{}
	for _, c := range changes {
		named[c.Name] = true
	}
	return named
}

// Due returns the changes that need a new version or a repair; it leaves out changes of marks
// alone.
func Due(changes []converge.Change) (list []converge.Change) {
	for _, c := range changes {
		before, after := Parse(c.Before), Parse(c.After)
		sound := after.Version == before.Version && before.Broken == ""
		if after.Installed() != before.Installed() || after.Installed() && !sound {
			list = append(list, c)
		}
	}
	return list
}

// installs reports whether a change installs another version than the one before.
func installs(c converge.Change) bool {
	after := Parse(c.After)
	return after.Installed() && after.Version != Parse(c.Before).Version
}

// Removes reports whether all changes are removals: those need no repository.
func Removes(changes []converge.Change) bool {
	installed := func(c converge.Change) bool { return Parse(c.After).Installed() }
	return !slices.ContainsFunc(Due(changes), installed)
}

// WithBefore returns the changes with the installed states as Before: in a rollback these differ
// from the plan.
func WithBefore(installed map[string]State, changes []converge.Change) []converge.Change {
	now := slices.Clone(changes)
	for i, c := range now {
		now[i].Before = installed[c.Name].String()
	}
	return now
}

// dependencyChange returns a change that others require.
func dependencyChange(name string, before, after State, why string) converge.Change {
	return converge.Change{
		Ref:        packageRef(name),
		Before:     before.String(),
		After:      after.String(),
		Why:        why,
		Dependency: true,
	}
}
