// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// sayEvery is how often gpuadm says which process it waits for.
const sayEvery = 12 * time.Second

// patience is how long a packager's lock is waited for.
type patience struct {
	all   time.Duration // in all
	pause time.Duration // between two attempts
}

// Patiently runs what may find a packager's lock held, again until it is free or the wait has ended. It names the holder at
// once, and then every sayEvery. run gets how long it may wait by itself, where it can: not at all the first time.
func Patiently(ctx context.Context, h host.Host, wait time.Duration, run func(within time.Duration) error) error {
	return patience{wait, time.Second}.run(ctx, h, run)
}

func (p patience) run(ctx context.Context, h host.Host, run func(within time.Duration) error) error {
	var said time.Time
	within := time.Duration(0)
	for end := h.Now().Add(p.all); ; {
		err := run(within)
		busy := (*Locked)(nil)
		now := h.Now()
		left := end.Sub(now)
		if !errors.As(err, &busy) || left <= 0 {
			return err
		}
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, deadline.Sub(now))
		}
		if said.IsZero() || now.Sub(said) >= sayEvery {
			said = now
			converge.Say(ctx, fmt.Sprintf("%s: waiting for up to %s", busy.who, max(left, 0).Round(time.Second)))
		}
		within = min(sayEvery, left)
		if host.Pause(ctx, p.pause) != nil {
			return err
		}
	}
}
