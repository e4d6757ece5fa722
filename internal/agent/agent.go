// SPDX-License-Identifier: Apache-2.0

// Package agent runs gpuadm unattended: it retries at boot, decides whether kubelet may start, runs
// in the DaemonSet's pod, follows the node's MIG label, evicts pods, reboots and reports to the
// cluster. It returns values; cmd words them.
package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A Run is one process that converges a machine: its engine, its knowledge of the Node, and its
// reports to the cluster.
type Run struct {
	Engine  *converge.Engine
	Host    host.Host
	Node    *node.Session
	Label   node.FollowedMIG // the layout in the node's label; zero if node.toml does not follow the label
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

// reportLimit bounds each report to the cluster, also that of a run that is over its deadline.
const reportLimit = 20 * time.Second

// Apply converges once. If pods use the GPUs and the spec allows it, Apply evicts them and
// converges again.
func (r *Run) Apply(ctx context.Context) (converge.Result, error) {
	result, err := r.attempt(ctx)
	mayDrain := r.Engine.Spec.Disruption.Policy == "drain" && r.Host.Live()
	if !mayDrain || !errors.Is(err, converge.ErrInUse) {
		return result, err
	}

	drained, err := r.drain(ctx, err)
	if !drained {
		r.report(ctx, node.Outcome{Stage: result.Stage, Err: err})
		return result, err
	}
	made := result.Made
	result, err = r.attempt(ctx)
	result.Made = append(made, result.Made...)
	return result, err
}

// attempt converges, with the GPUs' clients paused if the node's label asks for other partitions,
// and reports to the cluster.
func (r *Run) attempt(ctx context.Context) (converge.Result, error) {
	parts, err := r.beginMIG(ctx)
	if err != nil {
		return converge.Result{}, err
	}

	result, err := r.Engine.Apply(ctx, r.Host)
	r.endMIG(ctx, parts, result, err)
	r.failed = result.Stage
	r.report(ctx, node.Outcome{
		Made:  result.Made,
		Stage: result.Stage,
		Err:   err,
	})
	return result, err
}

// Undo undoes runs, and restarts the programs that read partitions only at their start.
func (r *Run) Undo(ctx context.Context, to string, leave []string) (converge.Result, error) {
	result, err := r.Engine.Undo(ctx, r.Host, to, leave)
	uncordonErr := r.Uncordon(ctx, nil)
	if err == nil {
		err = uncordonErr
	}
	if err == nil {
		r.endMIG(ctx, partitions{}, result, nil)
	}
	return result, err
}

// Uncordon ends gpuadm's own cordon, also after the run's deadline.
func (r *Run) Uncordon(ctx context.Context, s *spec.Spec) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportLimit)
	defer cancel()
	return r.Node.Uncordon(ctx, r.Host, s)
}

// report reports the outcome of an apply to the cluster. The apply does not fail if that fails. The
// boot unit retries, and reports an error once.
func (r *Run) report(ctx context.Context, o node.Outcome) {
	e := r.Engine
	stopped := errors.Is(o.Err, converge.ErrStopped)
	isReported := o.Err != nil && o.Err.Error() == r.reported
	if r.Host.Root() != "/" || e.Repair != "" || stopped || isReported && !o.GaveUp {
		return
	}

	r.reported = ""
	if o.Err != nil {
		r.reported = o.Err.Error()
	}
	nothing := o.Err == nil && len(o.Made) == 0
	if nothing || !node.ReportsToCluster(e.Spec) {
		return // to gather facts would ask the driver again
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportLimit)
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
// wants the difference. It returns what it has found, also beside an error that names what it could
// not look at.
func (r *Run) Drift(
	ctx context.Context, say func([]converge.Line) string,
) (s converge.Status, err error) {
	s, err = r.Engine.Pending(ctx, r.Host)
	if err != nil || s.Held != "" || AtWork(r.Host) {
		return s, err
	}
	if s.Now() == 0 {
		return s, s.Blind()
	}
	text := say(s.Changes)
	if !r.Host.Live() {
		return s, s.Blind()
	}

	r.unreported(node.ReportDrift(ctx, r.Node, r.Host, r.Engine.Spec, s.Host.Facts, text))
	return s, s.Blind()
}

// ReportSpec reports to the cluster that the machine's own spec cannot be used.
func (r *Run) ReportSpec(ctx context.Context, text string) {
	if !r.Host.Live() || !node.ReportsToCluster(r.Engine.Spec) {
		return
	}
	f, err := r.Engine.Facts(ctx, r.Host)
	if err == nil {
		err = node.ReportDrift(ctx, r.Node, r.Host, r.Engine.Spec, f, text)
	}
	r.unreported(err)
}

// unreported warns if a report of drift has failed.
func (r *Run) unreported(err error) {
	if err != nil {
		r.Say(Event{What: Warning, Err: fmt.Errorf("cannot report to the cluster: %w", err)})
	}
}
