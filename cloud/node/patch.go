// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// patchTries is how often a change is computed again because another client changed the same Node meanwhile.
const patchTries = 8

// A partEdit is a change of one part of the Node.
type partEdit struct {
	nodePart
	before, after converge.State
}

// MakeAll changes parts of the Node as one: one PATCH by each identity. A patch tests what it found, so
// that it changes all of that or nothing, and nothing that is not ours.
func (p nodePart) MakeAll(ctx context.Context, h host.Host, changes []converge.Change) error {
	w, err := p.whom(ctx, h)
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

// patch makes the edits, and computes them again where the Node is not as it was found.
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

// breathe lets another client finish its writes: up to 20 ms at first, then twice as long each time.
func breathe(ctx context.Context, try int) error {
	most := 20 * time.Millisecond << min(try, 6)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(most)):
		return nil
	}
}

// meanwhile refuses to overwrite what another client has made of our own parts since gpuadm looked: it would be lost to
// undo. The next look sees it.
func meanwhile(n *kube.Node, edits []partEdit) error {
	for _, e := range edits {
		if now := e.of(n); now != e.before && now != e.after && e.what != "condition" {
			return trouble.Wait{For: fmt.Sprintf("another client has just changed the %s of the node: %q was found, and now it is %q", e.name(), e.before, now)}
		}
	}
	return nil
}

