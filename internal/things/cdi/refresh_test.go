// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// recording notes the jobs of units.
type recording struct {
	*simhost.Node
	jobs []string
}

func (r *recording) SetUnit(ctx context.Context, name string, c host.UnitChange) error {
	r.jobs = append(r.jobs, c.Job+" "+name)
	return r.Node.SetUnit(ctx, name, c)
}

// TestRefresh: units that systemd has given up are reset, and the one that watches is started; the
// service is not run for it, and masked or missing units stay so.
func TestRefresh(t *testing.T) {
	unit := func(name, active string) string {
		return "[[unit]]\nname = \"nvidia-cdi-refresh." + name + "\"\nenabled = \"enabled\"\nactive = \"" + active + "\"\n"
	}
	for _, x := range []struct {
		name  string
		units string
		found converge.State
		jobs  []string
	}{
		{"no toolkit", "", "none", nil},
		{"as they should be", unit("service", "inactive") + unit("path", "active"), "ready", nil},
		{
			"start-limit", unit("service", "failed") + unit("path", "failed"),
			"given up: nvidia-cdi-refresh.service and nvidia-cdi-refresh.path",
			[]string{"reset-failed nvidia-cdi-refresh.service", "start nvidia-cdi-refresh.path"},
		},
		{
			"the service alone", unit("service", "failed") + unit("path", "active"),
			"given up: nvidia-cdi-refresh.service",
			[]string{"reset-failed nvidia-cdi-refresh.service"},
		},
	} {
		n := must.Get(simhost.New([]byte("-- sim.toml --\n" + x.units + "-- etc/os-release --\n")))(t)
		r := &recording{Node: n}
		thing := cdi.New("refresh").(converge.Follower)

		found := must.Get(thing.Look(t.Context(), r))(t)
		check.Equal(t, found, x.found, "%s:", x.name)
		must.OK(t, thing.Make(t.Context(), r, thing.Current(found)))
		check.That(t, slices.Equal(r.jobs, x.jobs), "%s: jobs %q, want %q", x.name, r.jobs, x.jobs)
		again := must.Get(thing.Look(t.Context(), r))(t)
		check.That(t, cdi.GivenUp(again) == "", "%s: still %s", x.name, again)
	}
}

// TestRule: the udev rule that starts the service is found by what it says, as
// deployments/udev/99-nvidia-cdi-refresh.rules of https://github.com/NVIDIA/nvidia-container-toolkit
// says it.
func TestRule(t *testing.T) {
	const text = "ACTION==\"add\", SUBSYSTEM==\"module\", KERNEL==\"nvidia|nvidia_current\", TAG+=\"systemd\", ENV{SYSTEMD_WANTS}+=\"nvidia-cdi-refresh.service\"\n"
	for _, folder := range []string{"usr/lib", "etc"} {
		file := folder + "/udev/rules.d/99-nvidia-cdi-refresh.rules"
		n := must.Get(simhost.New([]byte("-- " + file + " --\n" + text)))(t)
		check.Equal(t, cdi.Rule(n), "/"+file, "rule")
	}

	none := must.Get(simhost.New([]byte("-- usr/lib/udev/rules.d/71-nvidia.rules --\n" + strings.ReplaceAll(text, "cdi-refresh", "persistenced"))))(t)
	check.Equal(t, cdi.Rule(none), "", "no rule")
}
