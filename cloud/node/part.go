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
	what     partKind
	key      string // of the label, the taint or the record's annotation, or the condition's type
	effect   string // of the taint
	session  *Session
	rebuilt  bool      // from the journal
	identity *identity // nil: Look determines it on the machine

	// waits returns, by the Node's state, why the part cannot be made yet: a trouble.Wait. A nil
	// waits never waits.
	waits partWait
}

// A partWait says, by the Node's state, why a part cannot be made yet.
type partWait func(context.Context, host.View, *kube.Node) error

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
func NewPart(name string, session *Session) (converge.Thing, error) {
	p, err := parsedPart(name)
	if err != nil {
		return nil, err
	}
	p.session = session
	p.rebuilt = true
	return p, nil
}

// parsedPart reads the name of a part.
func parsedPart(name string) (nodePart, error) {
	kind, key, _ := strings.Cut(name, " ")
	p := nodePart{what: partKind(kind), key: key}
	if p.what == partTaint {
		i := strings.LastIndex(key, ":")
		if i < 0 {
			return nodePart{}, fmt.Errorf("internal error: a taint without an effect: %q", name)
		}
		p.key = key[:i]
		p.effect = key[i+1:]
	}

	kinds := []partKind{partLabel, partTaint, partCondition, partRecord}
	if !slices.Contains(kinds, p.what) || p.key == "" {
		return nodePart{}, fmt.Errorf("internal error: no part of a node: %q", name)
	}
	return p, nil
}

// taintPart is the Node's taint with this key and effect.
func taintPart(t spec.Taint) nodePart {
	return nodePart{what: partTaint, key: t.Key, effect: t.Effect}
}

// conditionPart is the Node's condition GPUReady.
func conditionPart() nodePart { return nodePart{what: partCondition, key: GPUReady} }

// taintName is the name of a taint's part.
func taintName(t spec.Taint) string { return taintPart(t).name() }

func (p nodePart) Ref() converge.Ref { return converge.Ref{Kind: "node", Name: p.name()} }

func (p nodePart) name() string {
	if p.what == partTaint {
		return "taint " + p.key + ":" + p.effect
	}
	return string(p.what) + " " + p.key
}

// identityOn returns the part's identity, or determines it on the machine.
func (p nodePart) identityOn(ctx context.Context, v host.View) (identity, error) {
	if p.identity != nil {
		return *p.identity, nil
	}
	return p.session.currentIdentity(ctx, v)
}

// Look returns the value of a label or a taint, with "" in quotes for an empty value; or the
// condition's status, reason and message. To undo, a Node that is gone, or whose cluster the
// machine has left, has no part of gpuadm's.
func (p nodePart) Look(ctx context.Context, v host.View) (converge.State, error) {
	id, err := p.identityOn(ctx, v)
	if err != nil {
		return "", err
	}
	switch {
	case id.later.Until == UntilJoined && p.rebuilt:
		return "", nil
	case id.later.Until != "":
		return "", id.later
	}

	n, err := p.session.look(ctx, v, id)
	if errors.Is(err, notRegistered) && p.rebuilt {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !p.rebuilt { // an undo takes gpuadm's parts off the Node that has them
		if err := id.refuseOtherName(ctx, v, n); err != nil {
			return "", err
		}
	}

	if p.waits != nil {
		if err := p.waits(ctx, v, n); err != nil {
			p.session.forget() // the next look must ask again
			return "", err
		}
	}

	return p.stateOn(n), nil
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

// stateOn returns the state of the part on a Node.
func (p nodePart) stateOn(n *kube.Node) converge.State {
	switch p.what {
	case partLabel:
		if value, ok := n.Labels[p.key]; ok {
			return valueState(value)
		}
	case partTaint:
		if i := p.indexIn(n.Spec.Taints); i >= 0 {
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

// indexIn returns the taint's index in a Node's list, -1 for none. A node has at most one taint
// with a key and an effect.
func (p nodePart) indexIn(taints []kube.Taint) int {
	return slices.IndexFunc(taints, func(t kube.Taint) bool {
		return t.Key == p.key && t.Effect == p.effect
	})
}

// needsAccount reports whether kubelet's identity may not change the part. Source: kubernetes, the
// admission plugin NodeRestriction.
func (p nodePart) needsAccount() bool {
	switch p.what {
	case partTaint:
		return true
	case partRecord:
		return p.key == taintRecord
	case partLabel:
		return spec.RestrictedLabel(p.key)
	}
	return false
}

// Validate refuses a change that no account here may make, before anything is touched.
func (p nodePart) Validate(ctx context.Context, v host.View, _, _ converge.State) error {
	id, err := p.identityOn(ctx, v)
	if err != nil || !p.needsAccount() || id.serviceAccount(v) != "" {
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
		},
		Err: noAccount,
	}
}

// TakeOut is converge.Merger's. The condition and the records are gpuadm's alone, whatever their
// value: Report and guard change them, without a line in the journal, after a failure and after a
// boot, and that must not prevent an undo.
func (p nodePart) TakeOut(
	_ host.View, found, before, after converge.State,
) (rest converge.State, left []string, err error) {
	if p.what == partCondition || p.what == partRecord || found == before || found == after {
		return before, nil, nil
	}
	if before == after {
		return found, nil, nil
	}
	const text = "the %s of the node is %q, gpuadm had made it %q"
	return found, []string{fmt.Sprintf(text, p.name(), stateValue(found), stateValue(after))}, nil
}

// Make changes one part alone.
func (p nodePart) Make(ctx context.Context, h host.Host, to converge.State) error {
	found, err := p.Look(ctx, h)
	if err != nil {
		return err
	}
	return p.MakeAll(ctx, h, []converge.Change{{
		Ref:    p.Ref(),
		Before: found,
		After:  to,
	}})
}

// MakeAll changes parts of the Node together, with one PATCH by each identity. A patch names the
// version that was read, so it changes all or nothing, and never another client's change.
func (p nodePart) MakeAll(ctx context.Context, h host.Host, changes []converge.Change) error {
	id, err := p.identityOn(ctx, h)
	if err != nil {
		return err
	}
	if id.later.Until != "" {
		return id.later
	}

	var edits []partEdit
	for _, c := range changes {
		part, err := parsedPart(c.Name)
		if err != nil {
			return err
		}
		part.rebuilt = p.rebuilt
		edits = append(edits, partEdit{
			nodePart: part,
			before:   c.Before,
			after:    c.After,
		})
	}

	return p.session.patch(ctx, h, id, edits)
}
