// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Pods lists the pods of a node from the server's cache: version 0 costs etcd nothing, and the
// cache has an index by node.
func (c *Client) Pods(ctx context.Context, node string) ([]Pod, error) {
	var list struct{ Items []Pod }
	pods := call{
		what:  "the pods of node " + node,
		right: "list pods",
		path:  "/api/v1/pods",
		into:  &list,
	}
	err := c.do(ctx, ofNode(pods, node))
	return list.Items, err
}

// ofNode returns a call that lists a node's objects from the server's cache.
func ofNode(r call, node string) call {
	r.verb = "list"
	r.method = http.MethodGet
	r.names = []string{node}
	r.query = url.Values{
		"fieldSelector":   {"spec.nodeName=" + node},
		"resourceVersion": {"0"},
	}
	return r
}

// IsDevicePlugin reports whether a pod has the name of a device plugin for GPUs. Those of network
// cards are no sign: sriov-device-plugin, and aws-efa-k8s-device-plugin, which ends again and again
// on a node without EFA. The plugin's chart names two other pods after it.
// Sources: https://github.com/aws/eks-charts/issues/1239;
// https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin;
// https://github.com/Project-HAMi/HAMi (hami-device-plugin);
// https://github.com/volcano-sh/devices (volcano-device-plugin);
// deployments/helm/nvidia-device-plugin in https://github.com/NVIDIA/k8s-device-plugin.
func (p Pod) IsDevicePlugin() bool {
	isNamed := func(word string) bool { return strings.Contains(p.Name, word) }
	isOther := slices.ContainsFunc([]string{"-gpu-feature-discovery-", "-mps-control-daemon-"}, isNamed)
	return isNamed("device-plugin") && p.isOfGPUs() && !isOther
}

// OffersGPUs reports whether a pod has the name of a device plugin or a DRA driver for GPUs. A DRA
// driver's controller and its webhook offer none.
// Source: manifests/state-dra-driver in https://github.com/NVIDIA/gpu-operator.
func (p Pod) OffersGPUs() bool {
	isDRA := strings.Contains(p.Name, "dra-driver") && strings.Contains(p.Name, "kubelet-plugin")
	return p.IsDevicePlugin() || p.isOfGPUs() && isDRA
}

// isOfGPUs reports whether a pod's name says that it is of GPUs.
func (p Pod) isOfGPUs() bool {
	isNamed := func(word string) bool { return strings.Contains(p.Name, word) }
	return slices.ContainsFunc([]string{"nvidia", "gpu", "hami", "volcano"}, isNamed)
}

// Drained says whether kubectl drain evicts a pod: not a DaemonSet's, which would recreate it at
// once, not a static pod, and not a pod that has ended.
// Sources: kubernetes, staging/src/k8s.io/kubectl/pkg/drain/filters.go;
// https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/.
func (p Pod) Drained() bool {
	_, static := p.Annotations["kubernetes.io/config.mirror"]
	ofDaemonSet := slices.ContainsFunc(p.OwnerReferences, Owner.recreates)
	ended := p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
	return !static && !ofDaemonSet && !ended
}

// recreates says whether a pod's owner is a DaemonSet, which starts the pod again on the same node.
func (o Owner) recreates() bool { return o.Controller && o.Kind == "DaemonSet" }

// Evict evicts a pod if its PodDisruptionBudgets allow it. If they do not, the error is Busy, and
// Because names the budget; it is Missing if the pod is gone, and a Conflict if another pod of that
// name has replaced it. For a pod with two budgets the server answers with a Status of 500.
// Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/; kubernetes,
// pkg/registry/core/pod/storage/eviction.go.
func (c *Client) Evict(ctx context.Context, p Pod) error {
	var answer struct{ Status, Message string }
	eviction := map[string]any{
		"apiVersion": "policy/v1",
		"kind":       "Eviction",
		"metadata":   Meta{Name: p.Name, Namespace: p.Namespace},
		"deleteOptions": map[string]any{
			"preconditions": map[string]string{"uid": p.UID},
		},
	}
	r := call{
		verb:   "evict",
		what:   "pod " + p.Namespace + "/" + p.Name,
		right:  "create pods/eviction",
		method: http.MethodPost,
		path:   "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name + "/eviction",
		names:  []string{p.Namespace, p.Name},
		send:   eviction,
		into:   &answer,
	}

	if err := c.do(ctx, r); err != nil || answer.Status != "Failure" {
		return err
	}
	return c.fail(r, &fault{
		why:   Busy,
		cause: fmt.Errorf("the API server says: %s", answer.Message),
	}, 0)
}
