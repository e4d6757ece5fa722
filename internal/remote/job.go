// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// followEvery is how often a session asks for new lines of a run.
const followEvery = 100 * time.Millisecond

// job is a run in a unit of its own, and the folder with its request, its output and how it ended. The folder is in memory: a reboot
// ends both.
type job struct {
	machine host.Host
	request Request
	dir     string
	unit    string
}

func jobOf(machine host.Host, r Request) job {
	name := "gpuadm-ssh-" + r.id()
	return job{machine, r, "/run/" + name, name + ".service"}
}

func (j job) file(name string) string { return path.Join(j.dir, name) }

// follow starts the run, or attaches to the one that the same command has started, and passes on its lines to its end.
func (s server) follow(ctx context.Context, j job, unit host.Unit) (left bool, err error) {
	defer func() {
		if !left {
			err = errors.Join(err, j.remove())
		}
	}()
	if unit.Active == "activating" {
		began := j.began()
		s.out.say(answer{Attached: &began})
	} else if end, err := j.end(); err == nil {
		_, err := j.pass(s.out.to, 0)
		s.out.say(end)
		return false, err
	} else if err := errors.Join(j.remove(), j.lay()); err != nil {
		return false, err
	}
	self := "/proc/self/exe"
	if program, err := os.Executable(); err == nil {
		self = program
	}
	ended := make(chan error, 1)
	go func() {
		// SELinux lets systemd run no program that lies in a home folder, or in one for temporary files; a program in /usr/bin it
		// runs without confinement, and that may run any.
		// Source: https://github.com/kardianos/service/pull/199, https://github.com/SELinuxProject/selinux/issues/492
		argv := []string{"/usr/bin/env", self, "serve-ssh", "--job", j.dir}
		_, err := host.Job{Unit: j.unit, About: "gpuadm " + strings.Join(j.request.Args, " ") + ", by gpuadm ssh", Argv: argv}.Run(ctx)
		ended <- err
	}()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var passed int64
	var stop <-chan time.Time
	for {
		select {
		case failed := <-ended:
			_, err = j.pass(s.out.to, passed)
			end, noEnd := j.end()
			if noEnd != nil {
				return false, errors.Join(errors.New("cannot find how the run ended: it was cut short; the same command continues it"), failed, err)
			}
			s.out.say(answer{Exit: end.Exit})
			return false, err
		case q, ok := <-s.asked:
			if !ok {
				return true, nil
			}
			if q.Stop {
				stop = time.Tick(stopEvery)
			}
		case <-stop:
			if u, err := s.machine.Unit(ctx, j.unit); err == nil && u.PID > 1 {
				_ = syscall.Kill(u.PID, syscall.SIGINT)
			}
		case <-tick.C:
			if passed, err = j.pass(s.out.to, passed); err != nil {
				return false, err
			}
		}
	}
}

// lay makes the folder with the request.
func (j job) lay() error {
	j.request.Began = j.machine.Now()
	text, err := json.Marshal(j.request)
	if err != nil {
		return err
	}
	if err := j.machine.Mkdir(j.dir, host.Attr{Mode: 0o700}); err != nil {
		return err
	}
	return j.machine.WriteFile(j.file("request"), text, host.Attr{Mode: 0o600})
}

func (j job) began() time.Time {
	var r Request
	text, err := j.machine.ReadFile(j.file("request"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return j.machine.Now()
	}
	return r.Began
}

// end says how a run ended, which is an error while it runs.
func (j job) end() (a answer, err error) {
	text, err := j.machine.ReadFile(j.file("end"))
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	return a, err
}

// pass writes the whole lines of the run's output from an offset on, and returns the next offset.
func (j job) pass(to io.Writer, from int64) (int64, error) {
	for part := make([]byte, 64<<10); ; {
		n, err := j.machine.ReadAt(j.file("output"), part, from)
		if whole := strings.LastIndexByte(string(part[:n]), '\n') + 1; whole > 0 {
			_, _ = to.Write(part[:whole])
			from += int64(whole)
		} else if n == len(part) { // a line longer than this, which the other side puts together
			_, _ = to.Write(part)
			from += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) || err == nil && n < len(part) {
			return from, nil
		} else if err != nil {
			return from, err
		}
	}
}

// remove removes the folder.
func (j job) remove() error {
	var all error
	for _, name := range []string{"request", "output", "end", ""} {
		if err := j.machine.Remove(j.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// Job is the process of a run in a unit of its own: it leaves its output and how it ended in the folder, for the session that
// follows it or comes later. At its end it removes the operator's files, and what was brought.
func Job(machine host.Host, dir string, run Run) error {
	catch()
	j := job{machine: machine, dir: dir}
	text, err := machine.ReadFile(j.file("request"))
	if err == nil {
		err = json.Unmarshal(text, &j.request)
	}
	if err != nil {
		return fmt.Errorf("cannot read the request: %w", err)
	}
	out := &lines{to: appendTo{machine, j.file("output")}}
	code := into(out.say, j.request, run, func(args []string) error {
		next := j.request
		next.Args = args
		text, err := json.Marshal(next)
		if err == nil {
			err = machine.WriteFile(j.file("request"), text, host.Attr{Mode: 0o600})
		}
		if err != nil {
			return err
		}
		return host.Reexec()
	})
	ended := machine.Now()
	text, err = json.Marshal(answer{Exit: &code, Ended: &ended})
	if err == nil {
		err = machine.WriteFile(j.file("end"), text, host.Attr{Mode: 0o600})
	}
	gone := []string{j.file("request")}
	if j.request.Brought != "" {
		gone = append(gone, path.Join(j.request.Brought, "gpuadm"), j.request.Brought)
	}
	for _, name := range gone {
		if rerr := machine.Remove(name); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// appendTo appends to a file of the machine.
type appendTo struct {
	machine host.Host
	name    string
}

func (a appendTo) Write(p []byte) (int, error) { return len(p), a.machine.Append(a.name, p) }
