// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestReadyFaults: each fault keeps the condition from being true and the startup taint on.
func TestReadyFaults(t *testing.T) {
	for name, c := range map[string]struct {
		code trouble.Code
		set  func(*apiNode)
	}{
		"no driver":        {"ready: the driver", func(a *apiNode) { a.facts.Driver, a.facts.NoDriver = nil, "the module is not loaded" }},
		"another driver":   {"ready: the driver", func(a *apiNode) { a.spec += "[driver]\nversion = \"570\"\n" }},
		"another library":  {"ready: the driver", func(a *apiNode) { a.facts.Driver.NVML = "570.1" }},
		"one on the bus":   {"ready: all GPUs", func(a *apiNode) { a.facts.Driver.GPUs = a.facts.Driver.GPUs[:1] }},
		"fewer than asked": {"ready: all GPUs", func(a *apiNode) { a.spec += "[driver]\ngpu_count = 8\n" }},
		"lost":             {"ready: all GPUs", func(a *apiNode) { a.facts.Driver.GPUs[1].Lost = "it has fallen off the bus" }},
		"fabric failed": {"ready: NVLink fabric", func(a *apiNode) {
			a.facts.Driver.GPUs[0].Fabric = host.Fabric{State: "completed", Status: "NVML_ERROR"}
		}},
		"fabric not started": {"ready: NVLink fabric", func(a *apiNode) { a.facts.Driver.GPUs[0].Fabric.State = "not-started" }},
		"fabric in progress": {fabricForming, func(a *apiNode) { a.facts.Driver.GPUs[0].Fabric.State = "in-progress" }},
	} {
		a := apiFixture(t, apiSpec)
		c.set(a)
		a.faulted(name, c.code)
	}
}

// TestUnlicensed: a vGPU guest whose licence is missing or has expired is not ready, and its Node
// says so, until it is granted.
func TestUnlicensed(t *testing.T) {
	for state, words := range map[string]string{"unlicensed": "has no vGPU licence", "expired": "has a vGPU licence that has expired"} {
		a := apiFixture(t, apiSpec)
		a.facts.VGPU = &facts.VGPU{Version: "580.95.05", Branch: "r580_00"}
		a.facts.Driver.GPUs[0].Licence, a.facts.Driver.GPUs[1].Licence = "licensed", state
		a.faulted(state, noLicence)
		must.OK(t, a.report(Outcome{Stage: "services", Err: trouble.Wait{For: "any"}}))
		check.Equal(t, a.condition(), "False "+waitingReason+" not yet: GPU 0000:18:00.0 "+words, "%s:", state)
		a.facts.Driver.GPUs[1].Licence = "licensed"
		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}

func offers(a *apiNode, boot, name, count string) {
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		status := n["status"].(kubesim.Object)
		status["nodeInfo"] = kubesim.Object{"bootID": boot}
		status["allocatable"] = kubesim.Object{"cpu": "8"}
		if name != "" {
			status["allocatable"].(kubesim.Object)[name] = count
		}
	})
}

