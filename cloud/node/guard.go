// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NewGuard is the first stage on a node where only a taint keeps pods off. After a boot it restores
// the startup taint before the other stages look, since a reboot does not change a Node's taints.
// Where kubelet waits for the GPUs there is no such taint and nothing to do.
func NewGuard(session *Session) converge.Stage {
	return converge.Stage{
		Name:  "guard",
		About: "keeps pods away until the GPUs are ready in this boot",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			return guardWants(session, s, f)
		},
		Needs: func(s spec.Spec) facts.Needs { return readyNeeds(s, facts.Needs{}) },
	}
}

func guardWants(session *Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	id := identityOf(s, f)
	if !ReportsToCluster(s) || !shouldHaveGPU(s, f) || id.later.Until != "" || id.bootID == "" {
		return nil, nil
	}
	startup, _, err := startupTaint(s, f)
	if err != nil || startup.Key == "" {
		return nil, err
	}

	keeps := "the node keeps the taint " + startup.String()
	return []converge.Want{{
		Thing: newGuard(startup, session, &id),
		To: func(found converge.State) (converge.State, error) {
			if found == guardOpen {
				return guardShut, nil
			}
			return found, nil
		},
		Why:      "gpuadm has not checked the GPUs since this boot",
		Section:  nodeSection(s),
		UndoOnly: keeps + ", until " + trouble.Command("apply") + " finds that the GPUs are ready",
	}}, nil
}

// guard decides whether pods may start on a node. It is one thing for the taint and the condition,
// since each depends on the other.
type guard struct {
	taint   spec.Taint
	part    nodePart // of the taint
	rebuilt bool     // from the journal, for an undo
}

func newGuard(t spec.Taint, session *Session, id *identity) guard {
	part := taintPart(t)
	part.session = session
	part.identity = id
	return guard{taint: t, part: part}
}

// The states of a guard.
const (
	guardOpen  converge.State = "open"  // pods may start, but gpuadm has not checked the GPUs in this boot
	guardShut  converge.State = "shut"  // pods may not start
	guardReady converge.State = "ready" // pods may start: gpuadm has found the GPUs ready in this boot
)

// NewGuardThing builds the thing from its name and a session, like NewPart. Stage ready opens what
// the guard has shut, and so does an undo.
func NewGuardThing(name string, session *Session) (converge.Thing, error) {
	text, ok := strings.CutPrefix(name, "startup taint ")
	t := parsedTaint(text)
	if !ok || t.Effect == "" {
		return nil, fmt.Errorf("internal error: no guard of a node: %q", name)
	}
	g := newGuard(t, session, nil)
	g.rebuilt = true
	return g, nil
}

func (g guard) Ref() converge.Ref {
	return converge.Ref{Kind: "guard", Name: "startup taint " + g.taint.String()}
}

func (g guard) Look(ctx context.Context, v host.View) (converge.State, error) {
	if g.rebuilt {
		return g.lookForUndo(ctx, v)
	}

	id, err := g.part.identityOn(ctx, v)
	if err != nil {
		return "", err
	}
	if id.later.Until != "" {
		return "", id.later
	}

	n, err := g.part.session.look(ctx, v, id)
	if err != nil {
		return "", err
	}
	if err := id.refuseOtherName(ctx, v, n); err != nil {
		return "", err
	}

	// The taint of a failure suffices. If the node had the startup taint too, cluster-autoscaler
	// would count it as starting at each retry.
	switch {
	case readyIn(n, id.bootID):
		return guardReady, nil
	case g.hasTaint(n), hasOwnTaint(n, failureTaint()), foreignReason(n, v.Now()) != "":
		return guardShut, nil
	case id.serviceAccount(v) == "" && !isReadyTrue(n):
		return guardShut, nil // the client that adds the taint goes by the condition
	}

	return guardOpen, nil
}

