// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// driverPackage is the package that brings the module nvidia: /disk says in which version and
// flavour.
type driverPackage struct{}

func (driverPackage) Ref() converge.Ref {
	return converge.Ref{Kind: "package", Name: "nvidia-kernel-open-dkms"}
}

func (driverPackage) Look(_ context.Context, v host.View) (converge.State, error) {
	s, err := onDisk(v, "")
	return converge.State(s), err
}

func (driverPackage) Make(_ context.Context, h host.Host, to converge.State) error {
	return h.WriteFile("/disk", []byte(to), host.Attr{Mode: 0o644})
}

func onDisk(v host.View, _ string) (string, error) {
	b, err := v.ReadFile("/disk")
	return string(b), err
}

// reloading is a machine of two GPUs with a driver that can be replaced: old is loaded. A module of
// the flavour "rejected" does not load.
func reloading(t testing.TB, tables string) *simhost.Node {
	t.Helper()
	n := machine{"reloading", []byte("-- sim.toml --\n[driver]\nmodule = \"/sys/module/nvidia/version\"\n" + tables + persistenced +
		"\n-- disk --\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n-- proc/sys/kernel/osrelease --\n6.8.0\n-- sys/module/ --\n-- proc/driver/ --\n")}.boot(t)
	touches := func([]string) bool { return false }
	n.Install("rmmod", simhost.Program{Looks: touches, Run: func(f *files.Files, argv []string) ([]byte, error) {
		if err := f.Remove(partAccess); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, errors.Join(f.Remove("/sys/module/nvidia/refcnt"), f.Remove("/sys/module/nvidia/version"))
	}})
	n.Install("modprobe", simhost.Program{Looks: touches, Run: func(f *files.Files, argv []string) ([]byte, error) {
		disk, err := f.ReadFile("/disk")
		version, flavour, _ := strings.Cut(string(disk), " ")
		if flavour == "rejected" {
			return nil, &host.CommandError{
				Argv:   argv,
				Code:   1,
				Stderr: "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
				Cause:  errors.New("exit status 1"),
			}
		}

		for name, text := range map[string]string{"/sys/module/nvidia/refcnt": "0\n", "/sys/module/nvidia/version": version + "\n", "/proc/driver/nvidia/version": "Open Kernel Module  " + version + "\n"} {
			if made := f.Mkdir(path.Dir(name), host.Attr{Mode: 0o755}); !errors.Is(made, fs.ErrExist) {
				err = errors.Join(err, made)
			}
			err = errors.Join(err, f.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
		}

		return nil, err
	}})
	must.OK(t, n.WriteFile("/disk", []byte(oldDriver), host.Attr{Mode: 0o644}))
	must.Get(n.Do(t.Context(), "modprobe", "nvidia"))(t)
	return n
}

// partAccess is how the loaded module shows that a GPU has an instance.
const partAccess = "/proc/driver/nvidia/capabilities/gpu0/mig/gi13"

const oldDriver, newDriver, badDriver = "570.172.08 open", "580.95.05 open", "590.1 rejected"

// upgrading is packages, modules and mig, for a driver and a layout; "" asks for no layout at all.
func upgrading(t testing.TB, driver, layout string) *converge.Engine {
	text := "[driver]\n"
	if layout != "" {
		text += wantsMIG(layout)
	}
	named := func(name, proves string, w converge.Want) converge.Stage {
		w.Section = "driver"
		return converge.Stage{
			Name:     name,
			Verifies: proves,
			Wants:    func(spec.Spec, facts.Facts) ([]converge.Want, error) { return []converge.Want{w}, nil },
		}
	}

	asked := specs.Of(t, text)
	return &converge.Engine{
		Spec: asked,
		Stages: []converge.Stage{
			named("packages", "", converge.Want{
				Thing:  driverPackage{},
				Brings: []string{"nvidia"},
				To:     to(converge.State(driver)),
			}),
			named("modules", "packages", kmod.Module("6.8.0", nil, onDisk, asked.MIG.Asked(), "")),
			mig.Stage,
		},
		ThingOf: func(ref converge.Ref) (converge.Thing, error) {
			switch ref.Kind {
			case "package":
				return driverPackage{}, nil
			case "module":
				return kmod.NewModule(ref.Reads, onDisk), nil
			}
			return thingOf(ref)
		},
	}
}

// process is a machine as one gpuadm process sees it: the driver's library is loaded when the
// driver is asked first, as it lies on disk then, and answers for a module of its own version only.
type process struct {
	*simhost.Node
	library *library
}

// library is the version that a process has loaded; several things ask the driver at once.
type library struct {
	sync.Mutex
	version string
}

func newProcess(n *simhost.Node) process { return process{n, new(library)} }

func (p process) Driver(ctx context.Context) (host.Driver, error) {
	d, err := p.Node.Driver(ctx)
	if err != nil {
		return d, err
	}
	disk, err := onDisk(p.Node, "")
	version, _, _ := strings.Cut(disk, " ")
	p.library.Lock()
	defer p.library.Unlock()
	if p.library.version = cmp.Or(p.library.version, version); p.library.version != d.Version {
		return host.Driver{}, &host.NoDriver{
			Why:   "the library is of " + p.library.version + " and the module of " + d.Version,
			Again: version == d.Version,
		}
	}

	return d, err
}

// inProcesses does something, in as many processes as that takes; at most two.
func inProcesses(t testing.TB, n *simhost.Node, do func(host.Host) (converge.Result, error)) converge.Result {
	t.Helper()
	for range 2 {
		res := must.Get(do(newProcess(n)))(t)
		if !slices.ContainsFunc(res.Deferred, func(c converge.Line) bool { return c.When == host.InNewProcess }) {
			return res
		}
	}

	t.Fatal("a second new process would be needed")
	return converge.Result{}
}

func applyIn(t testing.TB, n *simhost.Node, e *converge.Engine) converge.Result {
	t.Helper()
	return inProcesses(t, n, func(h host.Host) (converge.Result, error) {
		return e.Apply(t.Context(), h)
	})
}

func undoIn(t testing.TB, n *simhost.Node, e *converge.Engine, to string) converge.Result {
	t.Helper()
	return inProcesses(t, n, func(h host.Host) (converge.Result, error) {
		return e.Undo(t.Context(), h, to, nil)
	})
}

// layouts are pairs of one GPU model's: before an upgrade, and another.
var layouts = map[string][2]string{"A100-40": {`"3g.20gb" = 1, "1g.5gb" = 2`, `"1g.5gb" = 7`}, "H100-80": {`"3g.40gb" = 1, "1g.10gb" = 2`, `"1g.10gb" = 7`}}

// partitioned is a machine with the old driver and a layout.
func partitioned(t testing.TB, model, layout string) *simhost.Node {
	t.Helper()
	n := reloading(t, "[[gpu]]\nmodel = \""+model+"\"\ncount = 2\n")
	applyIn(t, n, upgrading(t, oldDriver, layout))
	return n
}

// upgraded is a machine with an upgraded driver, with the layout asked for; before is the state of
// its GPUs before that.
func upgraded(t testing.TB, model, first, second string) (n *simhost.Node, before string) {
	t.Helper()
	n = partitioned(t, model, first)
	before = ids(t, n)
	applyIn(t, n, upgrading(t, newDriver, second))
	return n, before
}

// loaded is the state of the driver and the GPUs.
func loaded(t testing.TB, n *simhost.Node) string {
	t.Helper()
	disk, err := onDisk(n, "")
	is, err2 := n.ReadFile("/sys/module/nvidia/version")
	must.That(t, err == nil && err2 == nil, "%v: %v", err, err2)
	return "on disk " + disk + ", loaded " + string(is) + ids(t, n)
}

// refused says that a run would lose partitions, which ones, and how to allow it, and that it has
// left all as it was.
func refused(t testing.TB, what string, err error, lost ...string) {
	t.Helper()
	told := (*trouble.Error)(nil)
	if !errors.As(err, &told) || !errors.Is(err, converge.ErrInUse) ||
		!strings.Contains(told.What, "cannot make module nvidia: that needs lose-partitions, and the GPUs are partitioned") ||
		!slices.Equal(told.Because, lost) || !slices.Equal(told.Try, []string{"run again with --allow lose-partitions"}) {
		t.Fatalf("%s: %v, %+v; want it refused for %v", what, err, told, lost)
	}
}

// Undo of an upgrade loads the module again, which forgets the partitions: undo restores those from
// before the upgrade, and asks for nothing.
func TestUndoOfAnUpgradeRestoresPartitions(t *testing.T) {
	for model, l := range layouts {
		for _, second := range l {
			n := partitioned(t, model, l[0])
			before := loaded(t, n)
			applyIn(t, n, upgrading(t, newDriver, second))
			what := model + " from " + second

			e := upgrading(t, newDriver, second)
			p := must.Get(e.PlanUndo(t.Context(), newProcess(n), "", nil))(t)
			asks := slices.ContainsFunc(p.Changes, func(c converge.Line) bool {
				return slices.Contains(c.Breaks, "lose-partitions")
			})
			check.That(t, !asks, "%s: the plan of the undo asks: %+v", what, p.Changes)

			undoIn(t, n, e, "")
			compare(t, what, before, loaded(t, n))
		}
	}
}

// An upgrade whose module does not load is rolled back, with the partitions from before it.
func TestFailedUpgradeRestoresPartitions(t *testing.T) {
	for model, l := range layouts {
		for _, second := range l {
			n := partitioned(t, model, l[0])
			before := loaded(t, n)
			_, err := upgrading(t, badDriver, second).Apply(t.Context(), newProcess(n))
			check.That(t, err != nil && strings.Contains(err.Error(), "cannot load the module nvidia 590.1"), "%s: the upgrade ended with %v", model, err)
			compare(t, model+", rolled back from "+second, before, loaded(t, n))
		}
	}
}

// Where a process holds the module a boot loads the earlier one: undo stays open, and that boot
// restores the partitions, and then holds.
func TestUndoOfAnUpgradeByReboot(t *testing.T) {
	for model, l := range layouts {
		n := partitioned(t, model, l[0])
		before := loaded(t, n)
		applyIn(t, n, upgrading(t, newDriver, l[1]))

		must.OK(t, n.WriteFile("/sys/module/nvidia/refcnt", []byte("1\n"), host.Attr{Mode: 0o644}))
		e := upgrading(t, newDriver, l[1])
		res := must.Get(e.Undo(t.Context(), newProcess(n), "", nil))(t)
		check.That(t, res.Reboot != "" && len(res.Deferred) == 2, "%s: a held module ended in %+v", model, res)

		n.Reboot()
		must.Get(n.Do(t.Context(), "rmmod", "nvidia"))(t)
		must.Get(n.Do(t.Context(), "modprobe", "nvidia"))(t)
		e.Unattended = true
		booted := applyIn(t, n, e)
		check.That(t, len(booted.Undone) == 2, "%s: the boot restored %+v", model, booted)
		compare(t, model+" after the boot", before, loaded(t, n))
		check.That(t, converge.ReadJournal(n).Held() != "", "%s: the undo does not hold", model)
	}
}

// An upgrade that makes the partitions of node.toml after it asks for none, whether or not gpuadm
// made those that are there.
func TestUpgradeMakesPartitionsAgain(t *testing.T) {
	for model, l := range layouts {
		for _, before := range []string{l[0], l[1], ""} {
			n := reloading(t, "[[gpu]]\nmodel = \""+model+"\"\ncount = 2\n")
			if applyIn(t, n, upgrading(t, oldDriver, before)); before == "" {
				applyIn(t, n, upgrading(t, oldDriver, l[0]))
				if err := n.Remove(converge.Home + "/journal.jsonl"); err != nil { // made outside gpuadm, then
					t.Fatal(err)
				}
			}

			applyIn(t, n, upgrading(t, newDriver, l[0]))
			p := plan(t, n, upgrading(t, newDriver, l[0]))
			check.That(t, p.Now() == 0 && p.Deferred == 0, "%s: planned: %s", model, namesNow(p.Changes))
			got := loaded(t, n)
			check.That(t, strings.HasPrefix(got, "on disk "+newDriver) && strings.Count(got, ":9@")+strings.Count(got, ":19@") >= 6, "%s: %s", model, got)
		}
	}
}

// An upgrade of a machine with partitions that were made outside gpuadm is rolled back until that
// is allowed; where node.toml says nothing of partitions the next apply makes none.
func TestUpgradeAsksForPartitionsOfOthers(t *testing.T) {
	n := reloading(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"1g.5gb\", start = 5 }]\n[[gpu]]\nmodel = \"A100-40\"\n"+
		"-- "+partAccess[1:]+" --\n")
	before := loaded(t, n)
	for _, asked := range []bool{true, false} { // the library is loaded before it is replaced, or not
		h, lost := newProcess(n), "GPU 0: 1 MIG instance"
		if asked {
			must.Get(h.Driver(t.Context()))(t)
			lost = "GPU " + first + ": 1 MIG instance"
		}
		_, err := upgrading(t, newDriver, "").Apply(t.Context(), h)
		refused(t, fmt.Sprintf("asked %t", asked), err, lost)
		compare(t, "refused", before, loaded(t, n))
	}

	e := upgrading(t, newDriver, "")
	e.Allow = []string{"lose-partitions"}
	applyIn(t, n, e)
	got := loaded(t, n)
	check.That(t, strings.HasPrefix(got, "on disk "+newDriver) && !strings.Contains(got, "@"), "after it was allowed: %s", got)
}

// An undo that is killed at any touch, or cut short by a power cut, and run again, ends as one that
// was not.
func TestKilledUndoOfAnUpgrade(t *testing.T) {
	t.Parallel()
	for model, second := range map[string]string{"A100-40": layouts["A100-40"][1], "H100-80": ""} {
		whole, _ := upgraded(t, model, layouts[model][0], second)
		from := whole.Touches()
		undoIn(t, whole, upgrading(t, newDriver, second), "")
		want := loaded(t, whole)
		for at := range every(whole.Touches() - from) {
			n, _ := upgraded(t, model, layouts[model][0], second)
			n.CutAt(from + at)
			if _, err := upgrading(t, newDriver, second).Undo(t.Context(), newProcess(n), "", nil); err == nil {
				continue // it was clearing away what no run needs
			}
			up := []func(*simhost.Node){(*simhost.Node).Revive, (*simhost.Node).Reboot}[at%2]
			up(n)
			if j, err := converge.ReadJournal(n), error(nil); err != nil || j.Records[len(j.Records)-1].What == "end" {
				continue // its end was written, and only the disk had not said so
			}
			undoIn(t, n, upgrading(t, newDriver, second), "")
			compare(t, fmt.Sprintf("%s, %q, cut at touch %d", model, second, at), want, loaded(t, n))
		}
	}
}

// Undo of the run that made the partitions asks for nothing: it destroys them before it unloads the
// module. Partitions of another GPU, which were made outside gpuadm, are asked for, and they alone.
func TestUndoOfTheRunThatPartitionedAsksForNothing(t *testing.T) {
	for model, l := range layouts {
		n := reloading(t, "[[gpu]]\nmodel = \""+model+"\"\ncount = 2\n")
		fresh := loaded(t, n)
		applyIn(t, n, upgrading(t, newDriver, l[0]))

		e := upgrading(t, newDriver, l[0])
		p, err := e.PlanUndo(t.Context(), newProcess(n), "", nil)
		asks := slices.ContainsFunc(p.Changes, func(c converge.Line) bool {
			return slices.Contains(c.Breaks, "lose-partitions")
		})
		check.That(t, err == nil && !asks, "%s: the plan of the undo is %+v, %v", model, p.Changes, err)
		undoIn(t, n, e, "")
		compare(t, model, fresh, loaded(t, n))
	}

	n := reloading(t, "[[gpu]]\nmodel = \"A100-40\"\ncount = 2\n")
	e := upgrading(t, newDriver, "")
	e.Spec = specs.Of(t, "[driver]\n[[mig.gpu]]\ndevices = [0]\nlayout = { \"1g.5gb\" = 7 }\n")
	applyIn(t, n, e)
	must.OK(t, n.SetMIGMode(t.Context(), second, true))
	must.Get(n.CreateInstance(t.Context(), second, 19, host.Span{Start: 0, Size: 1}))(t)

	before := loaded(t, n)
	_, err := e.Undo(t.Context(), newProcess(n), "", nil)
	refused(t, "another GPU's partition", err, "GPU "+second+": 1 MIG instance")
	compare(t, "refused", before, loaded(t, n))
}

// Undo of everything undoes the layout too, and ends without one; in one process as in two.
func TestUndoOfAllOfAnUpgrade(t *testing.T) {
	for model, l := range layouts {
		for _, twoProcesses := range []bool{false, true} {
			n := reloading(t, "[[gpu]]\nmodel = \""+model+"\"\ncount = 2\n")
			first := loaded(t, n)
			applyIn(t, n, upgrading(t, oldDriver, l[0]))
			applyIn(t, n, upgrading(t, newDriver, l[1]))
			if e := upgrading(t, newDriver, l[1]); twoProcesses {
				undoIn(t, n, e, "all")
			} else {
				undo(t, n, e, "all")
			}

			compare(t, fmt.Sprintf("%s, two processes %t", model, twoProcesses), first, loaded(t, n))
		}
	}
}

// Where undo takes the driver away there is nothing to partition, and no failure in that.
func TestUndoOfADriverThatWasPartitioned(t *testing.T) {
	n := reloading(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\n")
	must.OK(t, n.WriteFile("/disk", nil, host.Attr{Mode: 0o644}))
	must.Get(n.Do(t.Context(), "rmmod", "nvidia"))(t)
	applyIn(t, n, upgrading(t, newDriver, ""))
	must.Get(n.CreateInstance(t.Context(), first, 0, host.Span{Start: 0, Size: 8}))(t)
	e := upgrading(t, newDriver, "")
	e.Allow = []string{"lose-partitions"}
	res := undoIn(t, n, e, "")
	_, err := n.Stat("/sys/module/nvidia/version")
	check.That(t, err != nil && len(res.Made) == 2, "the module is still loaded, or not all was undone: %+v", res)
}

// resetter is a machine that records resets, and may have a way of its own with them.
type resetter struct {
	host.Host
	resets *[]string
	reset  func(ctx context.Context, gpus []string) error
}

func (n resetter) ResetGPUs(ctx context.Context, all ...string) error {
	*n.resets = append(*n.resets, strings.Join(all, ","))
	if n.reset != nil {
		return n.reset(ctx, all)
	}
	return n.Host.ResetGPUs(ctx, all...)
}

// smi is how nvidia-smi refuses.
func smi(code int, cause error, words string) error {
	return &host.CommandError{
		Argv:   []string{"nvidia-smi"},
		Code:   code,
		Cause:  cause,
		Stderr: words,
	}
}

// GPUs that wait for a reset are reset in one call, since those joined by NVLink are only reset
// together, and no other GPU is: not one that keeps its mode, nor one that the driver has reset
// itself when its mode was set.
func TestGPUsAreResetTogether(t *testing.T) {
	for tables, want := range map[string][]string{
		strings.ReplaceAll(passed, "= 2", "= 3"):  {"0000:1f:00.0,0000:27:00.0,0000:2f:00.0"},
		strings.ReplaceAll(a100s, "= 2", "= 3"):   nil,
		passed + "[[gpu]]\nmodel = \"A100-40\"\n": {"0000:1f:00.0,0000:27:00.0"},
	} {
		n := gpus(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\n"+tables)
		var resets []string
		res, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), resetter{n, &resets, nil})
		must.That(t, err == nil && len(res.Made) == 4, "%v, made %v", err, res.Made)
		check.That(t, slices.Equal(resets, want), "%s: resets of %v, want %v", tables, resets, want)
	}
}

// Where only a boot changes the mode the others get their partitions, and a reset by hand does as
// well as a boot.
func TestUnresetGPUs(t *testing.T) {
	for name, reset := range map[string]func(context.Context, []string) error{
		"not available": func(context.Context, []string) error { return smi(3, errors.New("exit status 3"), "Not Supported") },
		"no effect":     func(context.Context, []string) error { return nil },
		"no reason":     func(context.Context, []string) error { return smi(255, errors.New("exit status 255"), "Unknown Error") },
	} {
		for _, byHand := range []bool{true, false} {
			n := gpus(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"7g.40gb\", start = 0 }]\n"+passed+"[[gpu]]\nmodel = \"A100-40\"\n")
			var resets []string
			e := engine(t, wantsMIG(`"3g.20gb" = 2`))
			res, err := e.Apply(context.Background(), resetter{n, &resets, reset})
			must.That(t, err == nil && strings.Contains(res.Reboot, "0000:1f:00.0 and 0000:27:00.0") && len(resets) == 1, "%s: %v, %+v, resets %v", name, err, res, resets)
			check.That(t, name != "no effect" || strings.Contains(res.Reboot, "only a restart of the machine"), "%s: it says %s", name, res.Reboot)
			if p := partitions(n); strings.Count(p, "3g.20gb@") != 4 || strings.Count(p, "off, on after a reset") != 2 {
				t.Errorf("%s: the GPUs that need no reset have not what is wanted: %s", name, p)
			}
			// Again, without a boot in between: the GPUs wait still, and nothing is rolled back.
			res, err = e.Apply(context.Background(), resetter{n, &resets, reset})
			check.That(t, err == nil && res.Reboot != "", "%s, applied again: %v, %+v", name, err, res)
			if byHand {
				must.OK(t, n.ResetGPUs(context.Background(), "0000:1f:00.0", "0000:27:00.0"))
			} else {
				n.Reboot()
			}

			resets = nil
			res, err = e.Apply(context.Background(), resetter{n, &resets, reset})
			check.That(t, err == nil && res.Reboot == "" && len(resets) == 0, "%s, by hand %t: %v, %+v, resets %v", name, byHand, err, res, resets)
			p := plan(t, n, e)
			check.That(t, p.Now() == 0, "%s, by hand %t: still planned: %v", name, byHand, p.Changes)
		}
	}
}

// What an operator can do about a refused reset is no reason for a reboot: it is named, and all is
// as before.
func TestRefusedReset(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"no nvidia-smi": {smi(-1, fmt.Errorf("it is not installed: %w", fs.ErrNotExist), ""), "nvidia-smi is not installed"},
		"no permission": {smi(4, errors.New("exit status 4"), "Insufficient Permissions"), "no permission"},
		"in use":        {smi(255, errors.New("exit status 255"), "In use by another client"), "process 4711 (nv-hostengine) has /dev/nvidia1 open"},
	} {
		n := withProcesses(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"7g.40gb\", start = 0 }]\n"+passed)
		before := ids(t, n)
		var resets []string
		res, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), resetter{n, &resets, func(context.Context, []string) error {
			if name == "in use" {
				opens(t, n, 4711, "/dev/nvidia1")
			}
			return c.err
		}})
		check.That(t, err != nil && res.Reboot == "" && strings.Contains(err.Error()+strings.Join(because(err), " "), c.says), "%s: %v %v, %+v", name, err, because(err), res)
		compare(t, name, before, ids(t, n))
	}
}

