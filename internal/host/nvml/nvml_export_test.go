// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// What the tests look into.
var (
	Printable  = printable
	WithOutput = withOutput
)

// Because is what the door says of a code that NVML's initialisation returns.
func Because(files *files.Files, code string) *host.NoDriver {
	return New(files).because(code)
}
