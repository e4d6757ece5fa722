// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	cloudnode "github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// What the shipped stages do not do yet is shown with stages made for it: batches, reboots, breaks,
// keeps, steps, units.

//go:embed testdata/bare.txtar
var bare string

func node(t testing.TB) *simhost.Node { return machine{"bare", []byte(bare)}.boot(t) }

// pkg is a thing made with its neighbours in one transaction: here, a file a package.
type pkgThing struct{ name string }

func (p pkgThing) Ref() converge.Ref {
	return converge.Ref{Kind: "packages", Name: p.name}
}

func (p pkgThing) Look(_ context.Context, v host.View) (converge.State, error) {
	b, err := v.ReadFile("/pkg/" + p.name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return converge.State(strings.TrimSpace(string(b))), err
}

func (p pkgThing) Make(context.Context, host.Host, converge.State) error {
	return errors.New("made alone, not with its neighbours")
}

func (p pkgThing) MakeAll(_ context.Context, h host.Host, all []converge.Change) error {
	var ids []string
	for _, c := range all {
		ids = append(ids, c.Name)
		var err error
		if c.After == "" {
			err = h.Remove("/pkg/" + c.Name)
		} else {
			err = h.WriteFile("/pkg/"+c.Name, []byte(string(c.After)+"\n"), host.Attr{Mode: 0o644})
		}

		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}

	return h.WriteFile("/srv/last-transaction", []byte(strings.Join(ids, " ")), host.Attr{Mode: 0o644})
}

func wantPkg(name, version string) converge.Want {
	return converge.Want{
		Thing: pkgThing{name},
		To:    func(converge.State) (converge.State, error) { return converge.State(version), nil },
	}
}

// afterBoot is a thing that holds only after a reboot, or never.
type afterBoot struct{ never bool }

func (a afterBoot) Ref() converge.Ref { return converge.Ref{Kind: "mig", Name: "mode"} }

func (a afterBoot) Look(_ context.Context, v host.View) (converge.State, error) {
	asked, err := v.ReadFile("/srv/asked")
	if errors.Is(err, fs.ErrNotExist) {
		return "off", nil
	}
	boot, err2 := v.ReadFile("/proc/sys/kernel/random/boot_id")
	if a.never || string(asked) == string(boot) {
		return "off", errors.Join(err, err2)
	}
	return "on", errors.Join(err, err2)
}

func (a afterBoot) Make(_ context.Context, h host.Host, to converge.State) error {
	if to == "off" {
		return h.Remove("/srv/asked")
	}
	boot, err := h.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if err := h.WriteFile("/srv/asked", boot, host.Attr{Mode: 0o644}); err != nil {
		return err
	}
	return host.Reboot{Why: "the mode is switched at boot"}
}

func kinds(ref converge.Ref) (converge.Thing, error) {
	switch ref.Kind {
	case "packages":
		return pkgThing{ref.Name}, nil
	case "mig":
		return afterBoot{}, nil
	case "step":
		return labstage.Step{
			Label: ref.Name,
			Ask:   []string{"is-done"},
			Do:    []string{"do-it"},
		}, nil
	}
	return thingOf(ref)
}

func stage(wants ...converge.Want) converge.Stage {
	return converge.Stage{
		Name:  "driver",
		Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return wants, nil },
	}
}

func engineOf(t testing.TB, stages ...converge.Stage) *converge.Engine {
	return &converge.Engine{
		Stages:  stages,
		Spec:    specs.Of(t, "[driver]\n"),
		ThingOf: kinds,
	}
}

func TestBatchIsMadeAsOne(t *testing.T) {
	n := node(t)
	first := n.Tree(converge.Home, "/srv")
	e := engineOf(t, stage(
		things.Exact("/etc/a", []byte("a"), 0o600, ""),
		wantPkg("x", "1"), wantPkg("old", ""), wantPkg("y", "2"),
		things.Exact("/etc/b", []byte("b"), 0o644, ""),
	))
	apply(t, n, e)
	b, _ := n.ReadFile("/srv/last-transaction")
	check.That(t, string(b) == "x old y", "transaction of %q", b)
	undo(t, n, e, "")
	b, _ = n.ReadFile("/srv/last-transaction")
	check.That(t, string(b) == "y old x", "undone in a transaction of %q", b)
	compare(t, "undone", first, n.Tree(converge.Home, "/srv"))
}

