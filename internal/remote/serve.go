// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// LeftRunning is the exit status of a Serve that leaves a run behind, which removes what was brought.
const LeftRunning = 9

// installed is where the program is copied with Request.Install.
const installed = "/usr/local/sbin/gpuadm"

// stopEvery is how often a run is asked to stop until it ends: before it listens it does not hear.
const stopEvery = 300 * time.Millisecond

// catch keeps a SIGINT that no run listens to from ending this process. A lost connection is seen by its end alone.
func catch() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP)
}

// server answers one session on the other machine.
type server struct {
	machine host.Host
	brought string
	run     Run
	out     *lines
	asked   <-chan question // closed when the connection is lost
}

// Serve answers one session: it runs what it is asked to, and returns the exit status. brought is the folder that the session has
// brought the program in, "" if the machine's own runs.
func Serve(ctx context.Context, machine host.Host, brought string, in io.Reader, out io.Writer, run Run) int {
	catch()
	asked := make(chan question)
	go func() {
		defer close(asked)
		for d := json.NewDecoder(bufio.NewReader(in)); ; {
			var q question
			if err := d.Decode(&q); err != nil {
				return
			}
			asked <- q
		}
	}()
	s := server{machine: machine, brought: brought, run: run, out: &lines{to: out}, asked: asked}
	s.out.say(answer{Ready: true})
	for q := range asked {
		if q.Request == nil {
			continue
		}
		q.Request.Brought = brought
		left, err := s.answer(ctx, *q.Request)
		if err != nil {
			s.out.say(answer{Error: err.Error()})
		}
		if left {
			return LeftRunning
		}
	}
	return 0
}

// answer runs a request, in a unit of its own where it must outlive the connection. left says that it runs on without us.
func (s server) answer(ctx context.Context, r Request) (left bool, err error) {
	if r.Install {
		if err := s.install(); err != nil {
			return false, err
		}
	}
	if r.Outlives {
		j := jobOf(s.machine, r)
		unit, err := s.machine.Unit(ctx, j.unit)
		if err == nil {
			return s.follow(ctx, j, unit)
		} else if !errors.As(err, new(host.Later)) {
			return false, fmt.Errorf("cannot ask systemd for unit %s: %w", j.unit, err)
		}
	}
	ended := make(chan int, 1)
	go func() { ended <- into(s.out.say, r, s.run, nil) }()
	asked := s.asked
	var stop <-chan time.Time
	for {
		select {
		case code := <-ended:
			s.out.say(answer{Exit: &code})
			return false, nil
		case <-stop:
			_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		case q, ok := <-asked:
			switch {
			case q.Stop:
				stop = time.Tick(stopEvery)
			case !ok && !r.Outlives:
				return false, nil
			case !ok: // no systemd runs here: this process finishes the run, and then the session ends
				asked = nil
			}
		}
	}
}

// install copies this program to where it stays.
func (s server) install() error {
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = s.machine.WriteFile(installed, program, host.Attr{Mode: 0o755})
	}
	if err != nil {
		return fmt.Errorf("cannot install %s: %w", installed, err)
	}
	return nil
}
