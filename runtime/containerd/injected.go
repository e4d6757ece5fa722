// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// WithoutCDI says why containerd does not give containers CDI devices; "" if it does.
// Sources: pkg/cri/config/config_unix.go (v1.7.0) and internal/cri/config/config_unix.go (v2.0.0) of
// https://github.com/containerd/containerd.
func WithoutCDI(e facts.Engine) string {
	if major, minor, known := engine.ParseVersion(e.Version); known && (major < 1 || major == 1 && minor < 7) {
		return fmt.Sprintf("containerd %s has no CDI: 1.7 is the first", e.Version)
	}
	c, err := asRead(e)
	if err != nil {
		return "its configuration cannot be read: " + err.Error()
	}
	if len(c.cdiOps(c.files[0], engine.Handler{Overrides: true})) > 0 {
		return fmt.Sprintf("CDI is off in %s: write enable_cdi = true into its CRI plugin, and restart containerd", e.Config)
	}
	return ""
}
