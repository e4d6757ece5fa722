// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

const (
	Tries     = 3                // attempts of a boot's apply
	bootPause = 10 * time.Second // before the second attempt; twice that before the third
	busyPause = 2 * time.Second  // while another run is in progress
	busyLimit = 10 * time.Minute // then the boot continues without that run
	// WaitLimit is how long a boot waits: Karpenter and AKS give a node the same time to register.
	WaitLimit = 15 * time.Minute
	WaitPause = 5 * time.Second
)

// GaveUp is the error of a boot whose last attempt has failed.
type GaveUp struct {
	Err     error
	Started bool // kubelet has been allowed to start since the boot
	Open    bool // kubelet starts all the same
}

func (g *GaveUp) Error() string { return g.Err.Error() }
func (g *GaveUp) Unwrap() error { return g.Err }

// Boot calls apply until it succeeds, is stopped or has failed too often. It retries inside the
// process: a oneshot unit with Restart= would let kubelet start between two attempts below systemd
// 254.
func (r *Run) Boot(ctx context.Context, apply func(context.Context) error) error {
	began := time.Now()
	lastWait := ""
	for try := 1; ; {
		err := apply(ctx)
		pause := time.Duration(try) * bootPause
		switch {
		case err == nil, errors.Is(err, converge.ErrStopped), ctx.Err() != nil:
			return err
		case errors.As(err, new(*host.Busy)) && time.Since(began) < busyLimit:
			pause = busyPause
		case trouble.Passes(err) && !r.startsDespite(err) && time.Since(began) < WaitLimit:
			pause = WaitPause
			if lastWait != err.Error() {
				lastWait = err.Error()
				r.Say(Event{
					What:  Waiting,
					Err:   err,
					Until: began.Add(WaitLimit),
				})
			}
		case try == Tries:
			r.report(ctx, node.Outcome{Stage: r.failed, Err: err, GaveUp: true})
			return &GaveUp{err, BootSucceeded(ctx, r.Host), r.gateIsOpen()}
		default:
			r.Say(Event{
				What:  Retrying,
				Err:   err,
				Try:   try,
				Pause: pause,
			})
			try++
		}

		if host.Pause(ctx, pause) != nil {
			return err
		}
	}
}

// startsDespite says that kubelet does not wait for what an error tells of: with an open gate it
// starts before the GPUs can be looked at. A driver container brings the driver after kubelet.
func (r *Run) startsDespite(err error) bool {
	return r.gateIsOpen() && trouble.IsUnknown(err)
}

// BootSucceeded says whether this boot's apply has succeeded.
func BootSucceeded(ctx context.Context, v host.View) bool {
	u, err := v.Unit(ctx, stages.BootUnit)
	return err == nil && u.Active == "active"
}
