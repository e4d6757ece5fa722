// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// PolicyCode is in the denial of a key by the policy of images/daemonset/rbac.yaml, and nowhere
// else. Its number is the version of the policy's restrictions: it grows when the policy denies the
// ServiceAccount more.
const PolicyCode = "gpuadm-node-keys-1"

// probeLabel is a label that only the administrators of a cluster may set, on any Node.
const probeLabel = "node-restriction.kubernetes.io/gpuadm-probe"

// ProbePolicy tries, with the ServiceAccount of its own pod, a change of its own Node that the
// policy must deny. It returns nil if the policy denied it; else why the machine must not get the
// account's token: a token with more rights than kubelet's gives a thief of the node more than the
// node. An error says that the cluster did not answer. Nothing is changed.
func ProbePolicy(ctx context.Context, pod host.Host) (*trouble.Error, error) {
	client, err := new(kube.Clients).Do(pod, kube.From{Pod: true})
	if err != nil {
		return nil, err
	}

	account, err := client.Whoami(ctx)
	name := account.Node()
	if err == nil && name != "" {
		err = client.TryLabel(ctx, name, probeLabel, "denied")
	}

	switch {
	case err == nil || errors.Is(err, kube.Missing) && name == "":
		return widePolicy(ctx, client), nil
	case kube.Denied(err, PolicyCode):
		return nil, nil
	case errors.Is(err, kube.Forbidden):
		because, _ := detailsOf(err)
		return &trouble.Error{
			What:    "the DaemonSet's ServiceAccount is not used: it may not change its Node",
			Because: append([]string{err.Error(), kubeletAlone}, because...),
			Try:     []string{applyRBAC},
			Err:     errors.Join(rightLacking, err),
		}, nil
	}

	return nil, err
}

// LacksRight reports whether ProbePolicy could not ask, since the account lacks its rights: that
// says nothing about the policy.
func LacksRight(refused *trouble.Error) bool {
	return refused != nil && errors.Is(refused, rightLacking)
}

const (
	kubeletAlone = "kubelet's identity is used: it sets labels and the condition, and no taints"
	applyRBAC    = "for taints: kubectl apply -f rbac.yaml, of images/daemonset in the same version"
)

// widePolicy returns the trouble that no policy restricts the account.
func widePolicy(ctx context.Context, client *kube.Client) *trouble.Error {
	t := &trouble.Error{
		What: "the DaemonSet's ServiceAccount is not used: no policy restricts it to its own Node and its own keys",
		Because: []string{
			"who steals the token from this node could do more than its kubelet may: set restricted labels, roles and other taints",
			kubeletAlone,
		},
		Try: []string{applyRBAC, "or, if the cluster has another fence: gpuadm daemonset --without-policy"},
		Err: noPolicy,
	}
	if version, err := client.Version(ctx); err == nil && version != "" {
		t.Because = append(t.Because, "the API server is Kubernetes "+version+"; the policy needs 1.30 or newer")
	}

	return t
}
