// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// gpus is a machine with these [[gpu]] tables.
func gpus(t testing.TB, tables string) *simhost.Node {
	t.Helper()
	return machine{"gpus", []byte("-- sim.toml --\n" + tables + "\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n")}.boot(t)
}

const (
	first, second = "0000:17:00.0", "0000:1f:00.0"

	persistenced = "\n[[unit]]\nname = \"nvidia-persistenced.service\"\nenabled = \"enabled\"\nactive = \"active\"\n"
	a100s        = "[[gpu]]\nmodel = \"A100-40\"\ncount = 2\n" // they reset themselves
	passed       = a100s + "passthrough = true\n"              // to a virtual machine: they do not
	h100s        = "[[gpu]]\nmodel = \"H100-80\"\ncount = 2\n"
)

func wantsMIG(layout string) string {
	return "[[mig.gpu]]\nlayout = { " + layout + " }\n"
}

// ids is the state of GPUs, ids of instances and places of compute instances included.
func ids(t testing.TB, v host.View) string {
	t.Helper()
	d := must.Get(v.Driver(context.Background()))(t)
	var b strings.Builder
	for _, g := range d.GPUs {
		fmt.Fprintf(&b, "%s %t %t persistent %t", g.Address, g.Mode, g.Pending, g.Persistent)
		for _, in := range g.Instances {
			fmt.Fprintf(&b, " %d:%d@%d", in.ID, in.Profile, in.At.Start)
			for _, c := range in.Compute {
				fmt.Fprintf(&b, "/%d@%d", c.Profile, c.At.Start)
			}
		}

		b.WriteString("\n")
	}

	return b.String()
}

// Where one GPU fails the others are brought back too, to the same places and ids, at whichever
// call of all it was.
func TestFailureOnOneGPUTurnsAllBack(t *testing.T) {
	foreign := "mode = true\ninstance = [{ profile = \"3g.20gb\", start = 4, compute = [2, 1] }, { profile = \"1g.5gb\", start = 2 }]\n"
	boot := func() *simhost.Node {
		return gpus(t, "[[gpu]]\nmodel = \"A100-40\"\n"+foreign+"[[gpu]]\nmodel = \"A100-40\"\n"+"[[gpu]]\nmodel = \"A100-40\"\n"+foreign+persistenced)
	}
	whole := boot()
	apply(t, whole, engine(t, wantsMIG(`"1g.5gb" = 7`)))
	failed := 0
	for at := range whole.Touches() {
		n := boot()
		before := ids(t, n) + n.Units()
		n.Fail(at, errors.New("no"))
		if _, err := engine(t, wantsMIG(`"1g.5gb" = 7`)).Apply(context.Background(), n); err == nil || strings.Contains(err.Error(), "close the run") {
			continue
		}
		failed++
		compare(t, fmt.Sprintf("failed at touch %d", at), before, ids(t, n)+n.Units())
	}

	check.That(t, failed >= 40, "only %d failures", failed)
}

// Persistence mode without its daemon holds a GPU against its reset: it is off for that long, and
// on afterwards.
func TestPersistenceModeIsPaused(t *testing.T) {
	n := gpus(t, "[[gpu]]\nmodel = \"A100-40\"\npersistent = true\n[[gpu]]\nmodel = \"A100-40\"\n")
	e := engine(t, wantsMIG(`"3g.20gb" = 2`))
	apply(t, n, e)
	got := ids(t, n)
	check.That(t, strings.Count(got, "persistent true") == 1 && len(n.Violations()) == 0, "after apply: %s, violations %v", got, n.Violations())
	undo(t, n, e, "")
	got = ids(t, n)
	check.That(t, strings.Count(got, "persistent true") == 1, "after undo: %s", got)
}

