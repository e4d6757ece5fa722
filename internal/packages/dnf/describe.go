// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Describe is Packager's. rpm keeps digests of a package's parts, and none of its file; dnf repoquery has no word for it.
func (dnf) Describe(ctx context.Context, v host.View, names []string) (map[string]packages.Description, error) {
	d, err := readRPM(ctx, v)
	if err != nil {
		return nil, err
	}
	all := map[string]packages.Description{}
	for _, name := range names {
		if p, ok := d.find(name); ok {
			all[name] = packages.Description{Name: p.name, Version: p.evr, Arch: p.arch}
		}
	}
	return all, nil
}
