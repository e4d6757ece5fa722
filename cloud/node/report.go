// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Outcome is the result of an apply.
type Outcome struct {
	Made  []converge.Change // what it has made
	Stage string            // the stage that failed; "" if unknown
	Err   error             // why it failed or what it waits for; nil for success
	// GaveUp reports that no process will retry: gpuadm stopped waiting.
	GaveUp bool
}

// reportLimit is how long a report may take: a failed apply has printed its error already, and must
// end.
const reportLimit = 10 * time.Second

// Report tells the cluster how an apply went: an Event for each stage that changed something, and
// for a failure; then it sets the condition to false with the cause, and replaces the startup taint
// by a taint with which an autoscaler adds a node. It reports each failure once: if the condition
// already shows it, there is no new Event. Its error is for the log only, since the apply has its
// own.
func Report(ctx context.Context, session *Session, h host.Host, s spec.Spec, f facts.Facts, o Outcome) error {
	id := identityOf(s, f)
	if !ReportsToCluster(s) || id.later.Until != "" {
		return nil
	}
	if o.Err == nil && len(o.Made) == 0 {
		return nil
	}
	if !shouldHaveGPU(s, f) && MissingGPUs(h, s, f) == "" {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportLimit)
	defer cancel()
	n, err := session.look(ctx, h, id)
	if err != nil {
		if sameFailure(o.Err, err) {
			return nil // the apply has failed for the same reason, or waits for it, and says so
		}
		return err
	}

	events := madeEvents(o.Made, sinceBoot(h))
	r := newReadyStage(session, s, f)
	reason, message := r.reasonFor(ctx, h, n, o)
	if reason != "" {
		condition := r.conditionEdit(n, reason, message)
		if isNews(n, condition, reason) {
			events = append(events, event{
				kind:    "Warning",
				reason:  reason,
				message: message,
			})
		}

		edits := append([]partEdit{condition}, r.taintEdits(h, n, o)...)
		err = session.patch(ctx, h, id, edits)
	}

	return errors.Join(err, session.postEvents(ctx, h, id, n.Name, events))
}

// sameFailure reports whether an apply failed for the same reason as the look at the Node.
func sameFailure(apply, look error) bool {
	if apply == nil {
		return false
	}
	var why kube.Why
	if errors.As(look, &why) && errors.Is(apply, why) {
		return true
	}
	var unknown *trouble.Unknown
	if errors.As(apply, &unknown) {
		apply = unknown.Err
	}
	return apply.Error() == look.Error()
}

// conditionEdit sets the condition to false; but a node whose GPUs serve pods stays ready while a
// change waits for them.
func (r readyStage) conditionEdit(n *kube.Node, reason, message string) partEdit {
	state := "False " + reason + " " + message
	if reason == busyReason && readyIn(n, r.facts.BootID) {
		state = "True " + reason + " " + message + bootMark(r.facts.BootID)
	}
	return editOf(n, conditionPart(), converge.State(state))
}

// isNews reports whether a change of the condition deserves an Event. While a change waits for
// processes on the GPUs only the first message does: processes come and go.
func isNews(n *kube.Node, condition partEdit, reason string) bool {
	if condition.before == condition.after {
		return false
	}
	last := conditionOf(n, GPUReady)
	return reason != busyReason || last == nil || last.Reason != reason
}

// taintEdits swap the startup taint after a failure that lasts, and record both taints: an undo
// takes off what the record names. They are empty without a startup taint, or without an account
// that may change taints.
func (r readyStage) taintEdits(h host.Host, n *kube.Node, o Outcome) []partEdit {
	startup, _, err := startupTaint(r.spec, r.facts)
	if err != nil || startup.Key == "" || r.identity.serviceAccount(h) == "" {
		return nil
	}

	var edits []partEdit
	if o.GaveUp || !trouble.Passes(o.Err) {
		edits = r.swapTaints(h, n, startup, len(o.Made) > 0)
	}
	taints := []spec.Taint{startup}
	if len(edits) > 0 {
		taints = append(taints, failureTaint())
	}

	if record, due := recordTaints(n, taints...); due {
		edits = append([]partEdit{record}, edits...)
	}
	return edits
}

// ReportDrift reports pending changes of a node by an Event. It does not change the condition,
// since the GPUs may still be ready.
func ReportDrift(
	ctx context.Context, session *Session, h host.Host, s spec.Spec, f facts.Facts, message string,
) error {
	id := identityOf(s, f)
	if !ReportsToCluster(s) || id.later.Until != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	n, err := session.look(ctx, h, id)
	if err != nil {
		return err
	}
	drift := event{kind: "Warning", reason: "Drift", message: clip(message)}
	return session.postEvents(ctx, h, id, n.Name, []event{drift})
}

// reasonFor returns the condition's reason and message; "" if the outcome says nothing about the
// GPUs. A short outage of the API server says nothing about them. A missing licence does, and so do
// a cluster that cannot allocate them, and a change that waits for processes on them.
func (r readyStage) reasonFor(
	ctx context.Context, v host.View, n *kube.Node, o Outcome,
) (reason, message string) {
	if o.Err == nil || foreignReason(n, v.Now()) != "" {
		return "", ""
	}
	inUse := errors.Is(o.Err, converge.ErrInUse)
	passes := trouble.Passes(o.Err)
	switch {
	case errors.As(o.Err, new(*host.Busy)), inUse && !passes:
		return "", ""
	case inUse:
		because, _ := detailsOf(o.Err)
		lines := append([]string{firstLine(o.Err)}, because...)
		return busyReason, clip(strings.Join(lines, "; "))
	case !passes, o.GaveUp:
		return cmp.Or(camelCase(o.Stage), "Apply") + failedSuffix, firstLine(o.Err)
	case r.facts.Driver == nil:
		return "", ""
	}

	err := cmp.Or(waitForLicence(r.spec, r.facts), r.waitForOffer(ctx, v, n))
	if errors.As(err, new(trouble.Wait)) {
		return waitingReason, firstLine(err)
	}
	return "", ""
}

// swapTaints replaces the startup taint by the taint of a failure. It also adds that taint to most
// nodes without a startup taint: a failure before the first change comes before the guard could
// shut the node.
func (r readyStage) swapTaints(v host.View, n *kube.Node, startup spec.Taint, hasMade bool) []partEdit {
	failed := failedTaint(r.spec, r.facts)
	if failed.Key == "" {
		return nil
	}

	remove := editOf(n, taintPart(startup), "")
	add := editOf(n, taintPart(failed), valueState(failed.Value))
	swap := []partEdit{remove, add}
	switch {
	case remove.before != "":
		return swap
	case add.before != "":
		return nil
	case readyIn(n, r.facts.BootID), madeReadyIn(v, r.facts.BootID):
		return nil // pods may run on the GPUs, whatever has failed since
	case !hasMade && !everReady(v, n):
		return nil // it may be a cloud's healthy node with a wrong spec
	}
	return swap
}

// everReady reports whether gpuadm has made this node ready before, by the Node or the journal.
func everReady(v host.View, n *kube.Node) bool {
	_, gpus := lastReady(v)
	return n.Annotations[gpuRecord] != "" || len(gpus) > 0
}

// madeReadyIn reports whether, by the journal, gpuadm made the node ready in a boot: a later
// failure has overwritten the condition.
func madeReadyIn(v host.View, bootID string) bool {
	for _, r := range converge.ReadJournal(v).Records {
		isCondition := r.What == "make" && r.Change.Name == conditionPart().name()
		if isCondition && trueIn(r.Change.After, bootID) {
			return true
		}
	}
	return false
}