func TestRebootAndResume(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(converge.Want{
		Thing: afterBoot{},
		To:    to("on"),
	}, things.Exact("/etc/a", []byte("a"), 0o600, "")))
	res := apply(t, n, e)
	must.That(t, res.Reboot != "", "no reboot asked for")
	before := written(t, n)
	for range 3 { // it may be possible without a reboot by now, so it is attempted again; the journal gets no record of that
		again := apply(t, n, e)
		check.That(t, again.Reboot != "" && again.Run == res.Run, "before the reboot: %+v", again)
	}

	check.That(t, bytes.Equal(written(t, n), before), "attempts that changed nothing have grown the journal")
	n.Reboot()
	res2 := apply(t, n, e)
	check.That(t, res2.Run == res.Run && res2.Reboot == "" && len(res2.Made) == 1, "after the reboot: %+v, first run %s", res2, res.Run)
	p := plan(t, n, e)
	check.That(t, p.Now() == 0, "still planned: %s", namesNow(p.Changes))
}

func TestNoBootLoop(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(converge.Want{Thing: afterBoot{never: true}, To: to("on")}))
	for boot := range 5 {
		res, err := e.Apply(context.Background(), n)
		must.That(t, boot >= 2 || (err == nil && res.Reboot != ""), "boot %d: %+v %v", boot, res, err)
		if boot == 2 {
			must.That(t, err != nil && strings.Contains(err.Error(), "after 2 reboots"), "a third reboot: %+v %v", res, err)
			return
		}
		n.Reboot()
	}
}

func to(s converge.State) func(converge.State) (converge.State, error) {
	return func(converge.State) (converge.State, error) { return s, nil }
}

func TestBreaksNeedConsent(t *testing.T) {
	w := things.Exact("/etc/a", []byte("a"), 0o600, "")
	w.Breaks = []string{"reset-gpu"}
	var clients []string
	for pid := range 16000 {
		one := fmt.Sprintf("process %d (python3) has /dev/nvidia0 open", pid+77)
		clients = append(clients, one, one)
	}

	try := func(mod func(*converge.Engine)) (*simhost.Node, error) {
		n, e := node(t), engineOf(t, stage(things.Exact("/etc/0", nil, 0o600, ""), w))
		e.Clients = func(context.Context, host.View) ([]string, error) { return clients, nil }
		mod(e)
		_, err := e.Apply(context.Background(), n)
		return n, err
	}

	n, err := try(func(*converge.Engine) {})
	var told *trouble.Error
	if !errors.As(err, &told) || n.Touches() != 0 || !strings.Contains(strings.Join(told.Because, ""), "python3") ||
		len(strings.Join(told.Because, "\n")) > 1024 || told.Because[len(told.Because)-1] != "and 15994 more" {
		t.Errorf("without consent: %v, %d touches", err, n.Touches())
	}
	for what, mod := range map[string]func(*converge.Engine){
		"--allow all":  func(e *converge.Engine) { e.Allow = []string{"all"} },
		"--allow":      func(e *converge.Engine) { e.Allow = []string{"reset-gpu"} },
		"[disruption]": func(e *converge.Engine) { e.Spec = specs.Of(t, "[driver]\n[disruption]\nallow = [\"reset-gpu\"]\n") },
		"no clients": func(e *converge.Engine) {
			e.Clients = func(context.Context, host.View) ([]string, error) { return nil, nil }
		},
	} {
		_, err := try(mod)
		check.That(t, err == nil, "%s: %v", what, err)
	}

	_, err = try(func(e *converge.Engine) { e.Allow = []string{"reboot"} })
	check.That(t, err != nil, "another consent was taken for this one")
}

