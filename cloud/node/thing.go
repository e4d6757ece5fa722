// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// nodePart is one label, taint or condition of the machine's own Node object. The thing's name
// contains neither the Node nor the identity that changes it: with another kubeconfig the same
// label must be the same thing.
type nodePart struct {
	what    partKind
	key     string // of the label, the taint or the record's annotation, or the condition's type
	effect  string // of the taint
	session *Session
	rebuilt bool // from the journal
	who     *who // nil: Look determines it on the machine

	// must returns, by the Node's state, why the part cannot be made yet: a trouble.Wait. A nil
	// must never waits.
	must func(context.Context, host.View, *kube.Node) error
}

// A partKind is a kind of part, the first word of its name.
type partKind string

const (
	partLabel     partKind = "label"
	partTaint     partKind = "taint"
	partCondition partKind = "condition"
	partRecord    partKind = "record" // an annotation
)

// NewPart builds the thing from its name, for undo. With the session of the run's stages dozens of
// parts share one request to the cluster.
func NewPart(name string, s *Session) (converge.Thing, error) {
	what, rest, _ := strings.Cut(name, " ")
	p := nodePart{what: partKind(what), key: rest, session: s, rebuilt: true}
	if p.what == partTaint {
		i := strings.LastIndex(rest, ":")
		if i < 0 {
			return nil, fmt.Errorf("internal error: a taint without an effect: %q", name)
		}
		p.key, p.effect = rest[:i], rest[i+1:]
	}
	if !slices.Contains([]partKind{partLabel, partTaint, partCondition, partRecord}, p.what) || p.key == "" {
		return nil, fmt.Errorf("internal error: no part of a node: %q", name)
	}
	return p, nil
}

func (p nodePart) Ref() converge.Ref { return converge.Ref{Kind: "node", Name: p.name()} }

func (p nodePart) name() string {
	if p.what == partTaint {
		return "taint " + p.key + ":" + p.effect
	}
	return string(p.what) + " " + p.key
}

// identity names the Node and the client that asks for it.
func (p nodePart) identity(ctx context.Context, v host.View) (who, error) {
	if p.who != nil {
		return *p.who, nil
	}
	return p.session.whose(ctx, v)
}

// Look returns the value of a label or a taint, with "" in quotes for an empty value; or the
// condition's status, reason and message.
func (p nodePart) Look(ctx context.Context, v host.View) (converge.State, error) {
	w, err := p.identity(ctx, v)
	if err != nil {
		return "", err
	}
	undoing := p.rebuilt // a Node that is gone, or whose cluster the machine has left, has no part of gpuadm's
	switch {
	case w.later.Until == UntilJoined && undoing:
		return "", nil
	case w.later.Until != "":
		return "", w.later
	}
	n, err := p.session.look(ctx, v, w)
	if errors.Is(err, notRegistered) && undoing {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if p.must != nil {
		if err := p.must(ctx, v, n); err != nil {
			p.session.forget() // the next look must ask again
			return "", err
		}
	}
	return p.of(n), nil
}

const emptyValue = `""` // no value of a label or taint has quotes

// valueState returns a value as a state; the state "" means missing.
func valueState(value string) converge.State {
	if value == "" {
		return emptyValue
	}
	return converge.State(value)
}

// stateValue returns a state's value.
func stateValue(s converge.State) string {
	if s == emptyValue {
		return ""
	}
	return string(s)
}

// of returns the state of the part on a Node.
func (p nodePart) of(n *kube.Node) converge.State {
	switch p.what {
	case partLabel:
		if value, ok := n.Labels[p.key]; ok {
			return valueState(value)
		}
	case partTaint:
		if i := p.index(n); i >= 0 {
			return valueState(n.Spec.Taints[i].Value)
		}
	case partRecord:
		if value, ok := n.Annotations[p.key]; ok {
			return valueState(value)
		}
	case partCondition:
		if c := conditionOf(n, p.key); c != nil {
			return conditionState(*c)
		}
	}
	return ""
}

// index returns the taint's index on a Node, -1 for none. A node has at most one taint with a key
// and an effect.
func (p nodePart) index(n *kube.Node) int {
	return slices.IndexFunc(n.Spec.Taints, func(t kube.Taint) bool { return t.Key == p.key && t.Effect == p.effect })
}

func conditionOf(n *kube.Node, kind string) *kube.Condition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// undoneReason marks a condition that gpuadm has withdrawn. gpuadm leaves it with status Unknown: a
// controller would keep waiting for a missing condition.
const undoneReason = "Undone"

// conditionState returns a condition as a state. A withdrawn condition counts as missing.
func conditionState(c kube.Condition) converge.State {
	if c.Status == kube.Unknown && c.Reason == undoneReason {
		return ""
	}
	return converge.State(strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)))
}

// trueIn says whether a condition's state is true for a boot: its message ends in bootMark.
func trueIn(s converge.State, boot string) bool {
	return conditionFrom("", s).Status == kube.True && strings.HasSuffix(string(s), bootMark(boot))
}

// conditionFrom returns a state as a condition, without times.
func conditionFrom(kind string, s converge.State) kube.Condition {
	if s == "" {
		return kube.Condition{
			Type: kind, Status: kube.Unknown, Reason: undoneReason,
			Message: "gpuadm undo was run: gpuadm does not check the GPUs any more",
		}
	}
	status, rest, _ := strings.Cut(string(s), " ")
	reason, message, _ := strings.Cut(rest, " ")
	return kube.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// needsAccount says that kubelet's identity may not change the part. Source: kubernetes, the
// admission plugin NodeRestriction.
func (p nodePart) needsAccount() bool {
	return p.what == partTaint || p.what == partRecord && p.key == taintRecord || p.what == partLabel && spec.RestrictedLabel(p.key)
}

// Validate refuses a change that no account here may make, before anything is touched.
func (p nodePart) Validate(ctx context.Context, v host.View, _, _ converge.State) error {
	w, err := p.identity(ctx, v)
	if err != nil || !p.needsAccount() || w.serviceAccount(v) != "" {
		return err
	}
	return p.noAccount()
}

// noAccount says that kubelet may not make the change, and that there is no ServiceAccount that
// may.
func (p nodePart) noAccount() error {
	return &trouble.Error{
		What:    fmt.Sprintf("cannot change the %s of the node: no account here may", p.name()),
		Because: []string{"a kubelet sets taints, and labels of Kubernetes' own, at its first registration only, if at all"},
		Try: []string{
			"set kubeconfig in [node] to one of a ServiceAccount that may patch this node, or let gpuadm's DaemonSet do it",
			"or change it by hand: kubectl taint, kubectl label",
		}, Err: noAccount,
	}
}

// TakeOut is converge.Merger's. The condition and the records are gpuadm's alone, whatever their
// value: Report and guard change them, without a line in the journal, after a failure and after a
// boot, and that must not prevent an undo.
func (p nodePart) TakeOut(_ host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	if p.what == partCondition || p.what == partRecord || found == before || found == after {
		return before, nil, nil
	}
	if before == after {
		return found, nil, nil
	}
	return found, []string{fmt.Sprintf("the %s of the node is %q, gpuadm had made it %q", p.name(), stateValue(found), stateValue(after))}, nil
}

// Make changes one part alone.
func (p nodePart) Make(ctx context.Context, h host.Host, to converge.State) error {
	found, err := p.Look(ctx, h)
	if err != nil {
		return err
	}
	return p.MakeAll(ctx, h, []converge.Change{{Ref: p.Ref(), Before: found, After: to}})
}
