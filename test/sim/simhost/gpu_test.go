// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package simhost_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const first, second = "0000:17:00.0", "0000:1f:00.0"

func driver(t *testing.T, v host.View) host.Driver {
	t.Helper()
	d, err := v.Driver(t.Context())
	must(t, err)
	return d
}

// code is what the driver refused with, "" if it did not.
func code(t *testing.T, err error) string {
	t.Helper()
	refused := (*host.GPUError)(nil)
	if err != nil && !errors.As(err, &refused) {
		t.Fatalf("%T: %v", err, err)
	}
	if err == nil {
		return ""
	}
	return refused.Code
}

// layout is the instances of a GPU in short: id:profile@start[compute slices].
func layout(g host.GPU) string {
	var all []string
	for _, in := range g.Instances {
		p := g.Profiles[slices.IndexFunc(g.Profiles, func(p host.Profile) bool { return p.ID == in.Profile })]
		s := strings.TrimSpace(strings.Join([]string{p.Name, "@", string(rune('0' + in.At.Start)), "=", string(rune('0' + in.ID))}, ""))
		for _, c := range in.Compute {
			s += "+" + string(rune('0'+c.At.Start)) + ":" + string(rune('0'+c.At.Size))
		}
		all = append(all, s)
	}
	return strings.Join(all, " ")
}

func TestPartition(t *testing.T) {
	n, ctx := node(t, "-- sim.toml --\n[[gpu]]\nmodel = \"H100-80\"\ncount = 2\n"), t.Context()
	if _, err := n.CreateInstance(ctx, first, 9, host.Span{Start: 0, Size: 4}); code(t, err) != "NOT_SUPPORTED" {
		t.Errorf("an instance with MIG off: %v", err)
	}
	must(t, n.SetMIGMode(ctx, first, true))
	if d := driver(t, n); !d.GPUs[0].Mode || !d.GPUs[0].Pending || d.GPUs[1].Mode {
		t.Error("Hopper does not switch at once, or the other GPU does too")
	}
	before := n.Touches()
	for _, step := range []struct {
		profile int
		at      host.Span
		id      int
		code    string
	}{
		{9, host.Span{Start: 4, Size: 4}, 2, ""},
		{19, host.Span{Start: 6, Size: 1}, 0, "INSUFFICIENT_RESOURCES"}, // it overlaps
		{9, host.Span{Start: 2, Size: 4}, 0, "INVALID_ARGUMENT"},
		{99, host.Span{Start: 0, Size: 1}, 0, "INVALID_ARGUMENT"},
		{20, host.Span{Start: 0, Size: 1}, 7, ""},
		{20, host.Span{Start: 1, Size: 1}, 0, "INSUFFICIENT_RESOURCES"}, // one with media engines
		{14, host.Span{Start: 2, Size: 2}, 4, ""},
	} {
		if id, err := n.CreateInstance(ctx, first, step.profile, step.at); id != step.id || code(t, err) != step.code {
			t.Errorf("profile %d at %v: id %d, %v", step.profile, step.at, id, err)
		}
	}
	if n.Touches() != before+7 {
		t.Errorf("%d touches, want 7", n.Touches()-before)
	}
	if id, err := n.CreateCompute(ctx, first, 2, 1, host.Span{}); id != 0 || err != nil {
		t.Errorf("%d, %v", id, err)
	}
	if _, err := n.CreateCompute(ctx, first, 2, 1, host.Span{}); code(t, err) != "INSUFFICIENT_RESOURCES" {
		t.Errorf("two times two of three slices: %v", err)
	}
	if id, err := n.CreateCompute(ctx, first, 2, 0, host.Span{Start: 2, Size: 1}); id != 1 || err != nil {
		t.Errorf("%d, %v", id, err)
	}
	if err := n.DestroyInstance(ctx, first, 2); code(t, err) != "IN_USE" || len(n.Violations()) != 1 {
		t.Errorf("%v, %q", err, n.Violations())
	}
	must(t, n.DestroyCompute(ctx, first, 2, 0))
	if got, want := layout(driver(t, n).GPUs[0]), "3g.40gb@4=2+2:1 2g.20gb@2=4 1g.10gb+me@0=7"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := n.SetMIGMode(ctx, first, false); code(t, err) != "IN_USE" {
		t.Errorf("MIG off over instances: %v", err)
	}
	if err := n.DestroyInstance(ctx, "0000:99:00.0", 2); code(t, err) != "NOT_FOUND" {
		t.Error(err)
	}
}

