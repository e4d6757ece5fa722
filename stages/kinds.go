// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/runtime"
)

// ThingOf builds a thing again from its kind and name, for undo.
func ThingOf(kind, name string) (converge.Thing, error) {
	switch kind {
	case "file":
		return things.NewFile(name, mergeOf(name)), nil
	case "folder":
		return things.NewFolder(name), nil
	case "link":
		return things.NewLink(name), nil
	case "secret":
		return things.NewSecret(name), nil
	case "unit-files":
		return things.NewUnitFiles(name), nil
	case "unit":
		return things.NewUnit(name), nil
	case "fresh":
		return things.NewFresh(name, runtime.Ready), nil
	}
	return nil, fmt.Errorf("cannot undo %s %s: this gpuadm knows no such kind; use the newer one that made it", kind, name)
}

// mergeOf returns how to take our part out of a file that somebody else has changed since.
func mergeOf(name string) things.MergeFunc {
	if path.Ext(name) == ".toml" {
		return runtime.TakeOut
	}
	return nil
}
