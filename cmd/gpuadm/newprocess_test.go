// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// replaced is a machine whose driver was replaced while this process ran.
type replaced struct {
	host.Host
	again bool
}

func (r replaced) Driver(context.Context) (host.Driver, error) {
	return host.Driver{}, &host.NoDriver{
		Why:   "the driver was changed while gpuadm ran",
		Again: r.again,
	}
}

// An apply that only a new process can continue starts one, after it has released the run lock.
func TestNewProcess(t *testing.T) { startsNewProcess(t, "") }

// The new process gets the time that is left until the deadline.
func TestNewProcessHasTheTimeLeft(t *testing.T) { startsNewProcess(t, "1h") }

func startsNewProcess(t *testing.T, deadline string) {
	for _, again := range []bool{true, false} {
		n, err := simhost.New([]byte("-- sim.toml --\n[[gpu]]\nmodel = \"H100-80\"\n-- sys/bus/pci/devices/0000:17:00.0/uevent --\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n-- etc/gpuadm/node.toml --\nformat = 1\n[[mig.gpu]]\n"))
		must.OK(t, err)
		var out, bad strings.Builder
		started := 0
		e := envOn(replaced{n, again}, &out)
		e.stderr = &bad
		e.restartSelf = func(more ...string) error {
			unlock, err := n.Lock()
			if err != nil {
				t.Errorf("started a new process with the lock held: %v", err)
			} else {
				unlock()
			}

			started++
			if deadline == "" && len(more) > 0 {
				t.Errorf("started a new process with %q", more)
			} else if deadline != "" {
				left := time.Duration(0)
				if len(more) == 1 {
					left, _ = time.ParseDuration(strings.TrimPrefix(more[0], "--deadline="))
				}
				check.That(t, left > 0 && left < time.Hour, "started a new process with %q: want the time left of the hour", more)
			}

			return nil
		}

		argv := []string{"apply", "mig"}
		if deadline != "" {
			argv = append(argv, "--deadline", deadline)
		}
		code := run(context.Background(), e, argv)
		want, ends := 1, 0
		if !again { // the driver stays silent
			want, ends = 0, exitAgain
		}
		check.That(t, code == ends && started == want,
			"again %t: exit %d, started a new process %d times, want %d: %s%s", again, code, started, want, out.String(), bad.String())
	}
}