// A service that was masked or removed while it was paused does not hold up this and every later
// run.
func TestPausedServiceThatIsMasked(t *testing.T) {
	n := gpus(t, a100s+persistenced)
	must.OK(t, n.WriteFile("/run/gpuadm-paused", []byte("gone.service\nnvidia-persistenced.service\n"), host.Attr{Mode: 0o644}))
	for _, c := range []host.UnitChange{{Job: "stop"}, {File: "mask"}} {
		must.OK(t, n.SetUnit(context.Background(), "nvidia-persistenced.service", c))
	}
	e := engine(t, wantsMIG(`"3g.20gb" = 2`))
	apply(t, n, e)
	_, err := n.Stat("/run/gpuadm-paused")
	check.That(t, err != nil, "still noted as paused")
}

// A service that does not start again is named, and the partitions go back to where it ran.
func TestPausedServiceThatDoesNotStart(t *testing.T) {
	n := gpus(t, a100s+persistenced+"reads = [\"/etc/os-release\"]\n")
	before := partitions(n)
	must.OK(t, n.Refuse("nvidia-persistenced.service", "debian"))
	_, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), n)
	check.That(t, err != nil && strings.Contains(err.Error()+strings.Join(because(err), " "), "nvidia-persistenced.service"), "it says %v", err)
	compare(t, "turned back", before, partitions(n))
	data, err := n.ReadFile("/run/gpuadm-paused")
	check.That(t, err == nil && string(data) == "nvidia-persistenced.service\n", "noted as paused: %q, %v", data, err)
}

// Undo restores a layout that was made outside gpuadm: at once, and after a reboot that took all
// instances.
func TestUndoToForeignLayout(t *testing.T) {
	for _, reboot := range []bool{false, true} {
		for _, model := range []string{"A100-40", "H100-80"} {
			profile := map[string]string{"A100-40": "1g.5gb", "H100-80": "1g.10gb"}[model]
			n := gpus(t, "[[gpu]]\nmodel = \""+model+"\"\nmode = true\ninstance = [{ profile = \""+profile+"\", start = 5 }, { profile = \""+profile+"\", start = 3 }]\n")
			before := ids(t, n)
			e := engine(t, wantsMIG(`"3g" = 2`))
			apply(t, n, e)
			if reboot {
				n.Reboot()
				apply(t, n, e)
				n.Reboot()
			}

			undo(t, n, e, "all")
			compare(t, fmt.Sprintf("%s, rebooted %t", model, reboot), before, ids(t, n))
		}
	}
}

// An entry that is removed from the spec undoes its GPU, and no other; clients there are named by
// what they use now.
func TestEntryThatIsGone(t *testing.T) {
	n := gpus(t, h100s)
	both, one := engine(t, wantsMIG(`"3g.40gb" = 2`)), engine(t, "[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.40gb\" = 2 }\n")
	apply(t, n, both)
	n.Use(second, 1, 4711)
	touches := n.Touches()
	_, err := one.Apply(context.Background(), n)
	check.That(t, err != nil && strings.Contains(strings.Join(because(err), " "), "process 4711 uses GPU 1") && n.Touches() == touches,
		"shrunk while in use: %v %v, %d touches", err, because(err), n.Touches()-touches)
	_, err = both.Undo(context.Background(), n, "", nil)
	check.That(t, err != nil && strings.Contains(strings.Join(because(err), " "), "process 4711 uses GPU 1") && n.Touches() == touches,
		"undone while in use: %v %v, %d touches", err, because(err), n.Touches()-touches)
	n.Use(second, -1)
	apply(t, n, one)
	fresh := gpus(t, h100s)
	apply(t, fresh, one)
	compare(t, "shrunk", ids(t, fresh), ids(t, n))
}

// An entry is gone, and another one's layout changes, in one run: the first GPU's thing comes from
// the journal, the second one's from the spec, and both are made in one batch.
func TestEntryGoesWhileAnotherChanges(t *testing.T) {
	n := gpus(t, a100s)
	apply(t, n, engine(t, wantsMIG(`"1g.5gb" = 7`)))
	apply(t, n, engine(t, "[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 2 }\n"))

	fresh := gpus(t, a100s)
	apply(t, fresh, engine(t, "[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 2 }\n"))
	compare(t, "the same spec on a fresh machine", partitions(fresh), partitions(n))
}