// TestReadyWaits: labels come at once, since the device plugin may be placed by them; the rest once
// the GPUs are offered in this boot.
func TestReadyWaits(t *testing.T) {
	for _, dra := range []bool{false, true} {
		a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n[sharing]\ntime_slicing = 4\n")
		waits := func(name string, code trouble.Code) {
			t.Helper()
			a.Advance(time.Minute)
			a.faulted(name, code)
			must.That(t, a.label("example.com/rack") == "r7", "while it waits:\n%s", a.shown())
		}

		offers(a, "another", "nvidia.com/gpu", "8")
		waits("before kubelet reports", notReported)
		offers(a, a.BootID(), "", "")
		waits("shared, no offer", pluginStaysAway)
		if dra {
			slice := func(devices ...any) kubesim.Object {
				return kubesim.Object{"spec": kubesim.Object{"nodeName": "gpu-1", "driver": draDriver, "pool": kubesim.Object{"name": "gpu-1", "generation": 1, "resourceSliceCount": 2}, "devices": devices}}
			}
			a.sim.AddSlice("v1", slice(kubesim.Object{"name": "gpu-0"}))
			waits("one slice of two", pluginStaysAway)
			a.sim.AddSlice("v1", slice(kubesim.Object{"name": "gpu-1"}))
		} else {
			offers(a, a.BootID(), "nvidia.com/gpu", "7")
			waits("7 of 8", offersOther)
			offers(a, a.BootID(), "nvidia.com/gpu", "8")
		}

		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}

// TestPlanned: what the device plugin will offer.
func TestPlanned(t *testing.T) {
	share := host.Share{Memory: 10 << 30, Slices: 1, Compute: 1}
	part := host.Instance{Profile: 19, Compute: []host.ComputeInstance{{Share: share}}}
	whole := host.GPU{Memory: 80 << 30}
	cut := host.GPU{
		Memory: 80 << 30,
		Mode:   true,
		Profiles: []host.Profile{{
			ID:     19,
			Name:   "1g.10gb",
			Slices: 1,
			Memory: 10 << 30,
		}},
		Instances: []host.Instance{part, part},
	}
	for _, c := range []struct {
		strategy string
		slicing  int
		gpus     []host.GPU
		want     string
		total    int
	}{
		{"none", 0, []host.GPU{whole, whole}, "map[nvidia.com/gpu:2]", 2},
		{"none", 4, []host.GPU{whole, cut}, "map[nvidia.com/gpu:8]", 3},
		{"single", 0, []host.GPU{cut, cut}, "map[nvidia.com/gpu:4]", 4},
		{"mixed", 3, []host.GPU{whole, cut}, "map[nvidia.com/gpu:3 nvidia.com/mig-1g.10gb:6]", 3},
	} {
		s := spec.Spec{Sharing: spec.Sharing{Strategy: c.strategy, TimeSlicing: c.slicing}}
		if c.strategy == "none" && c.slicing > 0 {
			mps, _, err := plannedResources(spec.Spec{Sharing: spec.Sharing{
				Strategy: "none",
				MPS:      c.slicing,
			}}, host.Driver{GPUs: c.gpus})
			check.That(t, err == nil && fmt.Sprint(mps) == c.want, "MPS × %d: %v, %v; want %s", c.slicing, mps, err, c.want)
		}

		got, total, err := plannedResources(s, host.Driver{GPUs: c.gpus})
		check.That(t, err == nil && fmt.Sprint(got) == c.want && total == c.total, "%s × %d: %v, %d, %v; want %s, %d", c.strategy, c.slicing, got, total, err, c.want, c.total)
	}

	other := cut
	other.Name = "NVIDIA A100-SXM4-80GB" // its 1g.10gb has fewer multiprocessors
	for _, g := range []host.GPU{whole, other} {
		_, _, err := plannedResources(spec.Spec{Sharing: spec.Sharing{Strategy: "single"}}, host.Driver{GPUs: []host.GPU{g, cut}})
		check.That(t, err != nil, "single offers nothing of a GPU with MIG and %+v", g)
	}
}

// TestOfferedNames: partitions that the device plugin offers under other names, or not at all, are
// seen without wait_for_allocatable, too. What the plugin offers was seen with NVIDIA's own on two
// H100s of seven partitions each: by its default, none, 2 whole GPUs.
func TestOfferedNames(t *testing.T) {
	const (
		oneKind  = "[[mig.gpu]]\nlayout = { \"1g.10gb\" = 2 }\n"
		twoKinds = "[[mig.gpu]]\nlayout = { \"1g.10gb\" = 2, \"2g.20gb\" = 1 }\n"
		none     = "[sharing]\nstrategy = \"none\"\n"
	)
	share := host.Share{Memory: 10 << 30, Slices: 1, Compute: 1}
	part := host.Instance{Profile: 19, Compute: []host.ComputeInstance{{Share: share}}}
	profile := host.Profile{
		ID:     19,
		Name:   "1g.10gb",
		Slices: 1,
		Memory: 10 << 30,
	}
	cut := host.GPU{
		Memory:    80 << 30,
		Mode:      true,
		Profiles:  []host.Profile{profile},
		Instances: []host.Instance{part, part},
	}

	runs := func(settings ...string) string {
		const process = "-- proc/4711/comm --\nnvidia-device-p\n-- proc/4711/status --\nUid:\t0\t0\n"
		return process + strings.Join(settings, "")
	}

	const crashes = "-- sim.toml --\n[[unit]]\nname = \"nvidia-device-plugin.service\"\n" +
		"enabled = \"enabled\"\nactive = \"activating\"\n" +
		"-- etc/systemd/system/nvidia-device-plugin.service --\n[Service]\nEnvironment=MIG_STRATEGY=single\n" +
		"ExecStart=-/opt/nvidia/nvidia-device-plugin\n" +
		"-- etc/systemd/system/multi-user.target.wants/nvidia-device-plugin.service link=../nvidia-device-plugin.service --\n"
	const operatorsFile = "-- proc/4711/cmdline --\nnvidia-device-plugin\x00--config-file\x00/config/config.yaml\x00\n" +
		"-- proc/4711/root/config/config.yaml --\nversion: v1\nflags: {migStrategy: mixed}\n"

	for name, c := range map[string]struct {
		spec    string
		offers  map[string]kube.Quantity
		says    string // "" is no wait
		machine string
	}{
		"single, by a variable": {
			twoKinds, nil,
			"migStrategy is single (MIG_STRATEGY=single), and these GPUs need mixed",
			runs("-- proc/4711/environ --\nA=b\x00MIG_STRATEGY=single\x00\n"),
		},
		"single, by a unit that crashes": {
			twoKinds, nil,
			"migStrategy is single (MIG_STRATEGY=single), and these GPUs need mixed",
			crashes,
		},
		"mixed, by a file": {
			oneKind,
			map[string]kube.Quantity{"nvidia.com/mig-1g.10gb": "4"},
			"migStrategy is mixed (migStrategy in its file /config/config.yaml), and these GPUs need single",
			runs(operatorsFile),
		},
		"mixed, by a flag": {
			oneKind,
			map[string]kube.Quantity{"nvidia.com/mig-1g.10gb": "4"},
			"migStrategy is mixed (--mig-strategy=mixed)",
			runs("-- proc/4711/cmdline --\nnvidia-device-plugin\x00--mig-strategy=mixed\x00\n"),
		},
		"none, by default": {
			oneKind,
			map[string]kube.Quantity{"nvidia.com/gpu": "2"},
			"migStrategy is none (the plugin's default), and these GPUs need single",
			runs("-- proc/4711/cmdline --\nnvidia-device-plugin\x00\n"),
		},
		"single, by none":      {oneKind, map[string]kube.Quantity{"nvidia.com/gpu": "2"}, "2 of 4 nvidia.com/gpu", ""},
		"single, by single":    {oneKind, map[string]kube.Quantity{"nvidia.com/gpu": "4"}, "", ""},
		"single, by mixed":     {oneKind, map[string]kube.Quantity{"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "4"}, `migStrategy is not "single"`, ""},
		"mixed, by none":       {twoKinds, map[string]kube.Quantity{"nvidia.com/gpu": "2"}, `migStrategy is not "mixed"`, ""},
		"mixed, by mixed":      {twoKinds, map[string]kube.Quantity{"nvidia.com/mig-1g.10gb": "4"}, "", ""},
		"none is asked for":    {twoKinds + none, map[string]kube.Quantity{"nvidia.com/gpu": "2"}, "", ""},
		"no plugin runs":       {oneKind, nil, "", ""},
		"neither, another way": {"", map[string]kube.Quantity{"nvidia.com/gpu": "1"}, "", ""},
	} {
		s := specs.Of(t, c.spec)
		machine := must.Get(simhost.New([]byte(c.machine)))(t)
		driver := &host.Driver{GPUs: []host.GPU{cut, cut}}
		r := readyStage{
			spec:    s,
			session: new(Session),
			facts:   facts.Facts{BootID: "b", Driver: driver},
		}
		n := &kube.Node{}
		n.Status.NodeInfo.BootID = "b"
		n.Status.Allocatable = c.offers
		wait := trouble.Wait{}
		err := r.waitForOffer(t.Context(), machine, n)
		waits := errors.As(err, &wait)
		check.That(t, waits == (c.says != "") && strings.Contains(wait.For, c.says), "%s: %v", name, err)
		check.That(t, !waits || strings.Contains(strings.Join(wait.Try, "\n"), "manifest device-plugin"), "%s: %q", name, wait.Try)
	}
}

// TestOfferedBesideAWholeGPU: what manifest prints follows from the spec alone, so the first advice
// is to write the strategy that this machine needs.
func TestOfferedBesideAWholeGPU(t *testing.T) {
	const text = "format = 1\n[[mig.gpu]]\nlayout = { \"1g.10gb\" = 1 }\n"
	share := host.Share{Memory: 10 << 30, Slices: 1, Compute: 1}
	part := host.Instance{Profile: 19, Compute: []host.ComputeInstance{{Share: share}}}
	profile := host.Profile{
		ID:     19,
		Name:   "1g.10gb",
		Slices: 1,
		Memory: 10 << 30,
	}
	cut := host.GPU{
		Memory:    80 << 30,
		Mode:      true,
		Profiles:  []host.Profile{profile},
		Instances: []host.Instance{part},
	}
	whole := host.GPU{Index: 1, Name: "Tesla T4", Memory: 16 << 30}

	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)}))(t)
	driver := &host.Driver{GPUs: []host.GPU{cut, whole}}
	r := readyStage{
		spec:    s,
		session: new(Session),
		facts:   facts.Facts{BootID: "b", Driver: driver},
	}
	n := &kube.Node{}
	n.Status.NodeInfo.BootID = "b"
	n.Status.Allocatable = map[string]kube.Quantity{spec.WholeGPU: "2"}
	wait := trouble.Wait{}
	waits := errors.As(r.waitForOffer(t.Context(), must.Get(simhost.New(nil))(t), n), &wait)
	must.That(t, waits && len(wait.Try) > 0, "%+v", wait)
	check.Has(t, wait.Try[0], `strategy = "mixed" in [sharing]`, "the first advice:")
}

