// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
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
func NewGuard(se *Session) converge.Stage {
	return converge.Stage{
		Name:  "guard",
		About: "keeps pods away until the GPUs are ready in this boot",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			w := whose(s, f)
			if !TellsCluster(s) || !shouldHaveGPU(s, f) || w.later.Until != "" || w.boot == "" {
				return nil, nil
			}
			startup, on, _, err := startupTaint(s, f)
			if err != nil || !on {
				return nil, err
			}
			return []converge.Want{{
				Thing: newGuard(startup, se, &w),
				To: func(found converge.State) (converge.State, error) {
					if found == guardOpen {
						return guardShut, nil
					}
					return found, nil
				},
				Why: "gpuadm has not checked the GPUs since this boot", Section: nodeSection(s),
				Keeps: "the node keeps the taint " + startup.String() + ", until " + trouble.Command("apply") + " finds that the GPUs are ready",
			}}, nil
		},
		Needs: func(s spec.Spec) facts.Needs { return readyNeeds(s, facts.Needs{}) },
	}
}

// guard decides whether pods may start on a node. It is one thing for the taint and the condition,
// since each depends on the other.
type guard struct {
	taint spec.Taint
	part  nodePart // of the taint
}

func newGuard(t spec.Taint, s *Session, w *who) guard {
	return guard{t, nodePart{what: partTaint, key: t.Key, effect: t.Effect, session: s, who: w}}
}

// The states of a guard.
const (
	guardOpen  converge.State = "open"  // pods may start, but gpuadm has not checked the GPUs in this boot
	guardShut  converge.State = "shut"  // pods may not start
	guardReady converge.State = "ready" // pods may start: gpuadm has found the GPUs ready in this boot
)

// NewGuardThing builds the thing from its name and a session, like NewPart. Only stage ready opens
// what the guard has shut.
func NewGuardThing(name string, s *Session) (converge.Thing, error) {
	text, ok := strings.CutPrefix(name, "startup taint ")
	t := parsedTaint(text)
	if !ok || t.Effect == "" {
		return nil, fmt.Errorf("internal error: no guard of a node: %q", name)
	}
	return newGuard(t, s, nil), nil
}

func (g guard) Ref() converge.Ref {
	return converge.Ref{Kind: "guard", Name: "startup taint " + g.taint.String()}
}

func (g guard) Look(ctx context.Context, v host.View) (converge.State, error) {
	w, err := g.part.identity(ctx, v)
	if err != nil {
		return "", err
	}
	if w.later.Until != "" {
		return "", w.later
	}
	n, err := g.part.session.look(ctx, v, w)
	if err != nil {
		return "", err
	}
	c := conditionOf(n, GPUReady)
	isTrue := c != nil && c.Status == kube.True
	switch {
	case readyIn(n, w.boot):
		return guardReady, nil
	case g.part.index(n) >= 0, failureTold(n), foreignReason(n, v.Now()) != "", w.serviceAccount(v) == "" && !isTrue: // then the client that adds the taint goes by the condition
		return guardShut, nil
	}
	return guardOpen, nil
}

// readyIn says whether the GPUs were found ready in a boot.
func readyIn(n *kube.Node, boot string) bool {
	return trueIn(nodePart{what: partCondition, key: GPUReady}.of(n), boot)
}

// failureTold says whether the taint of a failure keeps pods off. With the startup taint beside it,
// cluster-autoscaler would count the node as starting at each retry.
func failureTold(n *kube.Node) bool {
	failed := failureTaint()
	p := nodePart{what: partTaint, key: failed.Key, effect: failed.Effect}
	return p.of(n) == valueState(failed.Value)
}

// Make shuts the node: first the taint, then the condition, which is from another boot.
func (g guard) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != guardShut {
		return nil // only the stage ready opens it
	}
	w, err := g.part.identity(ctx, h)
	if err != nil {
		return err
	}
	n, err := g.part.session.look(ctx, h, w)
	if err != nil {
		return err
	}
	var edits []partEdit
	if w.serviceAccount(h) != "" && g.part.index(n) < 0 {
		edits = append(edits, partEdit{g.part, "", valueState(g.taint.Value)})
		if e, due := recordTaint(n, g.taint, g.part.session); due {
			edits = append(edits, e)
		}
	}
	if c := conditionOf(n, GPUReady); c != nil && c.Status == kube.True {
		p := nodePart{what: partCondition, key: GPUReady}
		edits = append(edits, partEdit{p, p.of(n), "False " + newBootReason + " gpuadm has not checked the GPUs since this boot"})
	}
	return g.part.session.patch(ctx, h, w, edits)
}
