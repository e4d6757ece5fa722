// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// joined is the readiness of the node, as kubelet has reported it in this boot: until then the API
// server shows the last boot's report. It is a Follower, so undo restores nothing.
type joined struct{ nodeAsk }

const isReady = "ready"

// WaitReady wants the node to be ready in this boot.
func WaitReady(session *Session, s spec.Spec, f facts.Facts, name, kubeconfig string) converge.Want {
	return converge.Want{
		Thing: joined{newNodeAsk(session, s, f, name, kubeconfig)},
		Why:   "kubelet says so, in this boot",
		To:    func(converge.State) (converge.State, error) { return isReady, nil },
	}
}

// NewJoined builds the thing for undo, which does nothing with it.
func NewJoined(name string) converge.Thing {
	return joined{nodeAsk{identity: identity{node: name}}}
}

func (j joined) Ref() converge.Ref { return converge.Ref{Kind: "joined", Name: j.node} }

func (j joined) Look(ctx context.Context, v host.View) (converge.State, error) {
	if j.kubelet == "" {
		return isReady, nil
	}
	n, err := j.get(ctx, v, j.session.look)
	if err != nil {
		return "", err
	}
	if Unready(n, j.bootID) != "" {
		return "not ready", nil
	}
	return isReady, nil
}

func (j joined) Make(ctx context.Context, h host.Host, _ converge.State) error {
	return j.wait(ctx, h, readyPatience, func(n *kube.Node) string {
		return Unready(n, j.bootID)
	})
}

// Affected returns the state found.
func (j joined) Affected(found converge.State, _ converge.Change) converge.State {
	return found
}

// Current returns ready.
func (j joined) Current(converge.State) converge.State { return isReady }

// Unready says why a node is not ready in this boot, "" if it is.
func Unready(n *kube.Node, bootID string) string {
	if n == nil {
		return "the cluster has no node of this name"
	}
	c := conditionOf(n, "Ready")
	switch {
	case c == nil:
		return "it does not say whether it is ready"
	case n.Status.NodeInfo.BootID != bootID && bootID != "":
		return "kubelet has not said how it is since the last boot"
	case c.Status == kube.True:
		return ""
	}

	return "it is not ready: " + trouble.OneLine(c.Reason+": "+c.Message)
}