// TestGuard: after a reboot the startup taint is back before anything else is done, and the
// condition no longer claims what was true of another boot; then both follow the GPUs again. It
// costs no look of its own.
func TestGuard(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	first := a.mark()
	a.Reboot()
	a.sim.Requests()
	var seen []string
	probe := converge.Stage{Name: "probe", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		look := func(context.Context, host.View) (string, error) {
			seen = append(seen, fmt.Sprint(a.tainted("example.com/starting"), " ", a.condition()))
			return "", nil
		}
		return []converge.Want{things.Check("probe", look, "")}, nil
	}}
	a.stages = []converge.Stage{a.stages[0], probe, a.stages[1]}
	a.apply()
	check.That(t, len(seen) >= 2 && strings.HasPrefix(seen[1], "true False "+newBootReason), "behind the guard the Node was: %q", seen)
	must.That(t, a.mark() != first, "the simulated boots have one mark")
	a.converged(a.mark())
	const node, status = "PATCH /api/v1/nodes/gpu-1", "PATCH /api/v1/nodes/gpu-1/status"
	// The taint comes before the condition that explains it, and goes after it.
	check.List(t, a.sim.Requests(), []string{"GET /api/v1/nodes/gpu-1", node, status, status, node}, "requests after a reboot:")
	a.Advance(time.Minute)
	res := a.apply()
	check.That(t, res.Run == "", "apply again did %v", res.Made)
	got := a.sim.Requests()
	check.That(t, len(got) == 1, "requests of a converged node: %v", got)
}

