// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/images/daemonset"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubePolicy proves images/daemonset/rbac.yaml against the API server: gpuadm changes the Node its pod is on, and
// no other, and cannot with a token that says nothing of a node.
func TestLabKubePolicy(t *testing.T) {
	c := cluster.Run(t)
	objects, err := kube.Documents(daemonset.RBAC)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(objects...)
	const own, other = "/api/v1/nodes/own", "/api/v1/nodes/foreign"
	t.Cleanup(func() { c.Delete(own); c.Delete(other) })
	for _, name := range []string{"own", "foreign"} {
		c.Apply(kube.Object{"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": name}})
	}
	bound := c.Bearer(c.Account("gpuadm", "gpuadm", "own"))
	free := c.Bearer(c.Account("gpuadm", "gpuadm", ""))
	meta := kube.Object{
		"metadata": kube.Object{"labels": kube.Object{"node-role.kubernetes.io/gpu": ""}},
		"spec":     kube.Object{"taints": []kube.Object{{"key": "nvidia.com/gpu", "effect": "NoSchedule"}}},
	}
	status := kube.Object{"status": kube.Object{"conditions": []kube.Object{{"type": "GPUReady", "status": "True"}}}}
	// The API server learns of a new policy a moment after it was made.
	c.Until("the policy holds", func() string {
		if _, err := bound.Merge(t.Context(), other, meta); kube.StatusOf(err) != 403 {
			return "another Node can be changed"
		}
		if _, err := bound.Merge(t.Context(), own, kube.Object{}); err != nil { // nobody may change anything until RBAC is known
			return err.Error()
		}
		return ""
	})
	for _, r := range []struct {
		what   string
		as     *kube.Client
		path   string
		change kube.Object
		status int
	}{
		{"its own Node", bound, own, meta, 200},
		{"its own Node's status", bound, own + "/status", status, 200},
		{"another Node", bound, other, meta, 403},
		{"another Node's status", bound, other + "/status", status, 403},
		{"a Node, with no pod's token", free, own, meta, 403},
		{"a Node's status, with no pod's token", free, own + "/status", status, 403},
	} {
		if _, err := r.as.Merge(t.Context(), r.path, r.change); kube.StatusOf(err) != r.status {
			t.Errorf("%s: %v, want %d", r.what, err, r.status)
		}
	}
	event := kube.Object{
		"apiVersion": "v1", "kind": "Event", "metadata": kube.Object{"generateName": "own.", "namespace": "default"},
		"involvedObject": kube.Object{"kind": "Node", "name": "own"}, "reason": "Test", "type": "Normal",
	}
	if _, err := bound.Create(t.Context(), "/api/v1/namespaces/default/events", event); err != nil {
		t.Errorf("an event: %v", err)
	}
	if err := bound.Delete(t.Context(), own); kube.StatusOf(err) != 403 {
		t.Errorf("it deletes its Node: %v", err)
	}
	if _, err := bound.Get(t.Context(), "/api/v1/namespaces/kube-system/secrets"); kube.StatusOf(err) != 403 {
		t.Errorf("it lists secrets: %v", err)
	}
	// Others are none of the policy's business.
	c.Merge(other, meta)
}
