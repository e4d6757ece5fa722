// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// A GPU in MIG mode takes no part in the NVLink fabric, so the node does not wait for it; another
// GPU is waited for.
func TestFabricOfGPUsInMIGMode(t *testing.T) {
	for _, state := range []string{"not-started", "in-progress"} {
		g := host.GPU{
			Address: "0000:17:00.0",
			MIG:     true,
			Mode:    true,
			Fabric:  host.Fabric{State: state},
		}
		open, err := fabricProblem(host.Driver{GPUs: []host.GPU{g}})
		check.That(t, open == "" && err == nil, "%s in MIG mode: %q, %v", state, open, err)
		g.Mode = false
		open, err = fabricProblem(host.Driver{GPUs: []host.GPU{g}})
		check.That(t, open != "" || err != nil, "%s without MIG mode is ready", state)
	}
}

// The plan says which GPUs the node does not wait for, and says nothing where all that count have
// registered.
func TestFabricNote(t *testing.T) {
	const said = "the node does not wait until GPUs in MIG mode have registered with the NVLink fabric, since they cannot use NVLink: "
	open := host.GPU{
		Address: "0000:17:00.0",
		MIG:     true,
		Mode:    true,
		Fabric:  host.Fabric{State: "in-progress"},
	}
	failed := host.GPU{
		Address: "0000:2a:00.0",
		MIG:     true,
		Mode:    true,
		Fabric:  host.Fabric{State: "completed", Status: "UNKNOWN"},
	}
	done := host.GPU{
		Address: "0000:3b:00.0",
		MIG:     true,
		Mode:    true,
		Fabric:  host.Fabric{State: "completed"},
	}
	none := host.GPU{Address: "0000:4c:00.0", MIG: true, Mode: true}
	whole := host.GPU{
		Address: "0000:5d:00.0",
		MIG:     true,
		Fabric:  host.Fabric{State: "in-progress"},
	}
	for _, c := range []struct {
		gpus []host.GPU
		want []string
	}{
		{[]host.GPU{open, failed, done, none, whole}, []string{said + "0000:17:00.0, 0000:2a:00.0"}},
		{[]host.GPU{open}, []string{said + "0000:17:00.0"}},
		{[]host.GPU{done, none, whole}, nil},
	} {
		a := apiFixture(t, apiSpec)
		check.List(t, NewReady(new(Session), nil, nil).Notes(a, a.engine().Spec, facts.Facts{Driver: &host.Driver{GPUs: c.gpus}}), c.want, "got")
	}

	got := NewReady(new(Session), nil, nil).Notes(nil, spec.Spec{}, facts.Facts{Driver: &host.Driver{GPUs: []host.GPU{open}}})
	check.That(t, got == nil, "no node is asked for: %q", got)
}

