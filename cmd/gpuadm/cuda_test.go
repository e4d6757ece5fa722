// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestNoCUDA: doctor starts CUDA, and finds that it does not start; --no-cuda leaves that out, as on
// a machine whose GPUs another program has for itself.
func TestNoCUDA(t *testing.T) {
	n := reported(t, "cuda-3")
	code, said := typedOn(t, n, "doctor")
	check.That(t, code == exitPending && strings.Contains(said, "DRV-020"), "exit %d\n%s", code, said)

	_, said = typedOn(t, n, "doctor --no-cuda")
	check.That(t, !strings.Contains(said, "DRV-020"), "--no-cuda:\n%s", said)
}
