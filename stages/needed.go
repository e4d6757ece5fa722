// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"maps"
	"slices"

	"github.com/gpuadm/gpuadm/internal/packages"
)

// enables are the repositories and components that gpuadm enables: those that lack, where the spec says so.
func (w wanted) enables() []packages.Lack {
	if !w.enable {
		return nil
	}
	return w.lacks
}

// reads are our files about sources, those that the distribution's packages bring for us, and what they are to hold.
func (w wanted) reads(contents map[string][]byte) (files []string, hold map[string][]byte) {
	files = append(slices.Sorted(maps.Keys(contents)), packages.EnabledBy(w.enables())...)
	hold = maps.Clone(contents)
	for _, l := range w.enables() {
		if l.File != "" {
			hold[l.File] = l.Data
		}
	}
	return files, hold
}
