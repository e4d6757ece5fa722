// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/mask"
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

const (
	reportLimit  = 10 * time.Second // for the report: a failed apply has printed its error already, and must end
	maxCondition = 1024             // bytes of a message: kubectl shows far less in one line
)

// Report tells the cluster how an apply went: an Event for each stage that changed something, and
// for a failure; then it sets the condition to false with the cause, and replaces the startup taint
// by a taint with which an autoscaler adds a node. It reports each failure once: if the condition
// already states it, there is no new Event. Its error is for the log only, since the apply has its
// own.
func Report(ctx context.Context, se *Session, h host.Host, s spec.Spec, f facts.Facts, o Outcome) error {
	w := whose(s, f)
	if !TellsCluster(s) || w.later.Until != "" || o.Err == nil && len(o.Made) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportLimit)
	defer cancel()
	if !shouldHaveGPU(s, f) && MissingGPUs(h, s, f) == "" {
		return nil
	}
	n, err := se.look(ctx, h, w)
	if err != nil {
		if why := kube.Why(""); o.Err != nil && (errors.As(err, &why) && errors.Is(o.Err, why) || o.Err.Error() == err.Error()) {
			return nil // the apply has failed of the same, or waits for it, and says so
		}
		return err
	}
	r := newReadyStage(se, s, f)
	reason, message := r.told(ctx, h, n, o)
	events := made(o.Made, sinceBoot(h))
	if reason != "" {
		p := r.part("condition "+GPUReady, nil)
		state := converge.State("False " + reason + " " + message)
		if reason == busyReason && readyIn(n, f.BootID) { // the GPUs serve pods
			state = converge.State("True " + reason + " " + message + bootMark(f.BootID))
		}
		if c := conditionOf(n, GPUReady); p.of(n) != state && (reason != busyReason || c == nil || c.Reason != reason) { // processes come and go
			events = append(events, event{"Warning", reason, message})
		}
		edits := []partEdit{{p, p.of(n), state}}
		if startup, on, _, serr := startupTaint(s, f); serr == nil && on && w.serviceAccount(h) != "" {
			if e, due := recordTaint(n, startup, se); due {
				edits = append(edits, e)
			}
		}
		if !trouble.Passes(o.Err) || o.GaveUp {
			edits = append(edits, r.swap(h, n, len(o.Made) > 0)...)
		}
		err = se.patch(ctx, h, w, edits)
	}
	return errors.Join(err, se.tell(ctx, h, w, n, events))
}

// ReportDrift reports pending changes of a node by an Event. It does not change the condition,
// since the GPUs may still be ready.
func ReportDrift(ctx context.Context, se *Session, h host.Host, s spec.Spec, f facts.Facts, message string) error {
	w := whose(s, f)
	if !TellsCluster(s) || w.later.Until != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	n, err := se.look(ctx, h, w)
	if err != nil {
		return err
	}
	return se.tell(ctx, h, w, n, []event{{"Warning", "Drift", clip(message)}})
}

// told returns the condition's reason and message; "" if the outcome says nothing about the GPUs. A
// short outage of the API server says nothing about them; a licence that is missing does, a cluster
// that cannot allocate them, and a change that waits for processes on them.
func (r readyStage) told(ctx context.Context, v host.View, n *kube.Node, o Outcome) (reason, message string) {
	inUse := errors.Is(o.Err, converge.ErrInUse)
	switch {
	case o.Err == nil, errors.As(o.Err, new(*host.Busy)), inUse && !trouble.Passes(o.Err), foreignReason(n, v.Now()) != "":
		return "", ""
	case inUse:
		t := (*trouble.Error)(nil)
		errors.As(o.Err, &t)
		return busyReason, clip(strings.Join(append([]string{firstLine(o.Err)}, t.Because...), "; "))
	case !trouble.Passes(o.Err), o.GaveUp:
		return cmp.Or(camel(o.Stage), "Apply") + failedSuffix, firstLine(o.Err)
	case r.facts.Driver == nil:
		return "", ""
	}
	if err := cmp.Or(unlicensed(r.spec, r.facts), r.offered(ctx, v, n)); errors.As(err, new(trouble.Wait)) {
		return waitingReason, firstLine(err)
	}
	return "", ""
}

