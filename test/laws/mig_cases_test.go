// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestEachGPU: with failure = "per-gpu" one GPU that is busy or gone waits, by name, and the others
// get their partitions; by default nothing is touched. Once it is free the same command partitions
// it.
func TestEachGPU(t *testing.T) {
	const layout = "[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n"
	for _, failure := range []string{"", "all-or-nothing", "per-gpu"} {
		n := gpus(t, h100s)
		head := ""
		if failure != "" {
			head = "[mig]\nfailure = \"" + failure + "\"\n"
		}
		apply(t, n, engine(t, "[[mig.gpu]]\nlayout = { \"7g.80gb\" = 1 }\n"))
		n.Use(second, 0, 4711)
		before := ids(t, n)
		e := engine(t, head+layout)
		res, err := e.Apply(context.Background(), n)
		if failure != "per-gpu" {
			check.That(t, err != nil, "%q: applied", failure)
			compare(t, failure+": nothing is touched", before, ids(t, n))
			continue
		}

		must.That(t, trouble.Passes(err), "%v: %v", err, because(err))
		got := ids(t, n)
		check.That(t, strings.Contains(got, "3g.40gb") || got != before, "%s: no GPU was partitioned: %s", failure, got)
		p := plan(t, n, e)
		check.That(t, p.Deferred == 1 && len(p.Changes) == 1 && strings.Contains(p.Changes[0].Waits, "process 4711"), "%+v, planned again: %+v", res, p.Changes)
		n.Use(second, -1)
		apply(t, n, e)
		p = plan(t, n, e)
		check.That(t, len(p.Changes) == 0, "left: %+v", p.Changes)
	}
}

// lostSecond is a machine whose second GPU has fallen off the bus.
type lostSecond struct{ *simhost.Node }

func (n lostSecond) Driver(ctx context.Context) (host.Driver, error) {
	d, err := n.Node.Driver(ctx)
	for i, g := range d.GPUs {
		if g.Address == second {
			d.GPUs[i] = host.GPU{
				Address: g.Address,
				Index:   g.Index,
				Device:  g.Device,
				Name:    g.Name,
				Lost:    "it has fallen off the bus",
			}
		}
	}

	return d, err
}

func TestLostGPUWaits(t *testing.T) {
	n := lostSecond{gpus(t, h100s)}
	e := engine(t, "[mig]\nfailure = \"per-gpu\"\n[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n")
	_, err := e.Apply(context.Background(), n)
	must.That(t, trouble.Passes(err), "%v", err)
	p, err := e.Plan(context.Background(), n)
	check.That(t, err == nil && p.Deferred == 1 && len(p.Changes) == 1 && strings.Contains(p.Changes[0].Waits, "fallen off the bus"), "%+v, %v", p.Changes, err)
}

// After a change of partitions their nodes below /dev/nvidia-caps are there, with the numbers that
// the driver says, and /dev/char leads to them: the driver's tool makes those that are missing. It
// stays away from nodes that the driver's options leave to another. Stage mig makes them itself,
// and stage toolkit where another program makes the partitions. nvidia-modprobe and the files of
// /proc are as
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
// records them.
func TestNodesOfPartitionsAreMade(t *testing.T) {
	for stage, spec := range map[string]string{"toolkit": "[runtime]\n", "mig": "[[mig.gpu]]\nlayout = { \"3g.20gb\" = 2 }\n"} {
		t.Run(stage, func(t *testing.T) { nodesOfPartitions(t, stage, spec) })
	}
}

func nodesOfPartitions(t *testing.T, stage, spec string) {
	const gi = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
	archive := "-- sim.toml --\n" + a100s + "\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n" +
		"-- proc/devices --\nCharacter devices:\n195 nvidia\n235 nvidia-caps\n\nBlock devices:\n-- dev/nvidiactl device=195:255 --\n-- dev/char/ --\n" +
		"-- usr/bin/nvidia-modprobe mode=0755 --\n" +
		"-- dev/nvidia-caps/made21 device=235:21 --\n-- dev/nvidia-caps/made22 device=235:22 --\n-- dev/nvidia-caps/made30 device=235:30 --\n" +
		"-- proc/driver/nvidia/capabilities/gpu0/mig/gi1/access --\nDeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n" +
		"-- proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access --\nDeviceFileMinor: 22\nDeviceFileMode: 292\nDeviceFileModify: 1\n" +
		"-- proc/driver/nvidia/capabilities/gpu1/mig/gi2/access --\nDeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 0\n"
	n := machine{"caps", []byte(archive)}.boot(t)
	var asked []string
	n.Install("nvidia-modprobe", simhost.Program{Looks: func([]string) bool { return false }, Run: func(f *files.Files, argv []string) ([]byte, error) {
		asked = append(asked, argv[2])
		minor := map[string]int{gi + "/access": 21, gi + "/ci0/access": 22}[argv[2]]
		return nil, f.Rename(fmt.Sprintf("/dev/nvidia-caps/made%d", minor), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
	}})
	e := engine(t, spec)
	e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool {
		return st.Name != stage
	})
	apply(t, n, e)
	check.That(t, slices.Equal(asked, []string{gi + "/access", gi + "/ci0/access"}), "nvidia-modprobe was asked for %v", asked)
	for _, minor := range []string{"21", "22"} {
		to, err := n.Resolve("/dev/char/235:" + minor)
		check.That(t, err == nil && to == "/dev/nvidia-caps/nvidia-cap"+minor, "/dev/char/235:%s leads to %s, %v", minor, to, err)
	}

	p := plan(t, n, e)
	check.That(t, !slices.ContainsFunc(p.Changes, func(c converge.Line) bool {
		return strings.HasPrefix(c.Kind, "device")
	}), "still planned: %+v", p.Changes)
}

