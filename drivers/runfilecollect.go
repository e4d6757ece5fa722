// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Collect removes the installers of versions that no change names which undo may still put back: VERSION-SHA256.run.
func (runfile) Collect(_ context.Context, h host.Host, needed []converge.Change) error {
	names, _ := h.ReadDir(Runfiles) // none where it is not there
	var errs []error
	for _, name := range names {
		version, _, _ := strings.Cut(name, "-")
		back := func(c converge.Change) bool {
			return strings.HasPrefix(string(c.Before)+" ", version+" ") || strings.HasPrefix(string(c.After)+" ", version+" ")
		}
		if path.Ext(name) == ".run" && !slices.ContainsFunc(needed, back) {
			errs = append(errs, h.Remove(path.Join(Runfiles, name)))
		}
	}
	return errors.Join(errs...)
}
