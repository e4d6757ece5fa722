// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Prune removes kept packages and installers that no undo needs any more.
func Prune(ctx context.Context, h host.Host, needed []converge.Change) error {
	return host.Join(packages.Prune(ctx, h, needed), drivers.PruneRunfiles(ctx, h, needed))
}
