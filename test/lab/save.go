// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// Save keeps what a host has written on its disk, as a folder of the cache for Options.Over of later hosts. The host
// is shut down for it, and stays off.
func (m *Machine) Save(ctx context.Context, place string) error {
	if m.leader != 0 {
		_ = runInside(m.inside(ctx, "systemctl", "poweroff")) // it may end before nsenter does
		if err := m.waitOff(bootLimit); err != nil {
			return err
		}
	}
	if err := m.off(); err != nil {
		return err
	}
	return Cached(place, func(scratch string) error {
		// With the overlay's own marks: whiteouts are devices, opaque folders have an attribute.
		if _, err := parts.Run(ctx, "", nil, "cp", "--archive", "--reflink=auto", m.path("upper")+"/.", scratch); err != nil {
			return fmt.Errorf("cannot save the host's disk: %w", err)
		}
		return os.Chmod(scratch, 0o755)
	})
}
