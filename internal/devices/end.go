// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// How long a process has to end, and how often gpuadm looks at it.
const (
	endWithin = 30 * time.Second
	endPause  = 50 * time.Millisecond
)

// EndHolders asks processes to end and waits until they have no device of NVIDIA's open. A process
// that is not among the holders that can be seen is not asked: its number may be one of another PID
// namespace.
func EndHolders(ctx context.Context, h host.Host, holders []Holder) error {
	if len(holders) == 0 {
		return nil
	}
	majors, err := Majors(h)
	if err != nil {
		return err
	}
	e := ending{
		Host:   h,
		majors: majors,
		began:  h.Now(),
	}
	for _, p := range holders {
		err := e.terminate(p)
		if err != nil {
			return err
		}
	}
	for _, p := range holders {
		err := e.waitFor(ctx, p)
		if err != nil {
			return err
		}
	}

	return nil
}

// ending is EndHolders at work.
type ending struct {
	host.Host
	majors map[uint32]string // as Majors returns them
	began  time.Time
}

// holds reports whether a process has a GPU open.
func (e ending) holds(p Holder) (bool, error) {
	files, _, err := gpuFiles(e.Host, p.PID, e.majors)
	return len(files) > 0, err
}

// terminate sends SIGTERM to a process, unless it has ended.
func (e ending) terminate(p Holder) error {
	holds, err := e.holds(p)
	switch {
	case err != nil:
		return err
	case holds:
		return e.Terminate(p.PID)
	case len(p.Devices) == 0:
		return &trouble.Error{
			What: fmt.Sprintf("cannot end %s: no process with this number has a GPU open here", p.Who()),
			Try:  []string{"run gpuadm in the host's PID namespace (hostPID in a pod), or end the process by hand"},
		}
	}
	return nil
}

// waitFor waits until a process has no GPU open.
func (e ending) waitFor(ctx context.Context, p Holder) error {
	for {
		holds, err := e.holds(p)
		if err != nil || !holds {
			return err
		}
		if e.Now().Sub(e.began) >= endWithin {
			return &trouble.Error{
				What: fmt.Sprintf("cannot end %s: it still has the GPU open, %s after SIGTERM", p.Who(), endWithin),
				Try:  []string{fmt.Sprintf("kill -KILL %d, if its work may be lost, then run the same command again", p.PID)},
			}
		}

		err = host.Pause(ctx, endPause)
		if err != nil {
			return err
		}
	}
}
