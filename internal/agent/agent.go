// SPDX-License-Identifier: Apache-2.0

// Package agent runs gpuadm unattended: it retries at boot, decides whether kubelet may start, runs
// in the DaemonSet's pod, follows the node's MIG label, evicts pods, reboots and reports to the
// cluster. It returns values; cmd words them.
package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
)

// A Run is one process that converges a machine: its engine, its knowledge of the Node, and its
// reports to the cluster.
type Run struct {
	Engine  *converge.Engine
	Host    host.Host
	Node    *node.Session
	Label   node.FollowedMIG // the layout that the node's label names; zero if node.toml does not follow the label
	Reboots bool             // reboot the machine if a change needs it
	Say     func(Event)

	failed   string // the stage at which the last apply failed
	reported string // the error in the last report to the cluster
}

// An Event is a message of an unattended run for the operator.
type Event struct {
	What  What
	Err   error
	Until time.Time     // Waiting: the run gives up then
	Try   int           // Retrying: how many attempts have failed
	Pause time.Duration // Retrying: until the next attempt
}

// What is the kind of an event.
type What int

const (
	Waiting    What = iota // the apply waits for an event outside gpuadm
	Retrying               // an attempt has failed, and Boot makes another one
	Unreported             // the report to the cluster has failed
	Unlabelled             // the update of the label, or of a client of the GPUs, has failed
	Warning                // the run continues in spite of the error
)

// tellLimit bounds each report to the cluster, also that of a run that is over its deadline.
const tellLimit = 20 * time.Second

// Apply converges once. If pods use the GPUs and the spec allows it, Apply evicts them and
// converges again.
func (r *Run) Apply(ctx context.Context) (converge.Result, error) {
	res, err := r.attempt(ctx)
	if !errors.Is(err, converge.ErrInUse) || r.Engine.Spec.Disruption.Policy != "drain" || !r.Host.Live() {
		return res, err
	}
	drained, err := r.drain(ctx, err)
	if !drained {
		r.tell(ctx, node.Outcome{Stage: res.Stage, Err: err})
		return res, err
	}
	made := res.Made
	res, err = r.attempt(ctx)
	res.Made = append(made, res.Made...)
	return res, err
}

// attempt converges, with the GPUs' clients paused if the node's label asks for other partitions,
// and reports to the cluster.
func (r *Run) attempt(ctx context.Context) (converge.Result, error) {
	parts, err := r.beginMIG(ctx)
	if err != nil {
		return converge.Result{}, err
	}
	res, err := r.Engine.Apply(ctx, r.Host)
	r.endMIG(ctx, parts, res, err)
	r.failed = res.Stage
	r.tell(ctx, node.Outcome{Made: res.Made, Stage: res.Stage, Err: err})
	return res, err
}

// Undo undoes runs, and restarts the programs that read partitions only at their start.
func (r *Run) Undo(ctx context.Context, to string, leave []string) (converge.Result, error) {
	res, err := r.Engine.Undo(ctx, r.Host, to, leave)
	if cordon := r.Uncordon(ctx, nil); err == nil {
		err = cordon
	}
	if err == nil {
		r.endMIG(ctx, partitions{}, res, nil)
	}
	return res, err
}

// Uncordon ends gpuadm's own cordon, also after the run's deadline.
func (r *Run) Uncordon(ctx context.Context, s *spec.Spec) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellLimit)
	defer cancel()
	return r.Node.Uncordon(ctx, r.Host, s)
}

// tell reports the result of an apply to the cluster. The apply does not fail if that fails.
func (r *Run) tell(ctx context.Context, o node.Outcome) {
	e := r.Engine
	if r.Host.Root() != "/" || e.Repair != "" || errors.Is(o.Err, converge.ErrStopped) || o.Err != nil && !o.GaveUp && o.Err.Error() == r.reported {
		return
	}
	r.reported = ""
	if o.Err != nil {
		r.reported = o.Err.Error() // the boot unit retries, and reports an error once
	}
	if o.Err == nil && len(o.Made) == 0 || !node.TellsCluster(e.Spec) {
		return // to gather facts would ask the driver again
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellLimit)
	defer cancel()
	f, err := e.Facts(ctx, r.Host)
	if err == nil {
		err = node.Report(ctx, r.Node, r.Host, e.Spec, f, o)
	}
	if err != nil {
		r.Say(Event{What: Unreported, Err: err})
	}
}