// TestConditionTimes: the time of transition moves with the status alone.
func TestConditionTimes(t *testing.T) {
	a := apiFixture(t, apiSpec)
	at := func() (transition, beat string) {
		conditions := a.sim.Node("gpu-1")["status"].(kubesim.Object)["conditions"].([]any)
		for _, c := range conditions {
			if o := c.(kubesim.Object); o["type"] == GPUReady {
				return o["lastTransitionTime"].(string), o["lastHeartbeatTime"].(string)
			}
		}

		t.Fatal("there is no condition")
		return "", ""
	}

	a.apply()
	began, _ := at()
	a.Advance(time.Hour)
	a.facts.GPUs[0].Model, a.facts.GPUs[1].Model = "H200", "H200" // another message
	a.apply()
	transition, beat := at()
	check.That(t, transition == began && beat != began, "true since %s: then %s, said at %s", began, transition, beat)
	a.Advance(time.Hour)
	must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
	transition, _ = at()
	check.That(t, transition != began, "false since it was true")
}

// TestWhole: a stage that speaks for the whole machine waits for what the same apply makes, and
// refuses to speak where another stage has not converged.
func TestWhole(t *testing.T) {
	file := converge.Stage{Name: "early", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{things.Exact("/etc/early", []byte("x"), 0o644, "")}, nil
	}}
	a := apiFixture(t, apiSpec)
	ready := a.stages[1]
	e := a.engine()
	e.Stages, e.Before = []converge.Stage{ready}, []converge.Stage{file, ready}
	if _, err := e.Apply(a.ctx, a); err == nil || !strings.Contains(err.Error(), "stage early is not converged") || a.ready() {
		t.Fatalf("apply ready alone: %v\n%s", err, a.shown())
	}
	e = a.engine()
	e.Stages = []converge.Stage{file, ready}
	p, err := e.Plan(a.ctx, a)
	must.That(t, err == nil && len(p.Cannot()) == 0 && p.Now() == 1 && p.Deferred >= 3 && p.Changes[1].Deferred == "once stage early is converged", "plan: %v %+v", err, p.Changes)
	must.Get(e.Apply(a.ctx, a))(t)
	a.converged(a.mark())
	waits := converge.Stage{Name: "early", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{things.Check("x", func(context.Context, host.View) (string, error) {
			return "", trouble.Wait{Err: trouble.Code("sun")}
		}, "")}, nil
	}}
	e = a.engine()
	e.Stages = []converge.Stage{waits, ready}
	_, err = e.Apply(a.ctx, a)
	check.That(t, trouble.Passes(err) && errors.Is(err, trouble.Code("sun")), "behind what waits: %v", err)

	// What is left when its turn comes keeps it from speaking, too.
	late := converge.Stage{Name: "late", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{things.Check("y", func(context.Context, host.View) (string, error) {
			return "", host.Later{Until: "once the driver answers"}
		}, "")}, nil
	}}
	a = apiFixture(t, apiSpec)
	e = a.engine()
	e.Stages = []converge.Stage{file, late, a.stages[1]}
	if _, err := e.Apply(a.ctx, a); err == nil || trouble.Passes(err) || !strings.Contains(err.Error(), "stage late is not converged") || a.ready() {
		t.Errorf("with a stage that is left for later: %v\n%s", err, a.shown())
	}
	_, err = a.Stat("/etc/early")
	check.That(t, err == nil, "what was made before it is gone: %v", err)
}
