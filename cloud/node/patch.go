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

// editOf changes a part of a Node to a state; "" removes it.
func editOf(n *kube.Node, p nodePart, to converge.State) partEdit {
	return partEdit{nodePart: p, before: p.stateOn(n), after: to}
}

// patch makes the edits, and computes them again if the Node has changed since it was read.
func (s *Session) patch(ctx context.Context, h host.Host, id identity, edits []partEdit) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	n := s.node
	if s.name != id.node {
		n = nil
	}
	s.node = nil // until its state is known
	s.err = nil

	for try := range patchTries {
		if n == nil {
			n, err = s.fetch(ctx, h, id, kube.Patience)
		}
		if err != nil {
			return err
		}
		if err := refuseOverwrite(n, edits); err != nil {
			return err
		}

		n, err = s.patchOnce(ctx, h, id, n, edits)
		switch {
		case err == nil:
			s.store(h, id, n)
			return nil
		case errors.Is(err, kube.Missing):
			return explainMissing(err, s.nodeName(id))
		case !errors.Is(err, kube.Conflict):
			return waitForRight(err)
		}

		n = nil
		if err := backOff(ctx, try); err != nil {
			return err
		}
	}

	return err
}

// backOff waits for another client to finish its writes: jittered exponential backoff from 20 ms.
func backOff(ctx context.Context, try int) error {
	if host.Pause(ctx, rand.N(20*time.Millisecond<<min(try, 6))) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// refuseOverwrite refuses to overwrite another client's change to gpuadm's own parts since the last
// look: undo could not restore it. The next look sees it.
func refuseOverwrite(n *kube.Node, edits []partEdit) error {
	for _, e := range edits {
		now := e.stateOn(n)
		if now == e.before || now == e.after || e.what == partCondition {
			continue
		}
		const text = "another client has just changed the %s of the node: %q was found, and now it is %q"
		return trouble.Wait{
			For: fmt.Sprintf(text, e.name(), e.before, now),
			Err: changedMeanwhile,
		}
	}
	return nil
}

// patchOnce sends the pending edits, with one PATCH by each identity. Kubelet may change its labels
// and its status; only the ServiceAccount may change the rest. It adds taints before the condition
// that explains them, and removes taints last.
func (s *Session) patchOnce(
	ctx context.Context, h host.Host, id identity, n *kube.Node, edits []partEdit,
) (*kube.Node, error) {
	account := id.serviceAccount(h)
	kubelet := cmp.Or(id.kubelet, account)
	byKubelet := sender{session: s, identity: id, kubeconfig: kubelet}
	byAccount := sender{session: s, identity: id, kubeconfig: account}
	addsTaint := false
	removesTaint := false
	for _, e := range edits {
		if e.stateOn(n) == e.after {
			continue
		}
		isCondition := e.what == partCondition
		kubeletMay := !e.needsAccount() && kubelet != account
		switch {
		case isCondition || kubeletMay:
			byKubelet.edits = append(byKubelet.edits, e)
		case account == "":
			return n, e.noAccount()
		default:
			byAccount.edits = append(byAccount.edits, e)
			addsTaint = addsTaint || e.addsTaint()
			removesTaint = removesTaint || e.removesTaint(n, edits)
		}
	}

	senders := []sender{byKubelet, byAccount}
	if addsTaint && !removesTaint {
		slices.Reverse(senders)
	}
	for _, from := range senders {
		patched, err := from.send(ctx, h, n)
		if err != nil {
			return n, err
		}
		n = patched
	}

	return n, nil
}

func (e partEdit) addsTaint() bool { return e.what == partTaint && e.after != "" }

func (e partEdit) removesTaint(n *kube.Node, edits []partEdit) bool {
	if e.key == taintRecord {
		return len(e.dropped(n, edits)) > 0
	}
	return e.what == partTaint && e.after == ""
}

// sender sends the edits that one of the identity's kubeconfigs may make.
type sender struct {
	session    *Session
	identity   identity
	kubeconfig string
	edits      []partEdit
}

// send makes one PATCH, of the status if a condition is among the edits.
func (s sender) send(ctx context.Context, h host.Host, n *kube.Node) (*kube.Node, error) {
	if len(s.edits) == 0 {
		return n, nil
	}
	client, err := s.session.clients.Do(h, s.identity.from(s.kubeconfig))
	if err != nil {
		return nil, err
	}

	isCondition := func(e partEdit) bool { return e.what == partCondition }
	patch := client.PatchNode
	if slices.ContainsFunc(s.edits, isCondition) {
		patch = client.PatchStatus
	}
	return patch(ctx, n.Name, nodePatch(n, s.edits, h.Now()))
}

// nodePatch returns the patch for edits of a Node, for the version that was read: it replaces the
// whole list of taints, and a taint that another client has added meanwhile must not be lost.
func nodePatch(n *kube.Node, edits []partEdit, now time.Time) kube.Patch {
	labels := kube.Patch{}
	annotations := kube.Patch{}
	var taints []partEdit
	var conditions []kube.Condition
	for _, e := range edits {
		switch e.what {
		case partLabel:
			labels[e.key] = patchValue(e.after)
		case partTaint:
			taints = append(taints, e)
		case partCondition:
			conditions = []kube.Condition{e.condition(n, now)}
		case partRecord:
			annotations[e.key] = patchValue(e.after)
			for _, dropped := range e.dropped(n, edits) {
				if dropped.what == partLabel {
					labels[dropped.key] = nil
				} else {
					taints = append(taints, dropped)
				}
			}
		}
	}

	patch := kube.Patch{"metadata": kube.Patch{
		"resourceVersion": n.ResourceVersion,
		"labels":          labels,
		"annotations":     annotations,
	}}
	if len(taints) > 0 {
		patch["spec"] = kube.Patch{"taints": withTaints(n.Spec.Taints, taints)}
	}
	if len(conditions) > 0 {
		patch["status"] = kube.Patch{"conditions": conditions}
	}
	return patch
}

// patchValue returns a state in a merge patch: nil removes the key.
func patchValue(s converge.State) any {
	if s == "" {
		return nil
	}
	return stateValue(s)
}

// withTaints returns a list of taints after edits.
func withTaints(list []kube.Taint, edits []partEdit) []kube.Taint {
	list = append([]kube.Taint{}, list...) // [] and not null where none is left
	for _, e := range edits {
		i := e.indexIn(list)
		switch {
		case e.after == "" && i >= 0:
			list = slices.Delete(list, i, i+1)
		case e.after == "":
		case i >= 0:
			list[i].Value = stateValue(e.after)
		default:
			list = append(list, kube.Taint{
				Key:    e.key,
				Value:  stateValue(e.after),
				Effect: e.effect,
			})
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

	old := conditionOf(n, e.key)
	if old != nil && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
		c.LastTransitionTime = old.LastTransitionTime
	}
	return c
}