// swap replaces the startup taint by the taint of a failure, if gpuadm may. Without a startup taint
// it also adds the failure's, unless the GPUs were found ready in this boot: pods may run on them,
// whatever has failed since. A failure before the first change comes before the guard could shut
// the node. But such a failure does not taint a node that gpuadm never made ready: it may be a
// cloud's healthy node with a wrong spec.
func (r readyStage) swap(v host.View, n *kube.Node, touched bool) []partEdit {
	startup, _, _, err := startupTaint(r.spec, r.facts)
	failed, on := failedTaint(r.spec, r.facts)
	if err != nil || startup.Key == "" || !on || r.who.serviceAccount(v) == "" {
		return nil
	}
	old, now := r.part(taintName(startup), nil), r.part(taintName(failed), nil)
	if old.index(n) < 0 && (!touched && !everReady(v, n) || now.index(n) >= 0 || readyIn(n, r.facts.BootID) || madeReadyIn(v, r.facts.BootID)) {
		return nil
	}
	return []partEdit{{old, old.of(n), ""}, {now, now.of(n), valueState(failed.Value)}}
}

// everReady says whether gpuadm has made this node ready before, by the Node or the journal.
func everReady(v host.View, n *kube.Node) bool {
	_, gpus := lastReady(v)
	return n.Annotations[gpuRecord] != "" || len(gpus) > 0
}

// madeReadyIn says whether, by the journal, gpuadm made the node ready in a boot: a later failure
// has overwritten the condition.
func madeReadyIn(v host.View, boot string) bool {
	return slices.ContainsFunc(converge.ReadJournal(v).Records, func(r converge.Record) bool {
		return r.What == "make" && r.Change.Name == "condition "+GPUReady && trueIn(r.Change.After, boot)
	})
}

// event is one line of kubectl describe node.
type event struct{ kind, reason, message string }

// sinceBoot says how long the machine has run, and where the time of the last run went; "" where
// that is not known.
func sinceBoot(v host.View) string {
	uptime, err := v.ReadFile("/proc/uptime") // seconds, then those of idle processors: proc(5)
	seconds, _, found := strings.Cut(string(uptime), ".")
	runs := converge.ReadJournal(v).Runs()
	if err != nil || !found || len(runs) == 0 {
		return ""
	}
	return fmt.Sprintf("; %s s after the boot: %s", seconds, runs[len(runs)-1].Took)
}

// made is an Event for each stage that has changed something; that of the condition says how long
// after the boot it is met.
func made(changes []converge.Change, after string) (list []event) {
	var order []string
	names := map[string][]string{}
	for _, c := range changes {
		if !slices.Contains(order, c.Stage) {
			order = append(order, c.Stage)
		}
		names[c.Stage] = append(names[c.Stage], c.String())
	}
	for _, stage := range order {
		what := names[stage]
		text := fmt.Sprintf("%s: %d changes: %s", stage, len(what), strings.Join(what, ", "))
		if len(what) == 1 {
			text = stage + ": " + what[0]
		}
		if slices.Contains(what, "node condition "+GPUReady) {
			text += after
		}
		list = append(list, event{"Normal", camel(stage) + "Made", clip(text)})
	}
	return list
}

// tell creates the Events with kubelet's identity.
func (s *Session) tell(ctx context.Context, h host.Host, w who, n *kube.Node, events []event) error {
	if len(events) == 0 {
		return nil
	}
	name, err := w.first(h)
	if err != nil {
		return err
	}
	c, err := s.clients.Do(h, w.from(name))
	if err != nil {
		return err
	}
	for _, e := range events {
		if err := c.Event(ctx, n.Name, kube.Event{Type: e.kind, Reason: e.reason, Message: e.message}); err != nil {
			return err
		}
	}
	return nil
}

// camel returns a stage's name as a reason: unit-files, UnitFiles.
func camel(name string) string {
	var b strings.Builder
	for _, word := range strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == ' ' || r == '_' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// firstLine returns an error as a condition's message: its first line, without advice.
func firstLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return clip(strings.Join(strings.Fields(line), " "))
}

// clip shortens a message and masks secrets.
func clip(text string) string {
	text = mask.Message(trouble.Commands(text, trouble.Plain)) // every user who may read Nodes and Events can read it
	if len(text) > maxCondition {
		text = strings.ToValidUTF8(text[:maxCondition-3], "") + "…"
	}
	return text
}
