// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/kube"
)

// registration is the API server's view of this machine.
type registration struct {
	name      string
	node      *kube.Node // nil where the cluster has none
	pods      []kube.Pod // on it
	listsPods bool       // whether kubelet may list them

	refused error // why the server or kubelet refuses the other
	stalls  error // the server's answer does not end
}

// runs reports whether a kubelet that has joined runs, with credentials that may be valid.
func (m *Machine) runs() bool {
	k := m.Basics().Kubelet
	if !k.Joined || k.Kubeconfig == "" || k.Active != "active" {
		return false
	}
	return k.Expired.IsZero() || !isOutside(k, m.View.Now())
}

// Registration is what the API server has of this machine. ok is false where kubelet does not run,
// or where the server does not answer in time, or refuses.
func (m *Machine) Registration() (registration, bool) {
	r, ok := m.asked()
	return r, ok && r.refused == nil && r.stalls == nil
}

// asked asks the API server with kubelet's own identity.
func (m *Machine) asked() (registration, bool) {
	if !m.runs() {
		return registration{}, false
	}
	k := m.Basics().Kubelet
	return m.registered.read(m, "this machine's Node in the cluster", func() (registration, error) {
		r, err := m.register(k)
		switch {
		case errors.Is(err, kube.Unauthorized), errors.Is(err, kube.Untrusted):
			return registration{refused: err}, nil
		case errors.Is(err, kube.Slow):
			return registration{stalls: err}, nil
		}

		return r, err
	})
}

func (m *Machine) register(k facts.Kubelet) (registration, error) {
	ctx, end := m.soon()
	defer end()
	r := registration{name: k.NodeName}
	c, err := new(kube.Clients).Ask(m.View, kube.From{Kubeconfig: k.Kubeconfig})
	if err != nil {
		return r, err
	}
	c = c.Within(0) // one try
	r.node, err = c.CachedNode(ctx, r.name)
	if errors.Is(err, kube.Missing) || errors.Is(err, kube.Forbidden) {
		// The command line does not say how a cloud names the Node; the server knows it. Where it
		// knows no such question (before Kubernetes 1.28), the name stays unproven, and the fault
		// is not named.
		is, whoErr := c.Whoami(ctx)
		name, proven := strings.CutPrefix(is.Username, nodeUser)
		if whoErr != nil || !proven {
			return r, err
		}
		r.name = name
		r.node, err = c.Node(ctx, name)
	}

	if errors.Is(err, kube.Missing) {
		return registration{name: r.name}, nil
	} else if err != nil {
		return r, err
	}

	r.pods, err = c.Pods(ctx, r.name)
	r.listsPods = err == nil
	if err != nil && !errors.Is(err, kube.Forbidden) {
		m.cannotRead("this machine's pods in the cluster", err)
	}
	return r, nil
}

// soon bounds what waits for the API server, and for the program that gets kubelet's credentials. A
// server that no packet reaches is not waited for as long.
func (m *Machine) soon() (context.Context, context.CancelFunc) {
	left := Wait
	if m.own.Left != nil {
		left = m.own.Left()
	}
	return kube.Soon(m.ctx, left/2, left)
}

// refusedByServer finds a kubelet and an API server that do not trust each other's certificate.
func refusedByServer(m *Machine) []Finding {
	r, ok := m.asked()
	if !ok || r.refused == nil {
		return nil
	}
	k := m.Basics().Kubelet
	return []Finding{{
		Object:  k.Kubeconfig,
		What:    "kubelet's credentials: " + r.refused.Error(),
		Command: "sudo journalctl -u " + k.Unit + " -n 20",
	}}
}

func apiServerStalls(m *Machine) []Finding {
	r, ok := m.asked()
	if !ok || r.stalls == nil {
		return nil
	}
	return []Finding{{What: r.stalls.Error(), Note: true}}
}

// nodeUser begins the user that a kubelet is:
// https://kubernetes.io/docs/reference/access-authn-authz/node/
const nodeUser = "system:node:"
