// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A Description is what identifies an installed package for other programs.
type Description struct {
	Name    string // without the architecture
	Version string // as the packager writes it, epoch and revision included
	Arch    string
	SHA256  string // of its file, as the signed list of its source says; "" where no list says it
}

// Describe describes those of the packages that are installed, by the names that gpuadm has for them. packager is its name.
func (r *Reading) Describe(ctx context.Context, v host.View, names []string) (packager string, all map[string]Description, err error) {
	m, err := r.packager(v)
	if err != nil {
		return "", nil, err
	}
	all, err = m.Describe(ctx, v, names)
	return m.Name(), all, err
}