// A reset that an operator makes while gpuadm plans is not made again, and one that fails late has
// worked.
func TestResetElsewhere(t *testing.T) {
	n := gpus(t, passed)
	var resets []string
	res, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), resetter{n, &resets, func(ctx context.Context, all []string) error {
		return errors.Join(n.ResetGPUs(ctx, all...), smi(255, errors.New("exit status 255"), "late"))
	}})
	check.That(t, err == nil && len(res.Made) == 2, "%v, %+v", err, res)
	must.OK(t, n.SetMIGMode(context.Background(), first, false))
}

// withProcesses is a machine where processes may have NVIDIA's devices open.
func withProcesses(t testing.TB, tables string) *simhost.Node {
	t.Helper()
	archive := "-- sim.toml --\n" + tables + "\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n" +
		"-- proc/devices --\nCharacter devices:\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n\nBlock devices:\n" +
		"-- dev/nvidiactl device=195:255 --\n-- dev/nvidia0 device=195:0 --\n-- dev/nvidia1 device=195:1 --\n-- dev/nvidia-caps/nvidia-cap21 device=235:21 --\n"
	for pid, of := range map[int][2]string{
		4711: {"nv-hostengine", "0::/user.slice/user-0.slice/session-1.scope"},
		4712: {"nv-hostengine", "0::/system.slice/nvidia-dcgm.service"},
		4713: {"python3", "0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-" + strings.Repeat("0123", 16) + ".scope"},
	} {
		archive += fmt.Sprintf("-- proc/%d/comm --\n%s\n-- proc/%d/cgroup --\n%s\n-- proc/%d/fd/0 link=/dev/null --\n", pid, of[0], pid, of[1], pid)
	}

	return machine{"gpus", []byte(archive)}.boot(t)
}

