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

// Job is a command that the machine's systemd runs as a unit of its own. It outlives the process
// that asked for it: a pod's process stays in the pod's control group and dies with it, and a
// container engine that is restarted may take the pod along.
type Job struct {
	Unit   string   // "gpuadm-daemonset.service"
	About  string   // its description
	Argv   []string // absolute path first
	Output string   // file that standard output and error are added to; "" for the journal
}

// jobPoll is how often gpuadm checks a unit that another process has started.
const jobPoll = time.Second

// Run has systemd run the job, waits for its end, and returns its exit status. If the unit runs
// already, Run waits for it. The systemd is that to which the /run/systemd of this process belongs.
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
	how := get[int32](p, "ExecMainCode")
	code := get[int32](p, "ExecMainStatus")
	if how != exited || code == 0 {
		return 0, fmt.Errorf("cannot finish unit %s: systemd says %s (%v)", j.Unit, result, p["Result"])
	}

	b.resetFailed(ctx, j.Unit)
	return int(code), nil
}

// transient starts the unit and waits for its end. It returns how the unit ended: done, failed.
func (b *bus) transient(ctx context.Context, j Job) (string, error) {
	running, err := b.properties(ctx, j.Unit)
	if err == nil && running["ActiveState"] == "activating" {
		return b.waitEnd(ctx, j.Unit)
	}
	b.resetFailed(ctx, j.Unit)

	ended := make(chan string, 1)
	var conn *dbus.Conn
	start := func(props []dbus.Property) error {
		return b.call(func(c *dbus.Conn) error {
			conn = c
			_, err := conn.StartTransientUnitContext(ctx, j.Unit, "fail", props, ended)
			return err
		})
	}

	err = start(append(j.properties(), j.output()...))
	refused := errorName(err) != "" && errorName(err) != systemdName+".UnitExists"
	if refused && j.Output != "" {
		// systemd 239, in RHEL 8, cannot append to a file: the output goes to the journal.
		err = start(j.properties())
	}
	if err != nil {
		return "", err
	}

	result, err := endOf(ctx, conn, ended)
	if !errors.Is(err, errClosed) {
		return result, err
	}
	// systemd was upgraded, perhaps by this very job: the unit continues.
	if host.Pause(ctx, jobPoll) != nil {
		return "", context.Cause(ctx)
	}
	return b.waitEnd(ctx, j.Unit)
}

// properties returns what systemd must know of the unit.
func (j Job) properties() []dbus.Property {
	const never = ^uint64(0)
	return []dbus.Property{
		dbus.PropDescription(j.About),
		dbus.PropType("oneshot"), // the start's job ends with the command
		// false: if the command fails, the unit fails. go-systemd names this argument as the
		// opposite of what it means to systemd.
		// Sources: https://github.com/coreos/go-systemd/issues/510; systemd,
		// src/core/dbus-execute.c, where true is EXEC_COMMAND_IGNORE_FAILURE; measured on systemd
		// 252.
		dbus.PropExecStart(j.Argv, false),
		// A package manager at work must not be killed.
		{Name: "KillMode", Value: godbus.MakeVariant("process")},
		{Name: "TimeoutStartUSec", Value: godbus.MakeVariant(never)},
	}
}

// output returns the properties that append the output to a file.
func (j Job) output() []dbus.Property {
	if j.Output == "" {
		return nil
	}
	file := godbus.MakeVariant(j.Output)
	return []dbus.Property{
		{Name: "StandardOutputFileToAppend", Value: file},
		{Name: "StandardErrorFileToAppend", Value: file},
	}
}

// waitEnd waits for the end of a unit that runs.
func (b *bus) waitEnd(ctx context.Context, unit string) (string, error) {
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