// TestPodWithoutProcess: a pod that kubelet has given a partition keeps it though no process of it
// runs yet; it is named, and only a drain ends it. The answer is podresources/v1's, of one pod with
// one device.
func TestPodWithoutProcess(t *testing.T) {
	const socket = "/var/lib/kubelet/pod-resources/kubelet.sock"
	field := func(n protowire.Number, text string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), text))
	}
	n := gpus(t, "[[gpu]]\nmodel = \"H100-80\"\n")
	apply(t, n, engine(t, wantsMIG(`"3g.40gb" = 2`)))
	d := must.Get(n.Driver(context.Background()))(t)
	id := d.GPUs[0].Instances[0].Compute[0].UUID
	must.OK(t, n.Mkdir("/var/lib/kubelet", host.Attr{Mode: 0o755}))
	must.OK(t, n.Mkdir("/var/lib/kubelet/pod-resources", host.Attr{Mode: 0o755}))
	must.OK(t, n.WriteFile(socket, nil, host.Attr{Mode: 0o600}))
	n.Daemon(socket, func(string, []byte) ([]byte, error) {
		return []byte(field(1, field(1, "pulls")+field(2, "ml")+field(3, field(2, field(1, "nvidia.com/gpu")+field(2, id))))), nil
	})
	e := engine(t, wantsMIG(`"1g.10gb" = 7`))
	before := ids(t, n)
	for _, allow := range [][]string{nil, {"stop-clients"}} {
		e.Allow = allow
		_, err := e.Apply(context.Background(), n)
		check.That(t, err != nil && strings.Contains(strings.Join(because(err), " "), "pod ml/pulls has 3g.40gb@"), "allowed %v: %v %v", allow, err, because(err))
		compare(t, "nothing is destroyed", before, ids(t, n))
	}

	apply(t, n, engine(t, wantsMIG(`"3g.40gb" = 2`))) // what stays is not disturbed
	n.Daemon(socket, func(string, []byte) ([]byte, error) { return nil, nil })
	e.Allow = nil
	apply(t, n, e)
}

// inUse has instances made outside gpuadm on all of its GPUs, one of them in use, one half-made.
//
//go:embed testdata/in-use.toml
var inUse string

// A run that is killed before any touch, and goes on, ends as one that was not; then undo in what
// was there, ids included, and the same for undo. The instance in use is never touched: the
// simulated driver would note it.
func TestKilledAtEveryTouchOfGPUs(t *testing.T) {
	for name, text := range map[string]string{
		"grow":   "[[mig.gpu]]\nmatch = [\"A100-80GB\"]\nlayout = { \"3g.40gb\" = 1, \"1g.10gb\" = 4 }\n[[mig.gpu]]\nmatch = [\"H200\"]\nlayout = { \"1g.18gb\" = 7 }\n",
		"shrink": "[[mig.gpu]]\nmatch = [\"A100-80GB\"]\nlayout = { \"3g.40gb\" = 1 }\n[[mig.gpu]]\nmatch = [\"H200\"]\nenabled = false\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := func() *converge.Engine { return engine(t, text) }
			whole := gpus(t, inUse+persistenced)
			before := ids(t, whole) + whole.Units()
			apply(t, whole, e())
			applied, made := ids(t, whole)+whole.Units(), whole.Touches()
			undo(t, whole, e(), "all")
			compare(t, "undone", before, ids(t, whole)+whole.Units())
			between := map[string]bool{}
			for at := range whole.Touches() {
				n := gpus(t, inUse+persistenced)
				n.CutAt(at)
				_, err := e().Apply(context.Background(), n)
				if err == nil {
					_, err = e().Undo(context.Background(), n, "all", nil)
				}
				must.That(t, err != nil && n.Off(), "not killed at touch %d: %v", at, err)
				n.Revive()
				between[ids(t, n)] = true
				if at < made {
					apply(t, n, e())
					compare(t, fmt.Sprintf("apply killed at touch %d, applied again", at), applied, ids(t, n)+n.Units())
					undo(t, n, e(), "all")
				} else {
					undo(t, n, e(), "")
				}

				compare(t, fmt.Sprintf("killed at touch %d of %d, undone", at, made), before, ids(t, n)+n.Units())
				v := n.Violations()
				must.That(t, len(v) == 0, "killed at touch %d: %v", at, v)
			}

			check.That(t, len(between) >= 20, "killed between %d states of the GPUs only", len(between))
		})
	}
}

// The law of power cuts does cut between changes of GPUs.
func TestPowerCutsHitGPUs(t *testing.T) {
	m := recordedAs(t, "mig-h100-a100-t4")
	for _, name := range []string{"mig", "mig two"} {
		whole := m.boot(t)
		apply(t, whole, engine(t, sections[name]))
		between := map[string]bool{}
		for at := range whole.Touches() {
			n := m.boot(t)
			n.CutAt(at)
			_, _ = engine(t, sections[name]).Apply(context.Background(), n)
			n.Revive()
			between[ids(t, n)] = true
		}

		want := map[string]int{"mig": 15, "mig two": 5}[name]
		check.That(t, len(between) >= want, "%s: cut between %d states of the GPUs, want %d", name, len(between), want)
	}
}
