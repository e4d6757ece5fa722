// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Prune removes the packages and installers that were kept for undo, and that no change needs which undo may still put back.
func Prune(ctx context.Context, h host.Host, needed []converge.Change) error {
	return host.Join(packagers().Prune(ctx, h, needed), drivers.PruneRunfiles(ctx, h, needed))
}
