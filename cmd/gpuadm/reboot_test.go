// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMayReboot: without the boot unit apply --reboot is refused before the first touch if a change
// of the plan needs a reboot; otherwise it goes on, and does not reboot whatever comes.
func TestMayReboot(t *testing.T) {
	archive := must.Get(os.ReadFile(filepath.Join("..", "..", "test", "hosts", "ubuntu24-h100.txtar")))(t)
	file := things.Exact("/etc/lab", []byte("text"), 0o644, "")
	needs := file
	needs.Breaks = []string{"reboot"}
	stage := func(name string, wants ...converge.Want) converge.Stage {
		return converge.Stage{
			Name:  name,
			Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return wants, nil },
		}
	}

	for _, c := range []struct {
		name    string
		stages  []converge.Stage
		refused bool
		reboots bool
	}{
		{"nothing needs a reboot", []converge.Stage{stage("one", file)}, false, false},
		{"a change needs one", []converge.Stage{stage("one", needs)}, true, false},
		{"the boot unit is installed with it", []converge.Stage{stage("one", needs), stage(stages.InstallName)}, false, true},
	} {
		n, err := simhost.New(archive)
		must.OK(t, err)
		command := &common{env: env{getenv: func(string) string { return "" }}, rootDir: "/"}
		e := &converge.Engine{Stages: c.stages}
		agent.InstallFirst(e)
		command.run = &agent.Run{Engine: e, Host: n}
		last := e.Stages[len(e.Stages)-1].Name
		check.That(t, last == "one", "%s: %s comes last", c.name, last)
		touches := n.Touches()
		err = command.mayReboot(t.Context())
		told := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &told) == c.refused && (err == nil || c.refused) && command.run.Reboots == c.reboots, "%s: %v, reboots %v", c.name, err, command.run.Reboots)
		check.That(t, !c.refused || strings.Contains(strings.ReplaceAll(told.Try[0], glue, " "), "sudo gpuadm apply --install --reboot"), "%s: %v", c.name, err)
		check.That(t, n.Touches() == touches, "%s: it was touched", c.name)
	}
}

// mute is a machine whose systemd does not answer about the boot unit.
type mute struct{ host.Host }

func (m mute) Unit(ctx context.Context, name string) (host.Unit, error) {
	if name != stages.BootUnit {
		return m.Host.Unit(ctx, name)
	}
	if _, isLimited := ctx.Deadline(); !isLimited {
		return host.Unit{}, errors.New("asked without a deadline")
	}
	<-ctx.Done()
	return host.Unit{}, ctx.Err()
}

// TestMayRebootInTime: the deadline of an apply also holds while it asks whether it may reboot.
func TestMayRebootInTime(t *testing.T) {
	n := must.Get(simhost.New(must.Get(os.ReadFile(filepath.Join("..", "..", "test", "hosts", "ubuntu24-h100.txtar")))(t)))(t)
	must.OK(t, n.Mkdir("/etc/gpuadm", host.Attr{Mode: 0o755}))
	must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", []byte("format = 1\n"), host.Attr{Mode: 0o644}))
	var out strings.Builder
	code := run(t.Context(), envOn(mute{n}, &out), []string{"apply", "--reboot", "--deadline", "10ms"})
	check.Equal(t, code, exitCannot, "%s: exit code:", out.String())
	check.Says(t, out.String(), "longer --deadline")
}

// deaf is a machine on which systemctl cannot be run.
type deaf struct {
	host.Host
	asked []string
}

func (d *deaf) Do(ctx context.Context, argv ...string) ([]byte, error) {
	d.asked = argv
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, errors.New("cannot run systemctl: it is not installed")
}

// TestRebootFails: a reboot that cannot be made is said, with what to do; a deadline that has
// passed does not keep it back.
func TestRebootFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := &deaf{}
	told := (*trouble.Error)(nil)
	err := reboot(ctx, d)
	check.That(t, errors.As(err, &told) && strings.Contains(told.What, "cannot run systemctl") && len(told.Try) > 0 && strings.Join(d.asked, " ") == "systemctl reboot",
		"%v after %q", err, d.asked)
}

// TestBootUnitsHaveALimit: kubelet waits for the first unit, so an apply in there ends by its
// deadline; systemd's own limit is for a process that does not, and leaves it time to put the stage
// at work back first.
func TestBootUnitsHaveALimit(t *testing.T) {
	for name, text := range map[string][]byte{"gpuadm.service": systemd.Service, "gpuadm-ready.service": systemd.Ready} {
		options := must.Get(unit.DeserializeOptions(bytes.NewReader(text)))(t)
		is := map[string]string{}
		for _, o := range options {
			is[o.Name] = o.Value
		}
		words := strings.Fields(is["ExecStart"])
		cmd, flags, err := newRoot(env{}).Find(words[1:])
		if err == nil {
			err = cmd.ParseFlags(flags)
		}
		must.That(t, err == nil, "%s: %v", name, err)
		deadline, err := cmd.Flags().GetDuration("deadline")
		check.That(t, err == nil && deadline >= agent.WaitLimit+time.Hour, "%s: an apply that compiles modules and waits for %v has %v (%v)", name, agent.WaitLimit, deadline, err)
		start, err := time.ParseDuration(is["TimeoutStartSec"])
		check.That(t, err == nil && start >= deadline+time.Hour, "%s: TimeoutStartSec is %q, with a deadline of %v", name, is["TimeoutStartSec"], deadline)
	}
}

// noReset is a virtual machine that cannot reset its GPUs: nvidia-smi(1), RETURN VALUE, 3.
type noReset struct{ *simhost.Node }

func (noReset) ResetGPUs(context.Context, ...string) error {
	argv := []string{"nvidia-smi", "--gpu-reset"}
	return &host.CommandError{
		Argv:  argv,
		Code:  3,
		Cause: errors.New("exit status 3"),
	}
}

// After an apply has asked for a reboot, plan and status ask for it, too, until the machine has booted: an
// apply would only ask again.
func TestPlanAndStatusSayReboot(t *testing.T) {
	const a100 = "model = \"A100-40\"\n"
	archive := strings.Replace(string(recorded(t)["mig-h100-a100-t4"]), a100, a100+"passthrough = true\n", 1)
	n := noReset{must.Get(simhost.New([]byte(archive)))(t)}
	must.OK(t, n.Mkdir("/etc/gpuadm", host.Attr{Mode: 0o755}))
	const spec = "format = 1\n[[mig.gpu]]\ndevices = [1]\nlayout = { \"1g.5gb\" = 7 }\n"
	must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", []byte(spec), host.Attr{Mode: 0o644}))

	code, said := typedOn(t, n, "apply mig --allow all")
	must.That(t, code == exitReboot, "the apply asks for no reboot: exit %d\n%s", code, said)
	for line, want := range map[string]string{
		"plan mig": "A run of this boot has asked for a reboot, for mig ",
		"status":   " waits for a reboot, for mig ",
	} {
		_, said := typedOn(t, n, line)
		check.Says(t, said, want, "sudo reboot, then: ")
	}

	n.Reboot()
	for _, line := range []string{"plan mig", "status"} {
		_, said := typedOn(t, n, line)
		check.That(t, !strings.Contains(said, "sudo reboot"), "%s after the reboot: %s", line, said)
	}
}
