// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package stages holds the whole bootstrap: which stages there are and in which order.
package stages

import (
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/runtime"
)

// Sequence returns the bootstrap, first stage first. A stage may rely on what those before it have settled.
func Sequence() []converge.Stage {
	return []converge.Stage{
		preflight,     // what must hold before the first touch
		runtime.Stage, // the container engine runs the NVIDIA runtime
	}
}
