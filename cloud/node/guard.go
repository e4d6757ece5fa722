// SPDX-FileCopyrightText: The gpuadm authors
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

// NewGuard is the first stage on a node that only a taint keeps pods from: after a boot it puts the startup taint back,
// before anything is looked at, since a reboot leaves a Node's taints as they were. Where kubelet waits for the GPUs there
// is no such taint and nothing to do.
func NewGuard(se *Session) converge.Stage {
	return converge.Stage{
		Name:  "guard",
		About: "keeps pods away until the GPUs are ready in this boot",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			w := whose(s, f)
			if !TellsCluster(s) || !shouldHaveGPU(s, f) || w.later.Until != "" || f.BootID == "" {
				return nil, nil
			}
			startup, on, _, err := startupTaint(s, f)
			if err != nil || !on {
				return nil, err
			}
			return []converge.Want{{
				Thing: guard{startup, se, &w, f.BootID},
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

// guard is whether pods may come to a node. It is one thing, and not the taint and the condition by themselves: one of the
// two tells what is due with the other.
type guard struct {
	taint   spec.Taint
	session *Session
	who     *who
	boot    string
}

// The states of a guard.
const (
	guardOpen  converge.State = "open"  // pods may come, and gpuadm has not checked the GPUs in this boot
	guardShut  converge.State = "shut"  // they may not
	guardReady converge.State = "ready" // they may: the GPUs were found ready in this boot
)

// NewGuardThing builds the thing again from its name, and the session as NewPart does. What it has shut, only the stage ready opens.
func NewGuardThing(name string, s *Session) (converge.Thing, error) {
	rest, ok := strings.CutPrefix(name, "startup taint ")
	i := strings.LastIndex(rest, ":")
	if !ok || i < 0 {
		return nil, fmt.Errorf("internal error: no guard of a node: %q", name)
	}
	key, value, _ := strings.Cut(rest[:i], "=")
	g := guard{taint: spec.Taint{Key: key, Value: value, Effect: rest[i+1:]}, session: s}
	return g, nil
}

func (g guard) Ref() converge.Ref {
	return converge.Ref{Kind: "guard", Name: "startup taint " + g.taint.String()}
}

func (g guard) Look(ctx context.Context, v host.View) (converge.State, error) {
	w, boot := g.who, g.boot
	if w == nil {
		found, err := whoseAgain(ctx, v)
		if err != nil {
			return "", err
		}
		f, err := facts.Gather(ctx, v, facts.Needs{})
		if err != nil {
			return "", err
		}
		w, boot = &found, f.BootID
	}
	if w.later.Until != "" {
		return "", w.later
	}
	n, err := g.session.look(ctx, v, *w)
	if err != nil {
		return "", err
	}
	c := conditionOf(n, GPUReady)
	isTrue := c != nil && c.Status == kube.True
	switch {
	case readyIn(n, boot):
		return guardReady, nil
	case g.part().index(n) >= 0, failureTold(n), foreignReason(n, v.Now()) != "", w.serviceAccount(v) == "" && !isTrue: // then the client that adds the taint goes by the condition
		return guardShut, nil
	}
	return guardOpen, nil
}

// readyIn says whether the GPUs were found ready in a boot.
func readyIn(n *kube.Node, boot string) bool {
	c := conditionOf(n, GPUReady)
	return c != nil && c.Status == kube.True && strings.HasSuffix(c.Message, bootMark(boot))
}

// failureTold says whether the taint of a failure keeps pods off. The startup taint beside it would have cluster-autoscaler take
// the node for one that is starting, at each further try.
func failureTold(n *kube.Node) bool {
	failed := failureTaint()
	p := nodePart{what: "taint", key: failed.Key, effect: failed.Effect}
	return p.of(n) == valueState(failed.Value)
}

func (g guard) part() nodePart {
	return nodePart{what: "taint", key: g.taint.Key, effect: g.taint.Effect, session: g.session}
}

// Make shuts: the taint first, then the condition, which was true of another boot.
func (g guard) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != guardShut {
		return nil // nothing opens it but the stage ready
	}
	w := g.who
	if w == nil {
		found, err := whoseAgain(ctx, h)
		if err != nil {
			return err
		}
		w = &found
	}
	n, err := g.session.look(ctx, h, *w)
	if err != nil {
		return err
	}
	var edits []partEdit
	if p := g.part(); w.serviceAccount(h) != "" && p.index(n) < 0 {
		edits = append(edits, partEdit{p, "", valueState(g.taint.Value)})
		if e, due := recordTaint(n, g.taint, g.session); due {
			edits = append(edits, e)
		}
	}
	if c := conditionOf(n, GPUReady); c != nil && c.Status == kube.True {
		p := nodePart{what: "condition", key: GPUReady, session: g.session}
		edits = append(edits, partEdit{p, p.of(n), "False " + newBootReason + " gpuadm has not checked the GPUs since this boot"})
	}
	return g.session.patch(ctx, h, *w, edits)
}
