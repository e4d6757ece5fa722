// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// registered is the existence of the Node object. Kubelet creates it, and undo cannot delete it: a
// node may not delete itself.
type registered struct {
	nodeAsk
	// absent records that the Node was missing when its stage looked first. kubelet may register it
	// before the next look, and still does so because gpuadm started kubelet: the journal has to
	// record that. nil for undo.
	absent *bool
}

const isRegistered = "there"

// WaitRegistered wants kubelet to have registered the node.
func WaitRegistered(session *Session, s spec.Spec, f facts.Facts, name, kubeconfig string) converge.Want {
	return converge.Want{
		Thing: registered{
			nodeAsk: newNodeAsk(session, s, f, name, kubeconfig),
			absent:  new(bool),
		},
		Why:   "kubelet registers it",
		To:    func(converge.State) (converge.State, error) { return isRegistered, nil },
		Keeps: "the cluster still has the node: kubectl delete node " + name + "; pods of DaemonSets that still run here: crictl rmp --all --force",
	}
}

// NewRegistered builds the thing for undo, which leaves the node.
func NewRegistered(name string) converge.Thing {
	return registered{nodeAsk: nodeAsk{identity: identity{node: name}}}
}

func (r registered) Ref() converge.Ref {
	return converge.Ref{Kind: "registered", Name: r.node}
}

func (r registered) Look(ctx context.Context, v host.View) (converge.State, error) {
	if r.kubelet == "" {
		return "", nil
	}
	n, err := r.get(ctx, v, r.session.look)
	missing := errors.Is(err, notRegistered) || err == nil && n == nil
	switch {
	case missing:
		if r.absent != nil {
			*r.absent = true
		}
		return "", nil
	case err != nil:
		return "", err
	case r.absent != nil && *r.absent:
		return "", nil
	}

	return isRegistered, nil
}

func (r registered) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return converge.Stays{Why: "a node may not delete itself"}
	}
	err := r.wait(ctx, h, registerPatience, func(n *kube.Node) string {
		if n == nil {
			return "kubelet has not registered it"
		}
		return ""
	})
	if err == nil && r.absent != nil {
		*r.absent = false
	}
	return err
}