func TestKeptChangesStayAndAreNamed(t *testing.T) {
	n := node(t)
	kept := things.Exact("/etc/kept", []byte("k"), 0o600, "")
	kept.Keeps = "the firmware"
	e := engineOf(t, stage(kept, things.Exact("/etc/a", []byte("a"), 0o600, "")))
	var events []string
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Kept {
			events = append(events, ev.Text)
		}
	}

	apply(t, n, e)
	undo(t, n, e, "")
	_, err := n.Lstat("/etc/kept")
	check.That(t, err == nil && len(events) == 1 && events[0] == "the firmware", "kept: %v, told %v", err, events)
	_, err = n.Lstat("/etc/a")
	check.That(t, err != nil, "the other was kept too")
}

func TestStepIsDoneOnce(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(labstage.Step{
		Label: "s",
		Ask:   []string{"is-done"},
		Do:    []string{"do-it"},
	}.Want("")))
	_, err := e.Apply(context.Background(), n) // is-done goes on to say no: it did not hold
	check.That(t, err != nil && strings.Contains(err.Error(), "afterwards"), "a step that does not hold: %v", err)
}

func TestUnitsForwardsAndBack(t *testing.T) {
	n := node(t)
	first := n.Tree(converge.Home) + n.Units()
	e := engineOf(t, stage(things.Running("d.service", "")))
	apply(t, n, e)
	check.That(t, strings.Contains(n.Units(), "d.service enabled active"), "units: %s", n.Units())
	undo(t, n, e, "")
	compare(t, "undone", first, n.Tree(converge.Home)+n.Units())

	image := node(t)
	image.Image()
	apply(t, image, e)
	image.FirstBoot()
	check.That(t, strings.Contains(image.Units(), "d.service enabled active"), "enabled in an image, then booted: %s", image.Units())
}

func TestEnabledUnitThatABootStartedIsDisabled(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(things.Enabled("d.service", "")))
	apply(t, n, e)
	n.Reboot()
	undo(t, n, e, "")
	check.That(t, strings.Contains(n.Units(), "d.service disabled active"), "units: %s", n.Units())
}

func TestLinksAreKept(t *testing.T) {
	n := node(t)
	first := n.Tree(converge.Home)
	e := engineOf(t, stage(things.Exact("/etc/link.conf", []byte("new\n"), 0o644, ""), converge.Want{
		Thing: things.NewFile("/pkg/old", nil),
		To:    to(""),
	}))
	apply(t, n, e)
	b, err := n.ReadFile("/etc/d.conf")
	check.That(t, err == nil && string(b) == "new\n", "not written through the link: %q %v", b, err)
	undo(t, n, e, "")
	compare(t, "undone", first, n.Tree(converge.Home))
}

// Two runs and a change outside gpuadm between: undo of all goes back over it only if it can be
// taken apart.
func TestUndoRange(t *testing.T) {
	n := node(t)
	first := n.Tree(converge.Home)
	v := func(text string) *converge.Engine {
		return engineOf(t, stage(things.Exact("/etc/d.conf", []byte(text), 0o644, "")))
	}
	one := apply(t, n, v("one"))
	two := apply(t, n, v("two"))
	apply(t, n, v("three"))
	undo(t, n, v(""), two.Run)
	b, _ := n.ReadFile("/etc/d.conf")
	check.That(t, string(b) == "one", "undone to before %s: %q", two.Run, b)
	_, err := v("").Undo(context.Background(), n, two.Run, nil)
	check.That(t, err != nil, "a run was undone twice")
	undo(t, n, v(""), one.Run)
	compare(t, "undone", first, n.Tree(converge.Home))
	check.That(t, undo(t, n, v(""), "all").Run == "", "there was nothing more to undo")
}