// opens has a process open a device.
func opens(t testing.TB, n *simhost.Node, pid int, device string) {
	t.Helper()
	must.OK(t, n.Symlink(fmt.Sprintf("/proc/%d/fd/%d", pid, 3+len(device)), device))
}

// TestKilledReloadIsUndone: a reload of the module that was killed while the driver's daemon was
// stopped, then undo. There is nothing to revert, and the daemon runs again.
func TestKilledReloadIsUndone(t *testing.T) {
	reload := func() *converge.Engine {
		e := upgrading(t, oldDriver, "")
		e.Repair = "DRV-014"
		e.Stages = []converge.Stage{{Name: "repair", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
			return []converge.Want{kmod.Module("6.8.0", nil, onDisk, false, ""), things.Resumed()}, nil
		}}}
		return e
	}

	boot := func() *simhost.Node {
		n := reloading(t, "[[gpu]]\nmodel = \"A100-40\"\n")
		must.OK(t, n.WriteFile("/disk", []byte(newDriver), host.Attr{Mode: 0o644}))
		return n
	}

	whole := boot()
	units := whole.Units()
	before := whole.Touches()
	apply(t, whole, reload())
	check.Equal(t, whole.Units(), units, "after the reload:")

	stopped := 0
	for at := before; at < whole.Touches(); at++ {
		n := boot()
		n.CutAt(at)
		_, err := reload().Apply(t.Context(), n)
		must.That(t, err != nil, "not killed")
		n.CutAt(-1)
		n.Revive()
		if n.Units() != units {
			stopped++
		}

		undo(t, n, reload(), "all")
		check.Equal(t, n.Units(), units, "killed before touch %d, undone:", at)
		_, err = n.Stat("/sys/module/nvidia/refcnt")
		check.That(t, err == nil, "killed before touch %d, undone: the module is not loaded", at)
		_, err = n.Stat("/run/gpuadm-paused")
		check.That(t, host.NotExist(err), "killed before touch %d, undone: still noted as paused", at)
	}

	check.That(t, stopped > 0, "no kill came while the daemon was stopped")
}
