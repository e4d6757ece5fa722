// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Job is a command that the machine's systemd runs as a unit of its own. It outlives the process that asked for it: a pod's
// process stays in the pod's control group and dies with it, and a container engine that is restarted may take the pod along.
type Job struct {
	Unit   string   // "gpuadm-daemonset.service"
	About  string   // its description
	Argv   []string // absolute path first
	Output string   // file that standard output and error are added to; "" for the journal
}

// jobPoll is how often gpuadm checks a unit that another process has started.
const jobPoll = time.Second

// Run has systemd run the job, waits for its end, and returns its exit status. If the unit runs already, that is waited for.
// The systemd is the one that has the /run/systemd of this process.
func (j Job) Run(ctx context.Context) (status int, err error) {
	b := &bus{}
	defer b.close()
	result, err := b.transient(ctx, j)
	if err != nil {
		return 0, fmt.Errorf("cannot start unit %s: %w", j.Unit, err)
	}
	if result == "done" {
		return 0, nil
	}
	p, err := b.all(ctx, j.Unit)
	if err != nil {
		return 0, fmt.Errorf("cannot find out how unit %s ended: %w", j.Unit, err)
	}
	const exited = 1 // CLD_EXITED: waitid(2); else the status is a signal
	code, ok := p["ExecMainStatus"].(int32)
	if how, _ := p["ExecMainCode"].(int32); how != exited || !ok || code == 0 {
		return 0, fmt.Errorf("cannot finish unit %s: systemd says %s (%v)", j.Unit, result, p["Result"])
	}
	b.resetFailed(ctx, j.Unit)
	return int(code), nil
}

// transient starts the unit and waits for its end. It returns how: done, failed.
func (b *bus) transient(ctx context.Context, j Job) (string, error) {
	if running, err := b.properties(ctx, j.Unit); err == nil && running["ActiveState"] == "activating" {
		return b.ends(ctx, j.Unit)
	}
	b.resetFailed(ctx, j.Unit)
	props := []dbus.Property{
		dbus.PropDescription(j.About),
		dbus.PropType("oneshot"), // the start's job ends with the command
		// false: a failure of the command is the unit's. go-systemd names this argument for the opposite of what systemd makes of it.
		// Sources: https://github.com/coreos/go-systemd/issues/510; systemd, src/core/dbus-execute.c, where true is
		// EXEC_COMMAND_IGNORE_FAILURE; measured on systemd 252.
		dbus.PropExecStart(j.Argv, false),
		{Name: "KillMode", Value: godbus.MakeVariant("process")}, // a package manager at work must not be killed in its midst
		{Name: "TimeoutStartUSec", Value: godbus.MakeVariant(^uint64(0))},
	}
	if j.Output != "" {
		for _, name := range []string{"StandardOutputFileToAppend", "StandardErrorFileToAppend"} {
			props = append(props, dbus.Property{Name: name, Value: godbus.MakeVariant(j.Output)})
		}
	}
	ended := make(chan string, 1)
	start := func(props []dbus.Property) error {
		return b.call(func(conn *dbus.Conn) error {
			_, err := conn.StartTransientUnitContext(ctx, j.Unit, "fail", props, ended)
			return err
		})
	}
	err := start(props)
	if e := (godbus.Error{}); errors.As(err, &e) && j.Output != "" && e.Name != "org.freedesktop.systemd1.UnitExists" {
		err = start(props[:len(props)-2]) // systemd 239, of RHEL 8, cannot append to a file: the journal has it then
	}
	if err != nil {
		return "", err
	}
	select {
	case result := <-ended:
		return result, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// ends waits for the end of a unit that runs.
func (b *bus) ends(ctx context.Context, unit string) (string, error) {
	for {
		p, err := b.properties(ctx, unit)
		switch {
		case err != nil:
			return "", err
		case p["ActiveState"] == "failed":
			return "failed", nil
		case p["ActiveState"] != "activating":
			return "done", nil
		}
		if host.Pause(ctx, jobPoll) != nil {
			return "", context.Cause(ctx)
		}
	}
}
