// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// LockWait is how long gpuadm waits for another packager's lock: unattended-upgrades at boot takes
// minutes.
const LockWait = 5 * time.Minute

// sayEvery is how often gpuadm names the process that it waits for.
const sayEvery = 12 * time.Second

// Locked reports that another process holds a lock of the packager.
type Locked struct {
	error
	who string // process 4711 (apt-get upgrade) holds /var/lib/dpkg/lock-frontend
}

func (l *Locked) Error() string { return l.who }
func (l *Locked) Unwrap() error { return l.error }

// LockedBy names the process that holds a lock, if it still runs.
func LockedBy(v host.View, pid, lock string, err error) *Locked {
	if pid == "" {
		return &Locked{err, "another process holds " + lock}
	}
	return &Locked{err, "process " + pid + commandOf(v, pid) + " holds " + lock}
}

// Busy returns the error for an operator whose command needs a lock that another process holds.
func Busy(v host.View, pid, lock string, err error) error {
	locked := LockedBy(v, pid, lock, err)
	return &trouble.Error{
		What: Cannot + locked.who,
		Try:  []string{"wait until it is done, then run the same command again; never remove the lock file"},
		Err:  locked,
	}
}

// commandOf returns a process's command line in parentheses: " (apt-get upgrade)"; "" if it cannot
// be read.
func commandOf(v host.View, pid string) string {
	argv, err := v.ReadFile("/proc/" + pid + "/cmdline")
	words := strings.Fields(strings.ReplaceAll(string(argv), "\x00", " "))
	command := []rune(strings.Join(words, " "))
	if err != nil || len(command) == 0 {
		return ""
	}

	const most = 120
	if len(command) > most {
		command = append(command[:most], '…')
	}
	return " (" + string(command) + ")"
}

// Patiently runs a command, and again while another process holds a packager's lock, until the wait
// has ended. It names the holder at once, and then every sayEvery. explain makes an error of the
// command's output: a Locked if a lock was held.
func Patiently(
	ctx context.Context,
	h host.Host,
	wait time.Duration,
	explain func(v host.View, out string, err error) error,
	run func() ([]byte, error),
) (out []byte, err error) {
	err = patiently(ctx, h, wait, time.Second, func() error {
		out, err = run()
		if err != nil {
			err = explain(h, string(out), err)
		}
		return err
	})
	return out, err
}

func patiently(ctx context.Context, h host.Host, wait, pause time.Duration, run func() error) error {
	end := h.Now().Add(wait)
	var lastSaid time.Time
	for {
		err := run()
		var locked *Locked
		now := h.Now()
		left := end.Sub(now)
		if !errors.As(err, &locked) || left <= 0 {
			return err
		}

		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, deadline.Sub(now))
		}
		if lastSaid.IsZero() || now.Sub(lastSaid) >= sayEvery {
			lastSaid = now
			left = max(left, 0).Round(time.Second)
			converge.Say(ctx, converge.Waiting, fmt.Sprintf("%s: waiting for up to %s", locked.who, left))
		}

		if host.Pause(ctx, pause) != nil {
			return err
		}
	}
}
