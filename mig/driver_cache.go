// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// driverCache is the driver's answer, shared by all GPUs of a stage: asking for all costs little
// more than asking for one, and each question attaches the GPUs that no process holds. MakeAll,
// which changes GPUs, asks the driver again before and after. The rest is as of the same answer;
// nil: not asked.
type driverCache struct {
	mu      sync.Mutex
	driver  *host.Driver
	holders *[]devices.Holder    // the processes that have a device open
	pauses  map[string]*[]string // of a list of services, with blanks between: those that run
}

// once returns the cached answer, and asks if there is none.
func once[T any](c *driverCache, held **T, ask func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *held != nil {
		return **held, nil
	}

	answer, err := ask()
	if err == nil {
		*held = &answer
	}

	return answer, err
}

// ask returns the driver's answer.
func (c *driverCache) ask(ctx context.Context, v host.View) (*host.Driver, error) {
	d, err := once(c, &c.driver, func() (host.Driver, error) { return v.Driver(ctx) })
	return &d, err
}

// open lists the processes that have a device open.
func (c *driverCache) open(ctx context.Context, v host.View) ([]devices.Holder, error) {
	return once(c, &c.holders, func() ([]devices.Holder, error) {
		return devices.Holders(ctx, v)
	})
}

// paused lists the running services that the plans pause; for a change of mode nvidia-persistenced
// is one of them.
func (c *driverCache) paused(ctx context.Context, v host.View, plans []Plan) ([]string, error) {
	units := servicesToPause(plans)
	if slices.ContainsFunc(plans, Plan.changesMode) {
		units = append(units, things.Persistenced)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	list := strings.Join(units, " ")
	if known := c.pauses[list]; known != nil {
		return *known, nil
	}

	running, err := things.Pauses(ctx, v, units)
	if err != nil {
		return nil, err
	}
	if c.pauses == nil {
		c.pauses = map[string]*[]string{}
	}
	c.pauses[list] = &running
	return running, nil
}

// set replaces the answer; nil: the driver is asked again.
func (c *driverCache) set(d *host.Driver) {
	if c == nil {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.driver = d
	c.holders = nil
	c.pauses = nil
}

// find returns the driver's answer about one GPU; false if the driver does not know the GPU.
func find(d *host.Driver, address string) (host.GPU, bool) {
	i := slices.IndexFunc(d.GPUs, func(g host.GPU) bool { return g.Address == address })
	if i < 0 {
		return host.GPU{}, false
	}
	return d.GPUs[i], true
}
