// SPDX-License-Identifier: Apache-2.0

package kmod_test

import (
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestFabricOfASilentDriver: whether the GPUs are registered is unknown while the driver is silent,
// unless a change of the run makes it answer.
func TestFabricOfASilentDriver(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- sim.toml --\n[driver]\nwhy = \"not loaded\"\n")))(t)
	_, err := kmod.NewFabric().Look(t.Context(), n)
	var later host.Later
	check.That(t, errors.As(err, &later), "%v", err)
	check.Equal(t, later.Silent, "the driver does not answer: not loaded", "")
}