// A driver that does not answer now is no reason to take back what was partitioned: the state of the
// partitions is unknown.
func TestSilentDriverIsUnknown(t *testing.T) {
	n := machine{"gpus", []byte("-- sim.toml --\n[driver]\nmodule = \"/sys/module/nvidia/version\"\n" + h100s + "\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n-- sys/module/nvidia/version --\n580.95.05\n")}.boot(t)
	e := engine(t, wantsMIG(`"3g.40gb" = 2`))
	apply(t, n, e)
	must.OK(t, n.Remove("/sys/module/nvidia/version"))
	p := plan(t, n, e)
	check.That(t, len(p.Cannot()) == 0 && p.Now() == 0 && p.Unknown == 1, "without a driver: %+v", p.Changes)
}

// A GPU that was taken out of the machine holds up nothing.
func TestGPUThatIsGone(t *testing.T) {
	n := gpus(t, h100s)
	e := engine(t, wantsMIG(`"3g.40gb" = 2`))
	apply(t, n, e)
	without := withoutSecond{n}
	p, err := e.Plan(context.Background(), without)
	check.That(t, err == nil && len(p.Changes) == 0, "planned %+v, %v", p.Changes, err)
	_, err = e.Undo(context.Background(), without, "all", nil)
	check.That(t, err == nil, "%v", err)
	if strings.Contains(ids(t, without), "true") {
		t.Errorf("undone: %s", ids(t, without))
	}
}

// withoutSecond is a machine without its second GPU.
type withoutSecond struct{ *simhost.Node }

func (n withoutSecond) Driver(ctx context.Context) (host.Driver, error) {
	d, err := n.Node.Driver(ctx)
	d.GPUs = slices.DeleteFunc(d.GPUs, func(g host.GPU) bool { return g.Address == second })
	return d, err
}

// Compute instances that were made outside gpuadm in one of its instances are kept.
func TestForeignComputeInstances(t *testing.T) {
	n := gpus(t, "[[gpu]]\nmodel = \"H100-80\"\n")
	e := engine(t, wantsMIG(`"3g.40gb" = 1`))
	apply(t, n, e)
	ctx := context.Background()
	d := must.Get(n.Driver(ctx))(t)
	in := d.GPUs[0].Instances[0]
	for _, err := range []error{n.DestroyCompute(ctx, first, in.ID, 0), second2(n.CreateCompute(ctx, first, in.ID, 0, host.Span{}))} {
		must.OK(t, err)
	}
	before := ids(t, n)
	res, err := e.Undo(ctx, n, "", nil)
	check.That(t, err == nil && len(res.Left) == 1 && strings.Contains(res.Left[0].Cannot, "has 3g.40gb@"), "undo says %v, left %v", err, res.Left)
	compare(t, "untouched", before, ids(t, n))
}

func second2(_ int, err error) error { return err }

// One kind of interruption without clients does not hide another that has some.
func TestConsentForEachKind(t *testing.T) {
	e := engineOf(t, stage(
		converge.Want{
			Thing:  pkgThing{"a"},
			To:     to("1"),
			Breaks: []string{"reset-gpu"},
		},
		converge.Want{
			Thing:   pkgThing{"b"},
			To:      to("1"),
			Breaks:  []string{"stop-clients"},
			Clients: map[string][]string{"stop-clients": {"process 4711 uses 1g.5gb@0 of GPU 1"}},
		},
	))
	n := node(t)
	_, err := e.Apply(context.Background(), n)
	check.That(t, err != nil && strings.Contains(err.Error(), "stop-clients") && n.Touches() == 0, "%v, %d touches", err, n.Touches())
}

// An undo that was killed while services were paused starts them when it goes on, also where
// nothing is left to undo.
func TestKilledUndoResumes(t *testing.T) {
	boot := func() (*simhost.Node, *converge.Engine) {
		n, e := gpus(t, a100s+persistenced), engine(t, wantsMIG(`"3g.20gb" = 2`))
		apply(t, n, e)
		return n, e
	}

	whole, e := boot()
	from := whole.Touches()
	want := whole.Units()
	undo(t, whole, e, "")
	for at := from; at < whole.Touches(); at++ {
		n, e := boot()
		n.CutAt(at)
		_, err := e.Undo(context.Background(), n, "", nil)
		must.That(t, err != nil, "not killed at touch %d", at)
		n.Revive()
		undo(t, n, e, "")
		compare(t, fmt.Sprintf("killed at touch %d", at-from), want, n.Units())
	}
}

