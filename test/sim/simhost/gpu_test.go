// SPDX-License-Identifier: Apache-2.0

package simhost_test

import (
	_ "embed"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/view"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const first, second = "0000:17:00.0", "0000:1f:00.0"

func driver(t *testing.T, v host.View) host.Driver {
	t.Helper()
	d := must.Get(v.Driver(t.Context()))(t)
	return d
}

// code is what the driver refused with, "" if it did not.
func code(t *testing.T, err error) string {
	t.Helper()
	refused := (*host.GPUError)(nil)
	must.That(t, err == nil || errors.As(err, &refused), "%T: %v", err, err)
	if err == nil {
		return ""
	}
	return refused.Code
}

// layout is the instances of a GPU in short: id:profile@start[compute slices].
func layout(g host.GPU) string {
	var all []string
	for _, in := range g.Instances {
		p := g.Profiles[slices.IndexFunc(g.Profiles, func(p host.Profile) bool {
			return p.ID == in.Profile
		})]
		s := strings.TrimSpace(strings.Join([]string{p.Name, "@", string(rune('0' + in.At.Start)), "=", string(rune('0' + in.ID))}, ""))
		for _, c := range in.Compute {
			s += "+" + string(rune('0'+c.At.Start)) + ":" + string(rune('0'+c.At.Size))
		}
		all = append(all, s)
	}

	return strings.Join(all, " ")
}

func TestGPUPower(t *testing.T) {
	n, ctx := node(t, "-- sim.toml --\n[[gpu]]\nmodel = \"H100-80\"\nmode = true\ncount = 2\n"), t.Context()
	n.Fail(1, &host.GPUError{
		Call: "nvmlDeviceCreateGpuInstanceWithPlacement",
		GPU:  first,
		Code: "UNKNOWN",
	})
	n.CutAt(2)
	_, err := n.CreateInstance(ctx, first, 9, host.Span{Start: 0, Size: 4})
	must.OK(t, err)
	_, err = n.CreateInstance(ctx, first, 9, host.Span{Start: 4, Size: 4})
	check.That(t, code(t, err) == "UNKNOWN", "%v", err)
	err = n.SetMIGMode(ctx, second, false)
	check.That(t, errors.Is(err, simhost.ErrPower), "%v", err)
	_, err = n.Driver(ctx)
	check.That(t, errors.Is(err, simhost.ErrPower), "%v", err)
	n.Boot(simhost.LoseAll)
	if d := driver(t, n); d.GPUs[0].Mode || d.GPUs[0].Instances != nil {
		t.Errorf("%+v", d.GPUs[0])
	}
	n.Lose(second, "it has fallen off the bus")
	want := host.GPU{
		Address: second,
		Index:   1,
		Minor:   -1,
		Device:  "0x233010DE",
		Sub:     "0x16C110DE",
		Lost:    "it has fallen off the bus",
	}
	check.None(t, cmp.Diff(want, driver(t, n).GPUs[1]), "got")
	err = n.SetMIGMode(ctx, second, true)
	check.That(t, code(t, err) == "GPU_IS_LOST", "%v", err)
}

// TestDriverAppears: the module's version file, which a command may write, is what makes the driver
// answer.
func TestDriverAppears(t *testing.T) {
	n := node(t, `
-- sim.toml --
[driver]
module = "/sys/module/nvidia/version"
[[gpu]]
model = "T4"
[[command]]
argv = ["modprobe", "nvidia"]
writes = { "/sys/module/nvidia/version" = "570.1\n" }
`)
	none := (*host.NoDriver)(nil)
	if _, err := n.Driver(t.Context()); !errors.As(err, &none) {
		t.Errorf("%v", err)
	}
	if err := n.SetPersistence(t.Context(), first, true); !errors.As(err, &none) {
		t.Errorf("%v", err)
	}
	_, err := n.Do(t.Context(), "modprobe", "nvidia")
	must.OK(t, err)
	d := driver(t, n)
	check.That(t, d.Version == "570.1" && d.NVML == "570.1" && !d.GPUs[0].MIG && d.GPUs[0].Name == "Tesla T4", "%+v", d)
	err = n.SetMIGMode(t.Context(), first, true)
	check.That(t, code(t, err) == "NOT_SUPPORTED", "%v", err)
	n.Image()
	_, err = n.Driver(t.Context())
	check.That(t, errors.As(err, new(host.Later)), "%v", err)
}

// TestDriverReload: a kernel module that is taken out takes all instances along, and on Hopper the
// mode with them.
func TestDriverReload(t *testing.T) {
	for model, mode := range map[string]bool{"A100-40": true, "H100-80": false} {
		n := node(t, `
-- sim.toml --
[driver]
module = "/sys/module/nvidia/version"
[[gpu]]
model = "`+model+`"
mode = true
persistent = true
[[command]]
argv = ["rmmod", "nvidia"]
removes = ["/sys/module/nvidia/version"]
[[command]]
argv = ["modprobe", "nvidia"]
writes = { "/sys/module/nvidia/version" = "570.1\n" }
-- sys/module/nvidia/version --
580.1
`)
		_, err := n.CreateInstance(t.Context(), first, 9, host.Span{Start: 0, Size: 4})
		must.OK(t, err)
		_, err = n.Do(t.Context(), "modprobe", "nvidia")
		must.OK(t, err)
		g := driver(t, n).GPUs[0]
		check.That(t, len(g.Instances) == 1 && g.Persistent, "%s: loaded over itself: %+v", model, g)
		for _, do := range []string{"rmmod", "modprobe"} {
			_, err := n.Do(t.Context(), do, "nvidia")
			must.OK(t, err)
		}

		if g := driver(t, n).GPUs[0]; len(g.Instances) > 0 || g.Mode != mode || g.Pending != mode || g.Persistent {
			t.Errorf("%s: reloaded, and %s, mode %t, pending %t, persistent %t", model, layout(g), g.Mode, g.Pending, g.Persistent)
		}
	}
}

// TestBadGPUs: a table that names no GPU, profile or place of its own is refused.
func TestBadGPUs(t *testing.T) {
	for _, wrong := range []string{
		"model = \"H1000\"", "count = 2", "model = \"T4\"\nmode = true\n[[gpu.instance]]\nprofile = \"1g.5gb\"",
		"model = \"A100-40\"\n[[gpu.instance]]\nprofile = \"1g.5gb\"", "model = \"A100-40\"\nmode = true\n[[gpu.instance]]\nprofile = \"3g.20gb\"\nstart = 1",
	} {
		_, err := simhost.New([]byte("-- sim.toml --\n[[gpu]]\n" + wrong + "\n"))
		check.That(t, err != nil, "no error of %q", wrong)
	}
}

//go:embed testdata/recorded.txtar
var recordedFiles string

// TestGPURecord: a recorded machine answers as the first one did.
func TestGPURecord(t *testing.T) {
	n := node(t, recordedFiles)
	again := func(n *simhost.Node) *simhost.Node {
		r := view.Record(n.View())
		_, _ = r.Driver(t.Context())
		return node(t, string(r.Txtar()))
	}

	once := again(n)
	want, got := driver(t, n), driver(t, once)
	for _, d := range []host.Driver{want, got} {
		for i := range d.GPUs {
			for j := range d.GPUs[i].Instances {
				for k := range d.GPUs[i].Instances[j].Compute {
					d.GPUs[i].Instances[j].Compute[k].UUID = "" // others on purpose
				}
			}
		}
	}

	diff := cmp.Diff(want, got, cmpopts.EquateEmpty())
	check.That(t, diff == "" && want.GPUs[0].Instances[0].Clients != nil, "%v", diff)
	err := once.SetMIGMode(t.Context(), first, false)
	check.That(t, code(t, err) == "IN_USE", "%v", err)
	n = node(t, "-- sim.toml --\n[driver]\nwhy = \"x\"\ntry = \"y\"\n")
	none := (*host.NoDriver)(nil)
	_, err = again(n).Driver(t.Context())
	check.That(t, errors.As(err, &none) && none.Why == "x" && none.Try == "y", "%v", err)
}