// TestStaleZero: kubelet keeps the zero of a device plugin that is gone. Beside it the devices of
// the DRA driver count, once all are published. The zero of a plugin that is registered is an offer
// of nothing.
func TestStaleZero(t *testing.T) {
	const socket = "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"
	answers := func(string, []byte) ([]byte, error) { return nil, nil }
	refuses := func(string, []byte) ([]byte, error) {
		return nil, errors.New("connection refused")
	}
	for name, c := range map[string]struct {
		offered string // nvidia.com/gpu on the Node
		devices int    // of the DRA driver
		plugin  func(string, []byte) ([]byte, error)
		waits   trouble.Code
	}{
		"all slices, stale zero":         {"0", 2, nil, ""},
		"all slices, dead socket":        {"0", 2, refuses, ""},
		"all slices, registered plugin":  {"0", 2, answers, pluginStaysAway},
		"some slices, stale zero":        {"0", 1, nil, pluginStaysAway},
		"no slices, stale zero":          {"0", 0, nil, pluginStaysAway},
		"all slices, one GPU unhealthy":  {"1", 2, answers, offersOther},
		"no slices, plugin offers all":   {"2", 0, answers, ""},
		"all slices, no plugin was ever": {"", 2, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
			resource := "nvidia.com/gpu"
			if c.offered == "" {
				resource = ""
			}
			offers(a, a.BootID(), resource, c.offered)
			if c.plugin != nil {
				for _, dir := range []string{"/var", "/var/lib", "/var/lib/kubelet", path.Dir(socket)} {
					err := a.Mkdir(dir, host.Attr{Mode: 0o755})
					must.That(t, err == nil || errors.Is(err, fs.ErrExist), "%v", err)
				}

				must.OK(t, a.WriteFile(socket, nil, host.Attr{Mode: 0o755}))
				a.Daemon(socket, c.plugin)
			}

			if c.devices > 0 {
				var devices []any
				for i := range c.devices {
					devices = append(devices, kubesim.Object{"name": []string{"gpu-0", "gpu-1"}[i]})
				}
				a.sim.AddSlice("v1", kubesim.Object{"spec": kubesim.Object{
					"nodeName": "gpu-1", "driver": draDriver, "devices": devices,
					"pool": kubesim.Object{"name": "gpu-1", "generation": 1, "resourceSliceCount": 1},
				}})
			}

			a.Advance(time.Minute)
			if c.waits != "" {
				a.faulted(name, c.waits)
				return
			}
			a.apply()
			check.That(t, a.ready(), "%s", a.condition())
		})
	}
}

// TestDynamicOffer: where the DRA driver makes partitions as pods ask for them, it publishes each
// partition that a GPU could have, so their number is not that of the GPUs.
func TestDynamicOffer(t *testing.T) {
	a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
	a.facts.DynamicMIG = "process 812"
	offers(a, a.BootID(), "", "")
	var devices []any
	for _, name := range []string{"gpu-0", "gpu-0-mig-1g10gb-0", "gpu-0-mig-1g10gb-1"} {
		devices = append(devices, kubesim.Object{"name": name})
	}
	a.sim.AddSlice("v1", kubesim.Object{"spec": kubesim.Object{
		"nodeName": "gpu-1", "driver": draDriver, "devices": devices,
		"pool": kubesim.Object{"name": "gpu-1", "generation": 1, "resourceSliceCount": 1},
	}})
	a.Advance(time.Minute)

	a.apply()
	check.That(t, a.ready(), "%s", a.condition())
}

// TestPluginStaysAway: the message names a device plugin that is kept away by the very taint that
// waits for it, with the YAML to add.
func TestPluginStaysAway(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*apiNode)
		code trouble.Code
	}{
		"none runs": {func(*apiNode) {}, pluginStaysAway},
		"one runs": {func(a *apiNode) {
			a.sim.AddPod(kubesim.Object{"metadata": kubesim.Object{"name": "nvidia-device-plugin-x1", "namespace": "kube-system"}, "spec": kubesim.Object{"nodeName": "gpu-1"}})
		}, offersOther},
		"no right to see pods": {func(a *apiNode) { a.sim.Fail(kubesim.Fault{On: "GET /api/v1/pods", Times: -1, Status: 403}) }, pluginStaysAway},
		"no taint": {func(a *apiNode) {
			a.spec = strings.Replace(a.spec, `startup_taint = "example.com/starting:NoSchedule"`, `startup_taint = "none"`, 1)
			a.spec = strings.Replace(a.spec, `taints = ["nvidia.com/gpu=present:NoSchedule"]`, "", 1)
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				n["spec"].(kubesim.Object)["taints"] = []any{kubesim.Object{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}}
			})
		}, offersOther},
	} {
		a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
		c.set(a)
		offers(a, a.BootID(), "nvidia.com/gpu", "0")
		_, err := a.engine().Apply(a.ctx, a)
		faulted(t, name, err, c.code)
	}
}