// lookForUndo returns guardShut if the Node has taints of gpuadm's, or their record. A machine that
// is not in a cluster has no Node, and so neither.
func (g guard) lookForUndo(ctx context.Context, v host.View) (converge.State, error) {
	id, err := g.part.identityOn(ctx, v)
	if err != nil {
		return "", err
	}
	if id.later.Until == UntilJoined {
		return guardOpen, nil
	}
	if id.later.Until != "" {
		return "", id.later
	}

	n, err := g.part.session.look(ctx, v, id)
	if errors.Is(err, notRegistered) {
		return guardOpen, nil
	}
	if err != nil {
		return "", err
	}

	if len(g.ownTaints(n)) > 0 || n.Annotations[taintRecord] != "" {
		return guardShut, nil
	}
	return guardOpen, nil
}

func (g guard) hasTaint(n *kube.Node) bool { return g.part.stateOn(n) != "" }

// ownTaints returns the taints by which gpuadm keeps pods off: the startup taint, and a failure's.
func (g guard) ownTaints(n *kube.Node) []spec.Taint {
	return slices.DeleteFunc([]spec.Taint{g.taint, failureTaint()}, func(t spec.Taint) bool {
		return !hasOwnTaint(n, t)
	})
}

// hasOwnTaint reports whether the Node has a taint of gpuadm's: one with gpuadm's value.
func hasOwnTaint(n *kube.Node, t spec.Taint) bool {
	return taintPart(t).stateOn(n) == valueState(t.Value)
}

// isReadyTrue reports whether the condition GPUReady is true, in this boot or from another.
func isReadyTrue(n *kube.Node) bool {
	c := conditionOf(n, GPUReady)
	return c != nil && c.Status == kube.True
}

// Make shuts the node: first the taint, then the condition, which is from another boot. For an undo
// Make takes off what keeps pods away, and withdraws the condition.
func (g guard) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != guardShut && !g.rebuilt {
		return nil // only the stage ready opens it
	}
	id, err := g.part.identityOn(ctx, h)
	if err != nil {
		return err
	}
	n, err := g.part.session.look(ctx, h, id)
	if err != nil {
		return err
	}

	if to != guardShut {
		return g.part.session.patch(ctx, h, id, g.openingEdits(n))
	}

	var edits []partEdit
	if id.serviceAccount(h) != "" && !g.hasTaint(n) {
		edits = append(edits, editOf(n, g.part, valueState(g.taint.Value)))
		if record, due := recordTaints(n, g.taint); due {
			edits = append(edits, record)
		}
	}

	if isReadyTrue(n) {
		const unchecked = "False " + newBootReason + " gpuadm has not checked the GPUs since this boot"
		edits = append(edits, editOf(n, conditionPart(), unchecked))
	}
	return g.part.session.patch(ctx, h, id, edits)
}

// openingEdits take off the taints and their record, and withdraw the condition.
func (g guard) openingEdits(n *kube.Node) []partEdit {
	edits := []partEdit{editOf(n, nodePart{what: partRecord, key: taintRecord}, "")}
	for _, t := range g.ownTaints(n) {
		edits = append(edits, editOf(n, taintPart(t), ""))
	}
	c := conditionOf(n, GPUReady)
	if c != nil && isOwnReason(c.Reason) {
		edits = append(edits, editOf(n, conditionPart(), ""))
	}
	return edits
}

// Leaves is converge.Leaver's.
func (g guard) Leaves(ctx context.Context, v host.View, _, _ converge.State) string {
	id, err := g.part.identityOn(ctx, v)
	if err != nil {
		return ""
	}
	why := g.part.session.lacksAccount(ctx, v, id)
	n, err := g.part.session.look(ctx, v, id)
	if why == "" || err != nil {
		return ""
	}

	var commands []string
	for _, t := range g.ownTaints(n) {
		commands = append(commands, removeTaintCommand(n.Name, t))
	}
	if n.Annotations[taintRecord] != "" {
		record := nodePart{what: partRecord, key: taintRecord}
		commands = append(commands, record.command(n.Name, ""))
	}
	return leftToOperator(why, commands)
}
