// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package stages holds the whole bootstrap: which stages there are and in which order.
package stages

import (
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/runtime"
)

// Sequence returns the bootstrap, first stage first. A stage may rely on what those before it have settled.
func Sequence() []converge.Stage {
	driver := drivers.New()
	return []converge.Stage{
		preflight,            // what must hold before the first touch
		sources(driver),      // where packages come from, and whose key signs them
		packageStage(driver), // driver and toolkit, each in its one version: one transaction
		driver.Modules(),     // for every kernel that may boot; the running one has it loaded
		driver.Services(),    // what keeps the GPUs ready, and joins them over NVSwitch
		mig.Stage,            // partitioned, before anything can hold them
		runtime.Stage,        // the container engine runs the NVIDIA runtime
	}
}
