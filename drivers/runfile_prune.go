// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// PruneRunfiles removes the installers, VERSION-SHA256.run, of versions that none of the changes names. needed is what undo may
// still restore.
func PruneRunfiles(_ context.Context, h host.Host, needed []converge.Change) error {
	names, _ := h.ReadDir(Runfiles) // none where it is not there
	var errs []error
	for _, name := range names {
		version, _, _ := strings.Cut(name, "-")
		back := func(c converge.Change) bool {
			return c.Kind == (runfile{}).Ref().Kind && (versionIn(c.Before) == version || versionIn(c.After) == version)
		}
		if path.Ext(name) == ".run" && !slices.ContainsFunc(needed, back) {
			errs = append(errs, h.Remove(path.Join(Runfiles, name)))
		}
	}
	return host.Join(errs...)
}
