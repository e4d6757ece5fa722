// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// How long a driver and a daemon have to answer a command that only reads. A driver that no
// nvidia-persistenced holds attaches its GPUs first, in 1 to 3 seconds for eight of them:
// https://docs.nvidia.com/deploy/driver-persistence/overview.html.
const (
	driverPatience = 10 * time.Second
	callPatience   = 2 * time.Second
)

// within is a machine on which no driver and no daemon delays a command that only reads.
type within struct {
	host.View
	once   sync.Once
	driver host.Driver
	err    error
}

// Within returns a View of the same machine that asks the driver once, in another process where it
// can, and waits 10 seconds for it, and 2 for a daemon.
func Within(v host.View) host.View { return &within{View: v} }

// Driver is View's.
func (w *within) Driver(ctx context.Context) (host.Driver, error) {
	w.once.Do(func() {
		if v, can := w.View.(driverWithin); can {
			w.driver, w.err = v.DriverWithin(ctx, driverPatience)
		} else {
			w.driver, w.err = w.View.Driver(ctx)
		}
	})
	return w.driver, w.err
}

// driverWithin is a View that can ask the driver in another process.
type driverWithin interface {
	DriverWithin(ctx context.Context, limit time.Duration) (host.Driver, error)
}

// Call is View's.
func (w *within) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	late := fmt.Errorf("no answer within %v", callPatience)
	ctx, end := context.WithTimeoutCause(ctx, callPatience, late)
	defer end()
	return w.View.Call(ctx, socket, method, request)
}
