// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

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

// What uses an instance that goes is ended where that is allowed, before anything idle is destroyed; and undo a day later is not held up.
func TestStopClients(t *testing.T) {
	for _, pid := range []int{4711, 4713} {
		for _, layout := range []string{`"7g.40gb" = 1`, `"1g.5gb" = 7`} {
			n := withProcesses(t, sevenBusy)
			n.Use(first, 2, pid)
			opens(t, n, pid, "/dev/nvidia0")
			before, touches := ids(t, n), n.Touches()
			_, err := engine(t, wantsMIG(layout)).Apply(context.Background(), n)
			if err == nil || !errors.Is(err, converge.ErrInUse) || !strings.Contains(strings.Join(because(err), " "), "uses 3g.20gb@4 of GPU 0") || n.Touches() != touches {
				t.Errorf("not allowed: %v %v, %d touches", err, because(err), n.Touches()-touches)
			}
			_, err = stopping(t, layout).Apply(context.Background(), n)
			if pid == 4711 {
				if err != nil || strings.Contains(partitions(n), "3g.20gb") {
					t.Errorf("%s: %v, %s", layout, err, partitions(n))
				}
				undo(t, n, engine(t, ""), "all")
				continue
			}
			if err == nil || !strings.Contains(err.Error(), "pods") || !strings.Contains(strings.Join(because(err), " "), "process 4713 (python3) of pod") {
				t.Errorf("a pod's: %v %v", err, because(err))
			}
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
	if err == nil || !strings.Contains(err.Error(), "cannot end process 4711 (nv-hostengine)") || !strings.Contains(err.Error(), "30s after SIGTERM") {
		t.Errorf("it says %v", err)
	}
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
	if err == nil || !strings.Contains(strings.Join(because(err), " "), "process 4711 (nv-hostengine) uses 3g.20gb@4 of GPU 0") {
		t.Errorf("%v %v", err, because(err))
	}
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

// A service that the driver does not list is paused for instances that go, and for none that are made; a process of no service is named
// in the plan: by the capability of the instance that it has open, and not by that of another one.
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
	if err != nil || len(*paused.jobs) > 0 {
		t.Errorf("where an instance is only made: %v, %+v, %v", err, res, *paused.jobs)
	}
	before := n.Units()
	if _, err := engine(t, wantsMIG(`"7g.40gb" = 1`)).Apply(context.Background(), paused); err != nil {
		t.Errorf("%v %v", err, because(err))
	}
	if want := []string{"stop nvidia-dcgm.service", "start nvidia-dcgm.service"}; !slices.Equal(*paused.jobs, want) {
		t.Errorf("jobs %v, want %v", *paused.jobs, want)
	}
	compare(t, "units", before, n.Units())

	n = withProcesses(t, sevenBusy)
	write("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	opens(t, n, 4711, "/dev/nvidia-caps/nvidia-cap21")
	if p := plan(t, n, engine(t, wantsMIG(`"3g.20gb" = 1, "2g.10gb" = 2`))); len(p.Changes) == 0 || slices.Contains(p.Changes[0].Breaks, "stop-clients") {
		t.Errorf("the holder of an instance that stays: %+v", p.Changes)
	}
	p := plan(t, n, engine(t, wantsMIG(`"7g.40gb" = 1`)))
	if i := slices.IndexFunc(p.Changes, func(c converge.Change) bool { return c.Kind == "mig" }); i < 0 ||
		!slices.Contains(p.Changes[i].Clients["stop-clients"], "process 4711 (nv-hostengine) has /dev/nvidia-caps/nvidia-cap21 open") {
		t.Errorf("the plan names no process: %+v", p.Changes)
	}
	if _, err := stopping(t, `"7g.40gb" = 1`).Apply(context.Background(), n); err != nil {
		t.Errorf("%v %v", err, because(err))
	}
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

// nvidia-persistenced runs again before the instances are made: GPUs that nothing holds are attached for each client. The others wait
// until the end.
func TestPersistencedRunsBeforeInstances(t *testing.T) {
	n := creates{pauses{gpus(t, a100s+persistenced+dcgm), new([]string)}}
	if _, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), n); err != nil {
		t.Fatal(err, because(err))
	}
	want := []string{"stop nvidia-dcgm.service", "stop nvidia-persistenced.service", "start nvidia-persistenced.service", "create", "start nvidia-dcgm.service"}
	if got := slices.Compact(*n.jobs); !slices.Equal(got, want) {
		t.Errorf("jobs %v, want %v", got, want)
	}
}

// creates is a machine that records also when instances are made.
type creates struct{ pauses }

func (n creates) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (int, error) {
	*n.jobs = append(*n.jobs, "create")
	return n.pauses.CreateInstance(ctx, gpu, profile, at)
}

// Where EKS's agent watches DCGM it is not paused: the plan says so.
func TestNodeMonitoringAgent(t *testing.T) {
	n := withProcesses(t, sevenBusy+dcgm)
	for _, dir := range []string{"/var/log", "/var/log/pods", "/var/log/pods/kube-system_eks-node-monitoring-agent-x7k2p_01234567-89ab-cdef-0123-456789abcdef"} {
		_ = n.Mkdir(dir, host.Attr{Mode: 0o755})
	}
	before := n.Units()
	p := plan(t, n, engine(t, wantsMIG(`"7g.40gb" = 1`)))
	if cannot := p.Cannot(); len(cannot) != 1 || !strings.Contains(cannot[0].Cannot, "cannot pause nvidia-dcgm.service for this change: eks-node-monitoring-agent") {
		t.Errorf("%+v", p.Changes)
	}
	if _, err := engine(t, wantsMIG(`"7g.40gb" = 1`)).Apply(context.Background(), n); err == nil {
		t.Error("it was applied")
	}
	compare(t, "units", before, n.Units())
}