// once sends what is not yet as wanted: one PATCH by each identity. Kubelet may change its labels and its status, and only the
// ServiceAccount the rest. A taint that comes, comes before the condition says why; one that goes, goes last of all.
func (s *Session) once(ctx context.Context, h host.Host, w who, n *kube.Node, edits []partEdit) (*kube.Node, error) {
	account := w.serviceAccount(h)
	kubelet := cmp.Or(w.kubelet, account)
	var theirs, ours []partEdit // kubelet's, the ServiceAccount's
	comes, goes := false, false
	for _, e := range edits {
		switch {
		case e.of(n) == e.after:
		case e.what == "condition" || !e.needsAccount() && kubelet != account:
			theirs = append(theirs, e)
		case account == "":
			return n, e.noAccount()
		default:
			ours = append(ours, e)
			comes = comes || e.what == "taint" && e.after != ""
			goes = goes || e.what == "taint" && e.after == "" || len(e.dropped(n, edits)) > 0
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

// send makes one PATCH, of the status where a condition is among the edits.
func (s *Session) send(ctx context.Context, h host.Host, w who, as string, n *kube.Node, edits []partEdit) (*kube.Node, error) {
	if len(edits) == 0 {
		return n, nil
	}
	c, err := s.clients.Do(h, w.from(as))
	if err != nil {
		return n, err
	}
	patch := c.PatchNode
	if slices.ContainsFunc(edits, func(e partEdit) bool { return e.what == "condition" }) {
		patch = c.PatchStatus
	}
	done, err := patch(ctx, n.Name, nodeOps(n, edits, h.Now()))
	if errors.Is(err, kube.Refused) {
		// A list with a taint twice is refused as wrong, not as a conflict: another client may have added the same one meanwhile.
		if now, gerr := c.Node(ctx, n.Name); gerr == nil && slices.ContainsFunc(edits, func(e partEdit) bool { return e.of(now) != e.of(n) }) {
			return now, &kube.Error{Verb: "patch", What: "node " + n.Name, Why: kube.Conflict, Cause: err}
		}
	}
	if err != nil {
		return n, err
	}
	return done, nil
}

// conditionOps sets a condition. Its time of transition moves with its status only; its heartbeat is the time of our last word. A list
// in a JSON patch has no keys: one that is added must find the Node as it was looked at, or it could be there twice.
func conditionOps(n *kube.Node, e partEdit, now time.Time) (tests, changes []kube.Op) {
	const list = "/status/conditions"
	cond := conditionFrom(e.key, e.after)
	cond.LastHeartbeatTime = now.UTC().Truncate(time.Second)
	cond.LastTransitionTime = cond.LastHeartbeatTime
	old := conditionOf(n, e.key)
	switch {
	case len(n.Status.Conditions) == 0:
		return []kube.Op{{Op: "test", Path: list, Value: nodeLacks()}}, []kube.Op{{Op: "add", Path: list, Value: []kube.Condition{cond}}}
	case old == nil:
		return []kube.Op{{Op: "test", Path: "/metadata/resourceVersion", Value: n.ResourceVersion}}, []kube.Op{{Op: "add", Path: list + "/-", Value: cond}}
	case old.Status == cond.Status && !old.LastTransitionTime.IsZero():
		cond.LastTransitionTime = old.LastTransitionTime
	}
	at := list + "/" + strconv.Itoa(slices.IndexFunc(n.Status.Conditions, func(c kube.Condition) bool { return c.Type == e.key }))
	return []kube.Op{{Op: "test", Path: at + "/type", Value: e.key}}, []kube.Op{{Op: "replace", Path: at, Value: cond}}
}

// nodeLacks is the value of a test that something is not there. The API server wants it spelt out.
func nodeLacks() json.RawMessage { return json.RawMessage("null") }

// nodeOps is the JSON patch of some edits of a Node: tests of what was found, then the changes.
func nodeOps(n *kube.Node, edits []partEdit, now time.Time) []kube.Op {
	var tests, changes []kube.Op
	var taints []partEdit
	if n.UID != "" { // another Node may have this one's name by now, and has it in another cluster
		tests = append(tests, kube.Op{Op: "test", Path: "/metadata/uid", Value: n.UID})
	}
	if n.Labels == nil && slices.ContainsFunc(edits, func(e partEdit) bool { return e.what == "label" }) {
		tests = append(tests, kube.Op{Op: "test", Path: "/metadata/labels", Value: nodeLacks()})
		changes = append(changes, kube.Op{Op: "add", Path: "/metadata/labels", Value: map[string]string{}})
	}
	if n.Annotations == nil && slices.ContainsFunc(edits, func(e partEdit) bool { return e.what == "record" }) {
		tests = append(tests, kube.Op{Op: "test", Path: "/metadata/annotations", Value: nodeLacks()})
		changes = append(changes, kube.Op{Op: "add", Path: "/metadata/annotations", Value: map[string]string{}})
	}
	for _, e := range edits {
		switch e.what {
		case "taint":
			taints = append(taints, e)
			continue
		case "record":
			t, c := recordOps(n, e, edits)
			tests, changes = append(tests, t...), append(changes, c...)
			taints = append(taints, e.dropped(n, edits)...)
			continue
		case "condition":
			t, c := conditionOps(n, e, now)
			tests, changes = append(tests, t...), append(changes, c...)
			continue
		}
		at := kube.Pointer("metadata", "labels", e.key)
		if old, ok := n.Labels[e.key]; ok {
			tests = append(tests, kube.Op{Op: "test", Path: at, Value: old})
		} else if n.Labels != nil {
			tests = append(tests, kube.Op{Op: "test", Path: at, Value: nodeLacks()})
		}
		if e.after == "" {
			changes = append(changes, kube.Op{Op: "remove", Path: at})
			continue
		}
		changes = append(changes, kube.Op{Op: "add", Path: at, Value: stateValue(e.after)}) // adds or replaces
	}
	t, c := taintOps(n, taints)
	return append(append(tests, t...), append(changes, c...)...)
}

// taintOps changes single places of the list, each tested to be the taint that was found there. A merge patch would replace
// the whole list, and with it what others have put there meanwhile.
func taintOps(n *kube.Node, edits []partEdit) (tests, changes []kube.Op) {
	const list = "/spec/taints"
	slices.SortStableFunc(edits, func(a, b partEdit) int { return b.index(n) - a.index(n) }) // from the end: earlier indexes stay valid
	var added []kube.Taint
	for _, e := range edits {
		t := kube.Taint{Key: e.key, Value: stateValue(e.after), Effect: e.effect}
		i := e.index(n)
		if i < 0 {
			added = append(added, t)
			continue
		}
		at := list + "/" + strconv.Itoa(i)
		tests = append(tests, kube.Op{Op: "test", Path: at + "/key", Value: e.key}, kube.Op{Op: "test", Path: at + "/effect", Value: e.effect})
		if old := n.Spec.Taints[i].Value; old != "" {
			tests = append(tests, kube.Op{Op: "test", Path: at + "/value", Value: old})
		}
		if e.after == "" {
			changes = append(changes, kube.Op{Op: "remove", Path: at})
		} else {
			changes = append(changes, kube.Op{Op: "replace", Path: at, Value: t})
		}
	}
	if len(n.Spec.Taints) == 0 && len(added) > 0 {
		return append(tests, kube.Op{Op: "test", Path: list, Value: nodeLacks()}), append(changes, kube.Op{Op: "add", Path: list, Value: added})
	}
	for _, t := range added {
		changes = append(changes, kube.Op{Op: "add", Path: list + "/-", Value: t})
	}
	return tests, changes
}
