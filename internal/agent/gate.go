// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
)

// Closed has the reasons why kubelet may not start.
type Closed struct {
	converge.Status
	Cut   bool            // the last run was cut short
	Alone []converge.Line // the changes of GPUs that wait while the other GPUs are changed
}

// Gate says why kubelet may not start; nil if it may. It asks v, a view of the machine on which
// nothing is waited for without a limit.
func (r *Run) Gate(ctx context.Context, v host.View) (*Closed, error) {
	e := r.Engine
	before := stages.BeforeKubelet()
	joiner, _ := platform.Detect(r.Host)
	if joiner.Join.Unit != "" {
		before = stages.BeforeJoiner()
	}
	e.Stages = slices.DeleteFunc(before, func(st converge.Stage) bool {
		return st.Name == "guard"
	})
	e.Before = e.Stages // kubelet starts whether the API server answers or not
	if r.gateIsOpen() {
		return nil, nil
	}

	s, err := e.Pending(ctx, v)
	if err != nil {
		return nil, err
	}
	c := &Closed{Status: s, Cut: s.Unfinished != "" && !AtWork(r.Host)}
	for _, ch := range s.Changes {
		if ch.Stage == mig.Stage.Name && ch.Waits != "" {
			c.Alone = append(c.Alone, ch)
		}
	}

	if !c.Cut && (s.Held != "" || mayStart(s, c)) {
		return nil, nil
	}
	return c, nil
}

// gateIsOpen says that kubelet starts whether the GPUs are ready or not: the node joins, and a
// taint keeps pods away.
func (r *Run) gateIsOpen() bool { return r.Engine.Spec.Join.Gate == "open" }

// mayStart says whether all that must hold before kubelet does, as far as this machine can show it
// before kubelet runs.
func mayStart(s converge.Status, c *Closed) bool {
	switch s.State {
	case converge.EndsConverged, converge.EndsDeferred:
		return true
	case converge.EndsWaiting:
		return len(c.Alone) == 0
	}
	return false
}

// AtWork says whether a run is in progress, most often that which starts kubelet.
func AtWork(h host.Host) bool {
	unlock, err := h.Lock()
	if err == nil {
		unlock()
	}
	return errors.As(err, new(*host.Busy))
}
