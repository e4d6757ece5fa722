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

// Patiently runs a command that may find a packager's lock held, again until it is free or the wait has ended. It names the
// holder at once, and then every sayEvery. explain makes an error of what the command said: a Locked where a lock was held.
func Patiently(
	ctx context.Context, h host.Host, wait time.Duration, explain func(v host.View, out string, err error) error, run func() ([]byte, error),
) (out []byte, err error) {
	err = patience{wait, time.Second}.run(ctx, h, func() error {
		if out, err = run(); err != nil {
			err = explain(h, string(out), err)
		}
		return err
	})
	return out, err
}

func (p patience) run(ctx context.Context, h host.Host, run func() error) error {
	var said time.Time
	for end := h.Now().Add(p.all); ; {
		err := run()
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
		if host.Pause(ctx, p.pause) != nil {
			return err
		}
	}
}