// TestReadyRuntimeTry: what is advised where the engine lacks the handler is what brings it: on
// EKS's images nodeadm does at a boot, and our stage only looks.
func TestReadyRuntimeTry(t *testing.T) {
	lacks := func(context.Context, host.View, spec.Spec, facts.Facts) error {
		return errors.New("containerd has no handler nvidia")
	}
	for _, c := range [][2]string{{"", ""}, {"eks", ""}, {"eks", "owner = \"gpuadm\"\n"}} {
		a := apiFixture(t, apiSpec+"[runtime]\n"+c[1])
		a.facts.Cloud.Managed, a.facts.Kubelet.Active = c[0], "active"
		a.stages = []converge.Stage{a.with(NewReady(a.shared, lacks, oldEngine))}
		a.faulted("no handler "+c[0]+c[1], "ready: runtime handler")
	}
}

// TestMissingGPUs: a machine that was ready with two GPUs and has one names the other's address,
// from its own journal, without a question to the cluster; and what leads out of it leads out for
// good.
func TestMissingGPUs(t *testing.T) {
	a := apiFixture(t, apiSpec)
	missing := func() string {
		f := a.facts
		f.Live = true
		return MissingGPUs(a, a.engine().Spec, f)
	}

	both, driver := a.facts.GPUs, *a.facts.Driver
	have := func(n int) {
		a.facts.GPUs, a.facts.Driver.GPUs = both[:n], driver.GPUs[:n]
	}
	for n := range 2 {
		have(n)
		check.None(t, missing(), "with %d before it was ready with both:", n)
	}

	have(2)
	a.apply()
	a.converged(a.mark())
	a.sim.Requests()
	check.None(t, missing(), "with both:")
	have(1)
	on := "on " + a.Now().Format("2006-01-02") + " the node was ready with 2, and none is at "
	check.Equal(t, missing(), on+"0000:18:00.0 any more", "without one:")
	n := len(a.sim.Requests())
	check.That(t, n <= 0, "the cluster was asked %d times", n)

	have(0)
	check.Equal(t, missing(), on+"0000:17:00.0, 0000:18:00.0 any more", "without any:")

	moved := both[0]
	moved.Address = "0000:99:00.0"
	a.facts.GPUs = append(both[1:2:2], moved)
	check.None(t, missing(), "at other places:")
	passed := both[1]
	passed.Driver = "vfio-pci"
	a.facts.GPUs = append(both[:1:1], passed)
	check.None(t, missing(), "given to a guest:")

	have(1) // and it is meant so: an operator who sets gpu_count = 1 passes preflight
	a.Advance(time.Minute)
	a.apply()
	check.None(t, missing(), "after the node was ready with one:")
	have(2)
	a.Advance(time.Minute)
	a.apply()
	have(1)
	check.That(t, missing() != "", "a GPU that was added again and lost again is not missed")
	must.Get(a.engine().Undo(a.ctx, a, "all", nil))(t)
	check.None(t, missing(), "after undo:")
}

// TestFailedKeepsGuard: the taint of a failure that gpuadm has reported shuts the node: a further
// try, in this boot or the next, adds no startup taint beside it, and has no run of its own. Once
// the GPUs are ready neither taint is left.
func TestFailedKeepsGuard(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.converged(a.mark())
	all := a.facts.Driver.GPUs
	for boot := range 2 {
		a.Reboot()
		a.facts.Driver.GPUs = all[:1]
		for try := range 3 {
			a.Advance(time.Minute)
			a.sim.Requests()
			res, err := a.engine().Apply(a.ctx, a)
			must.That(t, err != nil, "boot %d, try %d: a GPU is lost and apply said nothing", boot, try)
			first := boot == 0 && try == 0
			check.That(t, first || len(res.Made) == 0 && !a.tainted("example.com/starting"), "boot %d, try %d made %v:\n%s", boot, try, res.Made, a.shown())
			must.OK(t, a.report(Outcome{
				Made:  res.Made,
				Stage: res.Stage,
				Err:   err,
			}))
			check.That(t, !a.tainted("example.com/starting") && a.tainted(failureTaint().Key) && a.condition()[:5] == "False", "boot %d, after try %d:\n%s", boot, try, a.shown())
		}
	}

	a.facts.Driver.GPUs = all
	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}
