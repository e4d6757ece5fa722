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
	holds := func(p Holder) (bool, error) {
		files, _, err := gpuFiles(h, p.PID, majors)
		return len(files) > 0, err
	}

	began := h.Now()
	for _, p := range holders {
		still, err := holds(p)
		switch {
		case err != nil:
			return err
		case !still && len(p.Devices) == 0:
			return &trouble.Error{
				What: fmt.Sprintf("cannot end %s: no process with this number has a GPU open here", p.Who()),
				Try:  []string{"run gpuadm in the host's PID namespace (hostPID in a pod), or end the process by hand"},
			}
		case !still:
			continue // it has ended
		}

		if err := h.Terminate(p.PID); err != nil {
			return err
		}
	}

	for _, p := range holders {
		for {
			still, err := holds(p)
			if err != nil {
				return err
			}
			if !still {
				break
			}
			if h.Now().Sub(began) >= endWithin {
				return &trouble.Error{
					What: fmt.Sprintf("cannot end %s: it still has the GPU open, %s after SIGTERM", p.Who(), endWithin),
					Try:  []string{fmt.Sprintf("kill -KILL %d, if its work may be lost, then run the same command again", p.PID)},
				}
			}

			if err := host.Pause(ctx, endPause); err != nil {
				return err
			}
		}
	}

	return nil
}