// TestGPUBoot: Ampere's mode outlives a boot, later GPUs forget theirs. Instances are always forgotten.
func TestGPUBoot(t *testing.T) {
	for model, want := range map[string]struct{ atOnce, booted bool }{"A100-40": {true, true}, "A30": {true, true}, "H200": {true, false}, "RTX-PRO-6000": {true, false}} {
		n, ctx := node(t, "-- sim.toml --\n[[gpu]]\nmodel = \""+model+"\"\npersistent = true\nclients = [7]\n"), t.Context()
		mode := func() (now, pending bool) { g := driver(t, n).GPUs[0]; return g.Mode, g.Pending }
		if err := n.SetMIGMode(ctx, first, true); code(t, err) != "IN_USE" {
			t.Errorf("%s: mode of a GPU in use: %v", model, err)
		}
		n.Use(first, -1)
		must(t, n.SetMIGMode(ctx, first, true))
		if now, pending := mode(); now != want.atOnce || !pending {
			t.Errorf("%s: mode %t, pending %t", model, now, pending)
		}
		if err := n.ResetGPUs(ctx, first); err == nil {
			t.Errorf("%s: reset in persistence mode", model)
		}
		must(t, n.SetPersistence(ctx, first, false))
		must(t, n.ResetGPUs(ctx, first))
		if now, _ := mode(); !now {
			t.Errorf("%s: no MIG mode after a reset", model)
		}
		p := driver(t, n).GPUs[0].Profiles[0]
		_, err := n.CreateInstance(ctx, first, p.ID, p.Places[1])
		must(t, err)
		n.Reboot()
		if now, pending := mode(); now != want.booted || pending != want.booted || len(driver(t, n).GPUs[0].Instances) > 0 {
			t.Errorf("%s: mode %t, pending %t after a boot", model, now, pending)
		}
	}
}

func TestGPUPower(t *testing.T) {
	n, ctx := node(t, "-- sim.toml --\n[[gpu]]\nmodel = \"H100-80\"\nmode = true\ncount = 2\n"), t.Context()
	n.Fail(1, &host.GPUError{Call: "nvmlDeviceCreateGpuInstanceWithPlacement", GPU: first, Code: "UNKNOWN"})
	n.CutAt(2)
	_, err := n.CreateInstance(ctx, first, 9, host.Span{Start: 0, Size: 4})
	must(t, err)
	if _, err := n.CreateInstance(ctx, first, 9, host.Span{Start: 4, Size: 4}); code(t, err) != "UNKNOWN" {
		t.Error(err)
	}
	if err := n.SetMIGMode(ctx, second, false); !errors.Is(err, simhost.ErrPower) {
		t.Error(err)
	}
	if _, err := n.Driver(ctx); !errors.Is(err, simhost.ErrPower) {
		t.Error(err)
	}
	n.Boot(simhost.LoseAll)
	if d := driver(t, n); d.GPUs[0].Mode || d.GPUs[0].Instances != nil {
		t.Errorf("%+v", d.GPUs[0])
	}
	n.Lose(second, "it has fallen off the bus")
	want := host.GPU{Address: second, Index: 1, Minor: -1, Device: "0x233010DE", Sub: "0x16C110DE", Lost: "it has fallen off the bus"}
	if diff := cmp.Diff(want, driver(t, n).GPUs[1]); diff != "" {
		t.Error(diff)
	}
	if err := n.SetMIGMode(ctx, second, true); code(t, err) != "GPU_IS_LOST" {
		t.Error(err)
	}
}