func TestUndoStopsAtChangeOutside(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(things.Exact("/etc/d.conf", []byte("ours"), 0o644, ""), things.Exact("/etc/a", []byte("a"), 0o644, "")))
	apply(t, n, e)
	must.OK(t, n.WriteFile("/etc/d.conf", []byte("theirs"), host.Attr{Mode: 0o644}))
	touches := n.Touches()
	var told *trouble.Error
	if _, err := e.Undo(context.Background(), n, "", nil); !errors.As(err, &told) || n.Touches() != touches {
		t.Fatalf("undone over a change outside gpuadm: %v, %d touches", err, n.Touches()-touches)
	}
	res, err := e.Undo(context.Background(), n, "", []string{"/etc/d.conf"})
	must.That(t, err == nil && len(res.Left) == 1, "left: %+v %v", res, err)
	b, _ := n.ReadFile("/etc/d.conf")
	check.That(t, string(b) == "theirs", "left, and yet %q", b)
	_, err = n.Lstat("/etc/a")
	check.That(t, err != nil, "the rest was not undone")
}

func TestFolderWithOthersFilesStays(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(append(things.Folders("/etc/x/y", ""), things.Exact("/etc/x/y/ours", nil, 0o644, ""))...))
	apply(t, n, e)
	must.OK(t, n.WriteFile("/etc/x/theirs", []byte("t"), host.Attr{Mode: 0o644}))
	res := undo(t, n, e, "")
	_, err := n.Lstat("/etc/x/y")
	check.That(t, err != nil, "our empty folder stays")
	_, err = n.Lstat("/etc/x/theirs")
	check.That(t, err == nil && len(res.Left) == 1, "their file is gone: %v, left %v", err, res.Left)
	must.OK(t, n.Remove("/etc/x/theirs"))
	res = undo(t, n, e, "all")
	_, err = n.Lstat("/etc/x")
	check.That(t, err == nil && res.Run == "", "the folder that an undo left to others is not theirs: %v, run %s", err, res.Run)
}

func TestStopFinishesTheMakeAtWork(t *testing.T) {
	n := node(t)
	stop := make(chan struct{})
	e := engineOf(t, stage(things.Exact("/etc/a", nil, 0o644, ""), things.Exact("/etc/b", nil, 0o644, "")))
	e.Stop = stop
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Making && ev.Line.Name == "/etc/a" {
			close(stop)
		}
	}

	res, err := e.Apply(context.Background(), n)
	must.That(t, errors.Is(err, converge.ErrStopped) && len(res.Made) == 1, "stopped: %+v %v", res, err)
	e.Stop, e.Tell = nil, nil
	again := apply(t, n, e)
	check.That(t, again.Run == res.Run && len(again.Made) == 1, "goes on: %+v", again)
}

func FuzzJournal(f *testing.F) {
	n := node(f)
	e := engineOf(f, stage(things.Exact("/etc/a", []byte("x"), 0o644, "")))
	apply(f, n, e)
	undo(f, n, e, "")
	data := must.Get(n.ReadFile(converge.Home + "/journal.jsonl"))(f)
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Add([]byte(`{"format":1,"what":"make","run":"a","change":{"kind":"file","name":"/etc/a","before":"x y z","after":"0644 0:0 0 0"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		j, err := converge.ParseJournal(data), error(nil)
		if err != nil {
			return
		}
		j.Runs()
		j.Held()
		n := node(t)
		if err := n.Mkdir("/var/lib/gpuadm", host.Attr{Mode: 0o700}); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		must.OK(t, n.Append(converge.Home+"/journal.jsonl", data))
		touches := n.Touches()
		ctx := context.Background()
		e := engineOf(t, stage(things.Exact("/etc/a", []byte("x"), 0o644, "")))
		e.Plan(ctx, n.View())
		e.Status(ctx, n.View())
		e.PlanUndo(ctx, n.View(), "all", nil)
		if n.Touches() != touches {
			t.Error("looking touched")
		}
	})
}

// thingOf builds a thing again, as undo does.
func thingOf(ref converge.Ref) (converge.Thing, error) {
	_, of := stages.Run(new(cloudnode.Session), nil)
	return of(ref)
}