// Drift reports pending changes to the cluster, worded by say. It reports nothing if the machine is
// converged, while another run is in progress, or while an undo holds applies: then the operator
// wants the difference.
func (r *Run) Drift(ctx context.Context, say func([]converge.Change) string) error {
	s, err := r.Engine.Pending(ctx, r.Host)
	if err != nil || s.Held != "" || s.Now() == 0 || AtWork(r.Host) {
		return err
	}
	text := say(s.Changes)
	if !r.Host.Live() {
		return nil
	}
	if err := node.ReportDrift(ctx, r.Node, r.Host, r.Engine.Spec, s.Host.Facts, text); err != nil {
		r.Say(Event{What: Warning, Err: fmt.Errorf("cannot report to the cluster: %w", err)})
	}
	return nil
}

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
}

func (g *GaveUp) Error() string { return g.Err.Error() }
func (g *GaveUp) Unwrap() error { return g.Err }

// Boot calls apply until it succeeds, is stopped or has failed too often. It retries inside the
// process: a oneshot unit with Restart= would let kubelet start between two attempts below systemd
// 254.
func (r *Run) Boot(ctx context.Context, apply func(context.Context) error) error {
	began, lastWait := time.Now(), ""
	for try := 1; ; {
		err := apply(ctx)
		pause := time.Duration(try) * bootPause
		switch {
		case err == nil, errors.Is(err, converge.ErrStopped), ctx.Err() != nil:
			return err
		case errors.As(err, new(*host.Busy)) && time.Since(began) < busyLimit:
			pause = busyPause
		case trouble.Passes(err) && time.Since(began) < WaitLimit:
			if lastWait != err.Error() {
				lastWait = err.Error()
				r.Say(Event{What: Waiting, Err: err, Until: began.Add(WaitLimit)})
			}
			pause = WaitPause
		case try == Tries:
			r.tell(ctx, node.Outcome{Stage: r.failed, Err: err, GaveUp: true})
			return &GaveUp{err, BootSucceeded(ctx, r.Host)}
		default:
			r.Say(Event{What: Retrying, Err: err, Try: try, Pause: pause})
			try++
		}
		if host.Pause(ctx, pause) != nil {
			return err
		}
	}
}

// BootSucceeded says whether this boot's apply has succeeded.
func BootSucceeded(ctx context.Context, v host.View) bool {
	u, err := v.Unit(ctx, stages.BootUnit)
	return err == nil && u.Active == "active"
}

// Closed has the reasons why kubelet may not start.
type Closed struct {
	converge.Status
	Cut   bool              // the last run was cut short
	Alone []converge.Change // the changes of GPUs that wait while the other GPUs are changed
}

// Gate says why kubelet may not start; nil if it may.
func (r *Run) Gate(ctx context.Context) (*Closed, error) {
	e := r.Engine
	before := stages.BeforeKubelet()
	if instance.Detect(r.Host).Managed == "eks" {
		before = stages.BeforeNodeadm() // nodeadm starts kubelet, and reads its configuration then
	}
	e.Stages = slices.DeleteFunc(before, func(st converge.Stage) bool { return st.Name == "guard" })
	e.Before = e.Stages // kubelet starts whether the API server answers or not
	if e.Spec.Join.Gate == "open" {
		return nil, nil // the node joins, and a taint keeps pods away
	}
	s, err := e.Pending(ctx, r.Host)
	if err != nil {
		return nil, err
	}
	c := &Closed{Status: s, Cut: s.Unfinished != "" && !AtWork(r.Host)}
	for _, ch := range s.Changes {
		if ch.Stage == mig.Stage.Name && ch.Waits != "" {
			c.Alone = append(c.Alone, ch)
		}
	}
	if !c.Cut && (s.Held != "" || s.Now() == 0 && len(c.Alone) == 0) {
		return nil, nil
	}
	return c, nil
}

// AtWork says whether a run is in progress, most often that which starts kubelet.
func AtWork(h host.Host) bool {
	unlock, err := h.Lock()
	if err == nil {
		unlock()
	}
	return errors.As(err, new(*host.Busy))
}
