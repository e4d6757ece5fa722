// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// patiently runs what may find a packager's lock held, again each second until it is free or the wait has ended.
func patiently(ctx context.Context, h host.Host, wait time.Duration, run func() error) error {
	for end := h.Now().Add(wait); ; {
		err := run()
		busy := (*locked)(nil)
		if !errors.As(err, &busy) || h.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}