const (
	sevenBusy = "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"3g.20gb\", start = 4 }, { profile = \"1g.5gb\", start = 0 }, { profile = \"1g.5gb\", start = 1 }]\n"
	dcgm      = "\n[[unit]]\nname = \"nvidia-dcgm.service\"\nenabled = \"enabled\"\nactive = \"active\"\n"
)

// stopping is an engine that may end what uses the GPUs.
func stopping(t testing.TB, layout string) *converge.Engine {
	e := engine(t, wantsMIG(layout))
	e.Allow = []string{"stop-clients"}
	return e
}

// What uses an instance that goes is ended where that is allowed, before anything idle is
// destroyed; and undo a day later is not held up.
func TestStopClients(t *testing.T) {
	for _, pid := range []int{4711, 4713} {
		for _, layout := range []string{`"7g.40gb" = 1`, `"1g.5gb" = 7`} {
			n := withProcesses(t, sevenBusy)
			n.Use(first, 2, pid)
			opens(t, n, pid, "/dev/nvidia0")
			before, touches := ids(t, n), n.Touches()
			_, err := engine(t, wantsMIG(layout)).Apply(context.Background(), n)
			check.That(t, err != nil && errors.Is(err, converge.ErrInUse) && strings.Contains(strings.Join(because(err), " "), "uses 3g.20gb@4 of GPU 0") && n.Touches() == touches,
				"not allowed: %v %v, %d touches", err, because(err), n.Touches()-touches)
			_, err = stopping(t, layout).Apply(context.Background(), n)
			if pid == 4711 {
				if err != nil || strings.Contains(partitions(n), "3g.20gb") {
					t.Errorf("%s: %v, %s", layout, err, partitions(n))
				}
				undo(t, n, engine(t, ""), "all")
				continue
			}

			check.That(t, err != nil && strings.Contains(err.Error(), "pods") && strings.Contains(strings.Join(because(err), " "), "process 4713 (python3) of pod"),
				"a pod's: %v %v", err, because(err))
			compare(t, "a pod's process", before, ids(t, n))
		}
	}
}

// A process that does not end is named, and nothing is lost, idle or not.
func TestStopClientsThatStay(t *testing.T) {
	n := withProcesses(t, sevenBusy+dcgm)
	n.Use(first, 2, 4711)
	opens(t, n, 4711, "/dev/nvidia0")
	n.Deafen(4711)
	before := ids(t, n) + n.Units()
	_, err := stopping(t, `"1g.5gb" = 7`).Apply(context.Background(), late{n})
	check.That(t, err != nil && strings.Contains(err.Error(), "cannot end process 4711 (nv-hostengine)") && strings.Contains(err.Error(), "30s after SIGTERM"), "it says %v", err)
	compare(t, "after that", before, ids(t, n)+n.Units())
}

// late is a machine on which half a minute goes by when a process is asked to end.
type late struct{ *simhost.Node }

func (n late) Terminate(pid int) error {
	defer n.Advance(31 * time.Second)
	return n.Node.Terminate(pid)
}

// A process that came after the operator agreed to nothing is not ended.
func TestClientThatCameLate(t *testing.T) {
	n := withProcesses(t, sevenBusy)
	before := ids(t, n)
	_, err := stopping(t, `"1g.5gb" = 7`).Apply(context.Background(), &comes{Node: n, t: t})
	check.That(t, err != nil && strings.Contains(strings.Join(because(err), " "), "process 4711 (nv-hostengine) uses 3g.20gb@4 of GPU 0"), "%v %v", err, because(err))
	compare(t, "after that", before, ids(t, n))
}

// comes is a machine where a process begins to use an instance after the plan was made.
type comes struct {
	*simhost.Node
	t    testing.TB
	came bool
}