// TestDriverAppears: the module's version file, which a command may write, is what makes the driver answer.
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
	must(t, err)
	if d := driver(t, n); d.Version != "570.1" || d.NVML != "570.1" || d.GPUs[0].MIG || d.GPUs[0].Name != "Tesla T4" {
		t.Errorf("%+v", d)
	}
	if err := n.SetMIGMode(t.Context(), first, true); code(t, err) != "NOT_SUPPORTED" {
		t.Error(err)
	}
	n.Image()
	if _, err := n.Driver(t.Context()); !errors.As(err, new(host.Later)) {
		t.Errorf("%v", err)
	}
}

// TestDriverReload: a kernel module that is taken out takes all instances along, and on Hopper the mode with them.
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
		must(t, err)
		_, err = n.Do(t.Context(), "modprobe", "nvidia")
		must(t, err)
		if g := driver(t, n).GPUs[0]; len(g.Instances) != 1 || !g.Persistent {
			t.Errorf("%s: loaded over itself: %+v", model, g)
		}
		for _, do := range []string{"rmmod", "modprobe"} {
			_, err := n.Do(t.Context(), do, "nvidia")
			must(t, err)
		}
		if g := driver(t, n).GPUs[0]; len(g.Instances) > 0 || g.Mode != mode || g.Pending != mode || g.Persistent {
			t.Errorf("%s: reloaded, and %s, mode %t, pending %t, persistent %t", model, layout(g), g.Mode, g.Pending, g.Persistent)
		}
	}
}

// TestModels holds the tables against rules: names as nvidia-smi makes them up, places on the grid, as many as there may be.
func TestModels(t *testing.T) {
	for _, model := range []string{"A30", "A100-40", "A100-80", "H100-80", "H200", "B200", "RTX-PRO-6000"} {
		g := driver(t, node(t, "-- sim.toml --\n[[gpu]]\nmodel = \""+model+"\"\n")).GPUs[0]
		for _, p := range g.Profiles {
			if name := host.ProfileName(p, g.Memory); name != p.Name {
				t.Errorf("%s: %s would be %s", model, p.Name, name)
			}
			if p.Max > len(p.Places) || p.Compute[len(p.Compute)-1].Slices != p.Slices {
				t.Errorf("%s: %+v", model, p)
			}
			for i, at := range p.Places {
				if i > 0 && at.Start <= p.Places[i-1].Start || at.Start%at.Size != 0 {
					t.Errorf("%s: %s at %v", model, p.Name, at)
				}
			}
		}
	}
	for _, wrong := range []string{
		"model = \"H1000\"", "count = 2", "model = \"T4\"\nmode = true\n[[gpu.instance]]\nprofile = \"1g.5gb\"",
		"model = \"A100-40\"\n[[gpu.instance]]\nprofile = \"1g.5gb\"", "model = \"A100-40\"\nmode = true\n[[gpu.instance]]\nprofile = \"3g.20gb\"\nstart = 1",
	} {
		if _, err := simhost.New([]byte("-- sim.toml --\n[[gpu]]\n" + wrong + "\n")); err == nil {
			t.Errorf("no error of %q", wrong)
		}
	}
}

// TestGPURecord: a recorded machine answers as the first one did.
func TestGPURecord(t *testing.T) {
	n := node(t, `
-- sim.toml --
now = 2026-02-03T04:05:06Z
[driver]
version = "580.95.05"
cuda = "13.0"
[[gpu]]
model = "H100-80"
mode = true
persistent = true
[[gpu.instance]]
profile = "3g.40gb"
start = 4
compute = [2, 1]
clients = [12, 34]
[[gpu]]
model = "T4"
[[gpu]]
model = "A100-80"
lost = "it has fallen off the bus"
`)
	again := func(n *simhost.Node) *simhost.Node {
		r := host.Record(n.View())
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
	if diff := cmp.Diff(want, got); diff != "" || want.GPUs[0].Instances[0].Clients == nil {
		t.Error(diff)
	}
	if err := once.SetMIGMode(t.Context(), first, false); code(t, err) != "IN_USE" {
		t.Error(err)
	}
	n = node(t, "-- sim.toml --\n[driver]\nwhy = \"x\"\ntry = \"y\"\n")
	none := (*host.NoDriver)(nil)
	if _, err := again(n).Driver(t.Context()); !errors.As(err, &none) || none.Why != "x" || none.Try != "y" {
		t.Error(err)
	}
}
