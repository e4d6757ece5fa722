// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// How long the driver has for one call of NVML's in this process, which may read all GPUs, or
// change one. A driver that no nvidia-persistenced holds attaches its GPUs first, before R550 one
// after the other, in 1 to 3 seconds each: attach. Source:
// https://docs.nvidia.com/deploy/driver-persistence/overview.html.
const (
	readLimit   = 30 * time.Second
	changeLimit = 2 * time.Minute
)

// use is the use of the library by one goroutine at a time. A call of the library cannot be cut
// short, so each caller waits with a limit. A caller abandons a call that takes longer, and the
// library stays in use until that call ends.
//
// A thread in uninterruptible sleep keeps this process from ending, too. Verbs that only look, and
// repairs, ask in another process: DriverWithin.
type use struct {
	one  chan struct{}
	hung *atomic.Bool // a call was abandoned, and has not ended
}

func newUse() use { return use{one: make(chan struct{}, 1), hung: new(atomic.Bool)} }

// call makes a call of the library, and abandons it after the limit, or at the end of the context.
func (u use) call(ctx context.Context, limit time.Duration, do func() error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if u.hung.Load() {
		return host.NoAnswer(limit)
	}
	ctx, end := context.WithTimeoutCause(ctx, limit, host.NoAnswer(limit))
	defer end()
	select {
	case u.one <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	ended := make(chan error, 1)
	go func() {
		ended <- do()
		u.hung.Store(false)
		<-u.one
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}

	u.hung.Store(true)
	select {
	case err := <-ended: // just now
		u.hung.Store(false)
		return err
	default:
		return context.Cause(ctx)
	}
}
