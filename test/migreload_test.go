// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
)

// driverPackage is the package that brings the module nvidia: /disk says in which version and flavour.
type driverPackage struct{}

func (driverPackage) Kind() string { return "package" }
func (driverPackage) Name() string { return "nvidia-kernel-open-dkms" }

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

// reloading is a machine of two GPUs whose driver can be replaced: old is loaded. A module of the flavour "rejected" does not load.
func reloading(t testing.TB, tables string) *simhost.Node {
	t.Helper()
	n := machine{"reloading", []byte("-- sim.toml --\n[driver]\nmodule = \"/sys/module/nvidia/version\"\n" + tables + persistenced +
		"\n-- disk --\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n-- proc/sys/kernel/osrelease --\n6.8.0\n-- sys/module/ --\n-- proc/driver/ --\n")}.boot(t)
	touches := func([]string) bool { return false }
	n.Install("rmmod", simhost.Program{Looks: touches, Run: func(f *host.Files, argv []string) ([]byte, error) {
		return nil, errors.Join(f.Remove("/sys/module/nvidia/refcnt"), f.Remove("/sys/module/nvidia/version"))
	}})
	n.Install("modprobe", simhost.Program{Looks: touches, Run: func(f *host.Files, argv []string) ([]byte, error) {
		disk, err := f.ReadFile("/disk")
		version, flavour, _ := strings.Cut(string(disk), " ")
		if flavour == "rejected" {
			return nil, &host.CommandError{Argv: argv, Code: 1, Stderr: "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", Cause: errors.New("exit status 1")}
		}
		for name, text := range map[string]string{"/sys/module/nvidia/refcnt": "0\n", "/sys/module/nvidia/version": version + "\n", "/proc/driver/nvidia/version": "Open Kernel Module  " + version + "\n"} {
			if made := f.Mkdir(path.Dir(name), host.Attr{Mode: 0o755}); !errors.Is(made, fs.ErrExist) {
				err = errors.Join(err, made)
			}
			err = errors.Join(err, f.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
		}
		return nil, err
	}})
	if err := n.WriteFile("/disk", []byte(oldDriver), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Do(t.Context(), "modprobe", "nvidia"); err != nil {
		t.Fatal(err)
	}
	return n
}

const oldDriver, newDriver, badDriver = "570.172.08 open", "580.95.05 open", "590.1 rejected"

// upgrading is packages, modules and mig, for a driver and a layout; "" asks for no layout at all.
func upgrading(t testing.TB, driver, layout string) *converge.Engine {
	text := "[driver]\n"
	if layout != "" {
		text += wantsMIG(layout)
	}
	named := func(name, proves string, w converge.Want) converge.Stage {
		w.Section = "driver"
		return converge.Stage{Name: name, Proves: proves, Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return []converge.Want{w}, nil }}
	}
	return &converge.Engine{
		Spec: parse(t, text),
		Stages: []converge.Stage{
			named("packages", "", converge.Want{Thing: driverPackage{}, To: to(converge.State(driver))}),
			named("modules", "packages", things.Module("6.8.0", nil, onDisk, "")),
			mig.Stage,
		},
		ThingOf: func(kind, name string) (converge.Thing, error) {
			switch kind {
			case "package":
				return driverPackage{}, nil
			case "module":
				return things.NewModule(name, onDisk), nil
			}
			return stages.ThingOf(kind, name)
		},
	}
}

// process is a machine as one process of ours sees it: the driver's library is loaded when the driver is asked first, as it lies
// on disk then, and answers for a module of its own version only.
type process struct {
	*simhost.Node
	library *string
}

func newProcess(n *simhost.Node) process { return process{n, new(string)} }

func (p process) Driver(ctx context.Context) (host.Driver, error) {
	d, err := p.Node.Driver(ctx)
	if err != nil {
		return d, err
	}
	disk, err := onDisk(p.Node, "")
	version, _, _ := strings.Cut(disk, " ")
	if *p.library = cmp.Or(*p.library, version); *p.library != d.Version {
		return host.Driver{}, &host.NoDriver{Why: "the library is of " + *p.library + " and the module of " + d.Version, Again: version == d.Version}
	}
	return d, err
}

// inProcesses does something, in as many processes as that takes; at most two.
func inProcesses(t testing.TB, n *simhost.Node, do func(host.Host) (converge.Result, error)) converge.Result {
	t.Helper()
	for range 2 {
		res, err := do(newProcess(n))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(res.Later, func(c converge.Change) bool { return c.Later == host.NewProcess }) {
			return res
		}
	}
	t.Fatal("a second new process would be needed")
	return converge.Result{}
}

func applyIn(t testing.TB, n *simhost.Node, e *converge.Engine) converge.Result {
	t.Helper()
	return inProcesses(t, n, func(h host.Host) (converge.Result, error) { return e.Apply(t.Context(), h) })
}

func undoIn(t testing.TB, n *simhost.Node, e *converge.Engine, to string) converge.Result {
	t.Helper()
	return inProcesses(t, n, func(h host.Host) (converge.Result, error) { return e.Undo(t.Context(), h, to, nil) })
}

// layouts are pairs of one GPU model's: before an upgrade, and another.
var layouts = map[string][2]string{"A100-40": {`"3g.20gb" = 1, "1g.5gb" = 2`, `"1g.5gb" = 7`}, "H100-80": {`"3g.40gb" = 1, "1g.10gb" = 2`, `"1g.10gb" = 7`}}

// An upgrade is undone with the partitions that stood before it, though the kernel module forgets all of them there and back:
// those of an earlier run, and those of somebody else, whether the run that upgraded has made any itself or not.
func TestUndoOfAnUpgradeKeepsPartitions(t *testing.T) {
	for model, l := range layouts {
		two := "[[gpu]]\nmodel = \"" + model + "\"\ncount = 2\n"
		profile := map[string]string{"A100-40": "1g.5gb", "H100-80": "1g.10gb"}[model]
		theirs := "[[gpu]]\nmodel = \"" + model + "\"\nmode = true\ninstance = [{ profile = \"" + profile + "\", start = 5 }]\n[[gpu]]\nmodel = \"" + model + "\"\n"
		for name, tt := range map[string]struct{ gpus, before, with string }{
			"the same layout":     {two, l[0], l[0]},
			"another layout":      {two, l[0], l[1]},
			"no layout asked for": {two, l[0], ""},
			"somebody's":          {theirs, "", ""},
			"somebody's, changed": {theirs, "", l[0]},
		} {
			t.Run(model+"/"+name, func(t *testing.T) {
				n := reloading(t, tt.gpus)
				applyIn(t, n, upgrading(t, oldDriver, tt.before))
				before := ids(t, n)
				applyIn(t, n, upgrading(t, newDriver, tt.with))
				undoIn(t, n, upgrading(t, newDriver, tt.with), "")
				compare(t, "after undo of the upgrade", before, ids(t, n))
				if disk, _ := onDisk(n, ""); disk != oldDriver {
					t.Errorf("on disk is %s", disk)
				}
				if is, err := n.ReadFile("/sys/module/nvidia/version"); err != nil || !strings.HasPrefix(oldDriver, strings.TrimSpace(string(is))) {
					t.Errorf("loaded is %s, %v", is, err)
				}
			})
		}
	}
}

// partitioned is a machine with the old driver and a layout.
func partitioned(t testing.TB, model, layout string) *simhost.Node {
	t.Helper()
	n := reloading(t, "[[gpu]]\nmodel = \""+model+"\"\ncount = 2\n")
	applyIn(t, n, upgrading(t, oldDriver, layout))
	return n
}

// upgraded is a machine whose driver was upgraded, with the layout asked for; before is how its GPUs stood before that.
func upgraded(t testing.TB, model, first, second string) (n *simhost.Node, before string) {
	t.Helper()
	n = partitioned(t, model, first)
	before = ids(t, n)
	applyIn(t, n, upgrading(t, newDriver, second))
	return n, before
}

// loaded says how the driver and the GPUs stand.
func loaded(t testing.TB, n *simhost.Node) string {
	t.Helper()
	disk, err := onDisk(n, "")
	is, err2 := n.ReadFile("/sys/module/nvidia/version")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return "on disk " + disk + ", loaded " + string(is) + ids(t, n)
}

// A driver that is put back because its module does not load leaves the partitions that stood before, which the module has
// forgotten; ours and somebody else's.
func TestFailedUpgradeKeepsPartitions(t *testing.T) {
	for model, l := range layouts {
		for name, with := range map[string]string{"ours": l[0], "ours, to be changed": l[1], "not asked for": ""} {
			n := partitioned(t, model, l[0])
			before := loaded(t, n)
			e := upgrading(t, badDriver, with)
			again := 0
			e.Tell = func(ev converge.Event) {
				if ev.What == converge.Again {
					again++
				}
			}
			_, err := e.Apply(t.Context(), newProcess(n))
			if err == nil || !strings.Contains(err.Error(), "does not trust the key") || again != 2 {
				t.Errorf("%s, %s: it says %v, and %d times that something stands again", model, name, err, again)
			}
			compare(t, model+", "+name, before, loaded(t, n))
		}
	}
}

// wontPartition is a machine whose first GPU makes no instances under the old driver.
type wontPartition struct{ process }

func (n wontPartition) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (int, error) {
	if d, err := n.Driver(ctx); err == nil && gpu == first && strings.HasPrefix(oldDriver, d.Version) {
		return 0, &host.GPUError{Call: "nvmlDeviceCreateGpuInstanceWithPlacement", GPU: gpu, Code: "UNKNOWN"}
	}
	return n.process.CreateInstance(ctx, gpu, profile, at)
}

// mends applies the stage mig alone.
func mends(t testing.TB, n *simhost.Node, e *converge.Engine) {
	t.Helper()
	e.Before, e.Stages = e.Stages, e.Stages[2:]
	applyIn(t, n, e)
}

// What cannot be made again is told, with how it stood and what to do, and fails nothing else: all the rest is put back, the other
// GPU's partitions too, and the undo is at its end.
func TestPartitionsThatCannotBeMadeAgain(t *testing.T) {
	for model, l := range layouts {
		n, before := upgraded(t, model, l[0], l[1])
		e := upgrading(t, newDriver, l[1])
		var lost []string
		e.Tell = func(ev converge.Event) {
			if ev.What == converge.Lost {
				lost = append(lost, ev.Text)
			}
		}
		if res, err := e.Undo(t.Context(), wontPartition{newProcess(n)}, "", nil); err != nil || len(res.Later) != 2 || len(lost) > 0 {
			t.Fatalf("%s: %v, %v, lost %v", model, err, res.Later, lost)
		}
		_, err := e.Undo(t.Context(), wontPartition{newProcess(n)}, "", nil)
		trouble := (*converge.Trouble)(nil)
		if !errors.As(err, &trouble) || trouble.What != "cannot make mig "+first+" stand as before" || !slices.Contains(trouble.Try, "gpuadm apply mig, which makes what node.toml says of it") {
			t.Fatalf("%s: it says %v", model, err)
		}
		if len(lost) != 1 || !strings.HasPrefix(lost[0], "mig "+first+" stood \"on 1g.") || !strings.Contains(lost[0], "UNKNOWN") {
			t.Errorf("%s: lost %v", model, lost)
		}
		_, want, _ := strings.Cut(before, "\n")
		if _, got, _ := strings.Cut(ids(t, n), "\n"); got != want {
			t.Errorf("%s: the other GPU is %s, want %s", model, got, want)
		}
		mends(t, n, upgrading(t, oldDriver, l[0]))
		compare(t, model, "on disk "+oldDriver+", loaded "+strings.TrimSuffix(oldDriver, " open")+"\n"+before, loaded(t, n))
	}
}

// Undo of everything takes back the layout too, and ends where nobody had made any; in one process as in two.
func TestUndoOfAllOfAnUpgrade(t *testing.T) {
	for model, l := range layouts {
		for _, anew := range []bool{false, true} {
			n := reloading(t, "[[gpu]]\nmodel = \""+model+"\"\ncount = 2\n")
			first := loaded(t, n)
			applyIn(t, n, upgrading(t, oldDriver, l[0]))
			applyIn(t, n, upgrading(t, newDriver, l[1]))
			if e := upgrading(t, newDriver, l[1]); anew {
				undoIn(t, n, e, "all")
			} else {
				undo(t, n, e, "all")
			}
			compare(t, fmt.Sprintf("%s, anew %t", model, anew), first, loaded(t, n))
		}
	}
}

// Where undo takes the driver away there is nothing to partition, and no failure in that.
func TestUndoOfADriverThatWasPartitioned(t *testing.T) {
	n := reloading(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\n")
	if err := n.WriteFile("/disk", nil, host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Do(t.Context(), "rmmod", "nvidia"); err != nil {
		t.Fatal(err)
	}
	applyIn(t, n, upgrading(t, newDriver, ""))
	if _, err := n.CreateInstance(t.Context(), first, 0, host.Span{Start: 0, Size: 8}); err != nil {
		t.Fatal(err)
	}
	res := undoIn(t, n, upgrading(t, newDriver, ""), "")
	if _, err := n.Stat("/sys/module/nvidia/version"); err == nil || len(res.Made) != 2 {
		t.Errorf("the module is still loaded, or not all was put back: %+v", res)
	}
}

// What was taken along is ours as before: an entry that is gone from the spec still puts its GPU back. What is somebody else's stays
// his: no later apply makes it.
func TestTakenAlongIsWhoseItWas(t *testing.T) {
	only := func(e *converge.Engine) *converge.Engine { e.Before, e.Stages = e.Stages, e.Stages[:2]; return e }
	n := reloading(t, a100s)
	applyIn(t, n, upgrading(t, oldDriver, layouts["A100-40"][0]))
	applyIn(t, n, only(upgrading(t, newDriver, layouts["A100-40"][0])))
	e := upgrading(t, newDriver, "")
	e.Spec = parse(t, "[driver]\n[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 1 }\n")
	applyIn(t, n, e)
	if got := ids(t, n); !strings.Contains(got, second+" false false") || !strings.Contains(got, first+" true true") {
		t.Errorf("a GPU that is asked for no more: %s", got)
	}
	n = reloading(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"7g.40gb\", start = 0 }]\n")
	applyIn(t, n, upgrading(t, newDriver, ""))
	if p := plan(t, n, upgrading(t, newDriver, "")); len(p.Changes) > 0 {
		t.Errorf("planned: %s", names(p.Changes))
	}
}

// Where the module can only be replaced by a reboot, which takes the partitions too, undo is not at its end before they stand again.
func TestUndoOfAnUpgradeByReboot(t *testing.T) {
	for model, l := range layouts {
		for _, second := range []string{l[1], ""} {
			n, before := upgraded(t, model, l[0], second)
			if err := n.WriteFile("/sys/module/nvidia/refcnt", []byte("1\n"), host.Attr{Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			res := undoIn(t, n, upgrading(t, newDriver, second), "")
			if !strings.Contains(res.Reboot, "mig "+first) || !strings.Contains(res.Reboot, "gpuadm undo") {
				t.Errorf("%s: asks for a reboot: %q", model, res.Reboot)
			}
			n.Reboot()
			for _, do := range []string{"rmmod", "modprobe"} {
				if _, err := n.Do(t.Context(), do, "nvidia"); err != nil {
					t.Fatal(err)
				}
			}
			again := undoIn(t, n, upgrading(t, newDriver, second), "")
			if again.Run != res.Run || len(again.Again) != 2 {
				t.Errorf("%s: after the reboot %+v, before %+v", model, again, res)
			}
			compare(t, model, before, ids(t, n))
		}
	}
}

// What somebody has made of his GPU since the upgrade is his: it stands after the undo, too, and is no reason to refuse one.
func TestUndoOfAnUpgradeLeavesLayoutsMadeSince(t *testing.T) {
	n := reloading(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"1g.5gb\", start = 5 }]\n[[gpu]]\nmodel = \"A100-40\"\n")
	applyIn(t, n, upgrading(t, newDriver, ""))
	if _, err := n.CreateInstance(t.Context(), first, 0, host.Span{Start: 0, Size: 8}); err != nil {
		t.Fatal(err)
	}
	before := ids(t, n)
	undoIn(t, n, upgrading(t, newDriver, ""), "")
	compare(t, "undone", before, ids(t, n))
	if !strings.HasPrefix(loaded(t, n), "on disk "+oldDriver) {
		t.Error("not undone")
	}
}
