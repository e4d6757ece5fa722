// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// patchTries is how often a change is computed again because another client changed the same Node
// meanwhile.
const patchTries = 8

// A partEdit is a change of one part of the Node.
type partEdit struct {
	nodePart
	before, after converge.State
}

// MakeAll changes parts of the Node together, with one PATCH by each identity. A patch names the
// version that was read, so it changes all or nothing, and never another client's change.
func (p nodePart) MakeAll(ctx context.Context, h host.Host, changes []converge.Change) error {
	w, err := p.identity(ctx, h)
	if err != nil {
		return err
	}
	if w.later.Until != "" {
		return w.later
	}
	var edits []partEdit
	for _, c := range changes {
		t, err := NewPart(c.Name, p.session)
		if err != nil {
			return err
		}
		edits = append(edits, partEdit{t.(nodePart), c.Before, c.After})
	}
	return p.session.patch(ctx, h, w, edits)
}

// patch makes the edits, and computes them again if the Node has changed since it was read.
func (s *Session) patch(ctx context.Context, h host.Host, w who, edits []partEdit) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node
	if s.name != w.node {
		n = nil
	}
	s.node, s.err = nil, nil // until its state is known
	for try := range patchTries {
		if n == nil {
			if n, err = s.get(ctx, h, w); err != nil {
				return err
			}
		}
		if err := meanwhile(n, edits); err != nil {
			return err
		}
		n, err = s.once(ctx, h, w, n, edits)
		switch {
		case err == nil:
			s.keep(h, w, n)
			return nil
		case errors.Is(err, kube.Missing):
			return explainNode(err, cmp.Or(s.real, w.node))
		case !errors.Is(err, kube.Conflict):
			return lacking(err)
		}
		n = nil
		if err := breathe(ctx, try); err != nil {
			return err
		}
	}
	return err
}

// breathe waits for another client to finish its writes: jittered exponential backoff from 20 ms.
func breathe(ctx context.Context, try int) error {
	if host.Pause(ctx, rand.N(20*time.Millisecond<<min(try, 6))) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// meanwhile refuses to overwrite another client's change to gpuadm's own parts since the last look:
// undo could not restore it. The next look sees it.
func meanwhile(n *kube.Node, edits []partEdit) error {
	for _, e := range edits {
		if now := e.of(n); now != e.before && now != e.after && e.what != partCondition {
			return trouble.Wait{Err: changedMeanwhile, For: fmt.Sprintf("another client has just changed the %s of the node: %q was found, and now it is %q", e.name(), e.before, now)}
		}
	}
	return nil
}

// once sends the pending edits, with one PATCH by each identity. Kubelet may change its labels and
// its status; only the ServiceAccount may change the rest. once adds taints before the condition
// that explains them, and removes taints last.
func (s *Session) once(ctx context.Context, h host.Host, w who, n *kube.Node, edits []partEdit) (*kube.Node, error) {
	account := w.serviceAccount(h)
	kubelet := cmp.Or(w.kubelet, account)
	var theirs, ours []partEdit // kubelet's, the ServiceAccount's
	comes, goes := false, false
	for _, e := range edits {
		switch {
		case e.of(n) == e.after:
		case e.what == partCondition || !e.needsAccount() && kubelet != account:
			theirs = append(theirs, e)
		case account == "":
			return n, e.noAccount()
		default:
			ours = append(ours, e)
			comes = comes || e.what == partTaint && e.after != ""
			goes = goes || e.what == partTaint && e.after == "" || e.key == taintRecord && len(e.dropped(n, edits)) > 0
		}
	}
	steps := []func() error{
		func() (err error) { n, err = s.send(ctx, h, w, kubelet, n, theirs); return err },
		func() (err error) { n, err = s.send(ctx, h, w, account, n, ours); return err },
	}
	if comes && !goes {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// send makes one PATCH, of the status if a condition is among the edits.
func (s *Session) send(ctx context.Context, h host.Host, w who, as string, n *kube.Node, edits []partEdit) (*kube.Node, error) {
	if len(edits) == 0 {
		return n, nil
	}
	c, err := s.clients.Do(h, w.from(as))
	if err != nil {
		return n, err
	}
	patch := c.PatchNode
	if slices.ContainsFunc(edits, func(e partEdit) bool { return e.what == partCondition }) {
		patch = c.PatchStatus
	}
	done, err := patch(ctx, n.Name, nodePatch(n, edits, h.Now()))
	if err != nil {
		return n, err
	}
	return done, nil
}

// nodePatch returns the patch for edits of a Node, for the version that was read: it replaces the
// whole list of taints, and a taint that another client has added meanwhile must not be lost.
func nodePatch(n *kube.Node, edits []partEdit, now time.Time) kube.Patch {
	labels, annotations := kube.Patch{}, kube.Patch{}
	patch := kube.Patch{"metadata": kube.Patch{"resourceVersion": n.ResourceVersion, "labels": labels, "annotations": annotations}}
	value := func(s converge.State) any {
		if s == "" {
			return nil
		}
		return stateValue(s)
	}
	var taints []partEdit
	for _, e := range edits {
		switch e.what {
		case partLabel:
			labels[e.key] = value(e.after)
		case partRecord:
			annotations[e.key] = value(e.after)
			for _, gone := range e.dropped(n, edits) {
				if gone.what == partLabel {
					labels[gone.key] = nil
				} else {
					taints = append(taints, gone)
				}
			}
		case partTaint:
			taints = append(taints, e)
		case partCondition:
			patch["status"] = kube.Patch{"conditions": []kube.Condition{e.condition(n, now)}}
		}
	}
	if len(taints) > 0 {
		patch["spec"] = kube.Patch{"taints": withTaints(n.Spec.Taints, taints)}
	}
	return patch
}

// withTaints returns a list of taints after edits.
func withTaints(list []kube.Taint, edits []partEdit) []kube.Taint {
	list = append([]kube.Taint{}, list...) // [] and not null where none is left
	for _, e := range edits {
		i := slices.IndexFunc(list, func(t kube.Taint) bool { return t.Key == e.key && t.Effect == e.effect })
		switch {
		case e.after == "" && i >= 0:
			list = slices.Delete(list, i, i+1)
		case e.after == "":
		case i >= 0:
			list[i].Value = stateValue(e.after)
		default:
			list = append(list, kube.Taint{Key: e.key, Value: stateValue(e.after), Effect: e.effect})
		}
	}
	return list
}

// condition returns the condition that an edit makes. Its transition time changes only with its
// status; its heartbeat time is that of gpuadm's last report.
func (e partEdit) condition(n *kube.Node, now time.Time) kube.Condition {
	c := conditionFrom(e.key, e.after)
	c.LastHeartbeatTime = now.UTC().Truncate(time.Second)
	c.LastTransitionTime = c.LastHeartbeatTime
	if old := conditionOf(n, e.key); old != nil && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
		c.LastTransitionTime = old.LastTransitionTime
	}
	return c
}
