// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMaskedAndBack: an undo leaves a unit that gpuadm has masked as it was before. That holds for a
// unit without [Install], too, which systemd cannot enable.
func TestMaskedAndBack(t *testing.T) {
	for _, install := range []string{"", "[Install]\nWantedBy=multi-user.target\n"} {
		const unit = "nvidia-imex.service"
		const sim = "-- sim.toml --\n[[unit]]\nname = \"" + unit + "\"\n"
		n := must.Get(simhost.New([]byte(sim + "-- usr/lib/systemd/system/" + unit + " --\n[Service]\nExecStart=/usr/bin/nvidia-imex\n" + install)))(t)
		w := things.Masked(unit, "")
		before := must.Get(w.Look(t.Context(), n))(t)
		masked := must.Get(w.To(before))(t)
		must.OK(t, w.Make(t.Context(), n, masked))
		found := must.Get(w.Look(t.Context(), n))(t)
		must.That(t, found == masked && found == converge.State("masked inactive"), "masked: %q", found)

		must.OK(t, w.Make(t.Context(), n, before))
		found = must.Get(w.Look(t.Context(), n))(t)
		check.Equal(t, found, before, "unmasked:")
	}
}

// TestMaskedUntilReboot: a unit with a mask in /run cannot start, and unmask without --runtime
// leaves that mask.
func TestMaskedUntilReboot(t *testing.T) {
	for state, try := range map[converge.State]string{
		"masked inactive":         "sudo systemctl unmask x.service",
		"masked-runtime inactive": "sudo systemctl unmask --runtime x.service",
	} {
		for _, w := range []converge.Want{things.Running("x.service", ""), things.Enabled("x.service", "")} {
			_, err := w.To(state)
			var refused *trouble.Error
			must.That(t, errors.As(err, &refused), "%s: %v", state, err)
			check.List(t, refused.Try, []string{try}, "%s:", state)
		}
	}
}