func (n *comes) Append(name string, data []byte) error {
	if !n.came && strings.Contains(string(data), `"what":"make"`) {
		n.came = true
		n.Use(first, 2, 4711)
		opens(n.t, n.Node, 4711, "/dev/nvidia0")
	}
	return n.Node.Append(name, data)
}

// A service that the driver does not list is paused for instances that go, and for none that are
// made; a process of no service is named in the plan: by the capability of the instance that it has
// open, and not by that of another one.
func TestUnlistedHolders(t *testing.T) {
	n := withProcesses(t, sevenBusy+dcgm)
	opens(t, n, 4712, "/dev/nvidia-caps/nvidia-cap21")
	write := func(name, text string) {
		t.Helper()
		if err := n.Mkdir("/proc/driver", host.Attr{Mode: 0o555}); err != nil {
			t.Log(err)
		}
		at := "/proc/driver"
		for part := range strings.SplitSeq(strings.TrimPrefix(name, "/proc/driver/"), "/") {
			at += "/" + part
			if part != "access" {
				_ = n.Mkdir(at, host.Attr{Mode: 0o555})
			}
		}

		must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o444}))
	}

	write("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	paused := pauses{n, new([]string)}
	res, err := engine(t, wantsMIG(`"3g.20gb" = 1, "1g.5gb" = 3`)).Apply(context.Background(), paused)
	check.That(t, err == nil && len(*paused.jobs) == 0, "where an instance is only made: %v, %+v, %v", err, res, *paused.jobs)
	before := n.Units()
	_, err = engine(t, wantsMIG(`"7g.40gb" = 1`)).Apply(context.Background(), paused)
	check.That(t, err == nil, "%v %v", err, because(err))
	want := []string{"stop nvidia-dcgm.service", "start nvidia-dcgm.service"}
	check.That(t, slices.Equal(*paused.jobs, want), "jobs %v, want %v", *paused.jobs, want)
	compare(t, "units", before, n.Units())

	n = withProcesses(t, sevenBusy)
	write("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	opens(t, n, 4711, "/dev/nvidia-caps/nvidia-cap21")
	if p := plan(t, n, engine(t, wantsMIG(`"3g.20gb" = 1, "2g.10gb" = 2`))); len(p.Changes) == 0 || slices.Contains(p.Changes[0].Breaks, "stop-clients") {
		t.Errorf("the holder of an instance that stays: %+v", p.Changes)
	}
	p := plan(t, n, engine(t, wantsMIG(`"7g.40gb" = 1`)))
	i := slices.IndexFunc(p.Changes, func(c converge.Line) bool { return c.Kind == "mig" })
	check.That(t, i >= 0 && slices.Contains(p.Changes[i].Clients["stop-clients"], "process 4711 (nv-hostengine) has /dev/nvidia-caps/nvidia-cap21 open"),
		"the plan names no process: %+v", p.Changes)
	_, err = stopping(t, `"7g.40gb" = 1`).Apply(context.Background(), n)
	check.That(t, err == nil, "%v %v", err, because(err))
}

// pauses is a machine that records the jobs of units.
type pauses struct {
	*simhost.Node
	jobs *[]string
}

func (n pauses) SetUnit(ctx context.Context, name string, to host.UnitChange) error {
	*n.jobs = append(*n.jobs, to.Job+" "+name)
	return n.Node.SetUnit(ctx, name, to)
}

// nvidia-persistenced runs again before the instances are made: GPUs that nothing holds are
// attached for each client. The others wait until the end.
func TestPersistencedRunsBeforeInstances(t *testing.T) {
	n := creates{pauses{gpus(t, a100s+persistenced+dcgm), new([]string)}}
	_, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), n)
	must.That(t, err == nil, "%v: %v", err, because(err))
	want := []string{"stop nvidia-dcgm.service", "stop nvidia-persistenced.service", "start nvidia-persistenced.service", "create", "start nvidia-dcgm.service"}
	check.List(t, slices.Compact(*n.jobs), want, "jobs")
}

// creates is a machine that records also when instances are made.
type creates struct{ pauses }

func (n creates) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (int, error) {
	*n.jobs = append(*n.jobs, "create")
	return n.pauses.CreateInstance(ctx, gpu, profile, at)
}
