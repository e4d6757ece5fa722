// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeAutoscalers: the API server takes the NodePools of docs/examples by Karpenter's own
// schemas, and a node that registers as Karpenter or cluster-autoscaler have it register is left
// with the taints that stay: gpuadm takes the startup taint off once the GPUs are ready.
// Sources: aws/karpenter-provider-aws, pkg/apis/crds, and pkg/providers/amifamily/resolver.go;
// kubernetes/autoscaler, cluster-autoscaler/utils/taints/taints.go (StartupTaintPrefix,
// IgnoreTaintPrefix), and its FAQ, "startup taints".
func TestLabKubeAutoscalers(t *testing.T) {
	t.Parallel()
	plane := &kube.Shared{}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	pool := karpenterPool(c)
	stays := []string{"nvidia.com/gpu=present:NoSchedule"}
	must.That(t, slices.Equal(kube.Taints(taintsOf(pool, "taints")), stays),
		"the NodePool has the taints %v", kube.At(pool, "spec", "template", "spec", "taints"))

	n := bootGPU(t, c, "scaled", "bookworm")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	c.Apply(policyObjects(t, labKeys+` "ignore-taint.cluster-autoscaler.kubernetes.io/gpu",`)...)
	const spec = "[runtime]\n[node]\n"
	unregistered := kube.Object{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
	for _, r := range []struct {
		by     string
		spec   string
		taints []kube.Object
	}{
		{
			"Karpenter", spec,
			slices.Concat([]kube.Object{unregistered},
				kube.List(pool, "spec", "template", "spec", "taints"), kube.List(pool, "spec",
					"template", "spec", "startupTaints")),
		},
		{"cluster-autoscaler", spec, []kube.Object{gpuTaint("nvidia.com/gpu"), pending("startup-taint")}},
		{
			"cluster-autoscaler, by its older prefix",
			spec + "startup_taint = \"ignore-taint.cluster-autoscaler.kubernetes.io/gpu=pending:NoSchedule\"\n",
			[]kube.Object{gpuTaint("nvidia.com/gpu"), pending("ignore-taint")},
		},
	} {
		t.Log(r.by)
		n.registersWith(r.taints)
		n.Ready()
		n.registeredWith(r.taints)
		n.agent(r.spec)
		n.c.Until("the startup taint is off", func() string {
			n.karpenterRegisters()
			if taints := kube.Taints(n.Object()); !slices.Equal(taints, stays) {
				return fmt.Sprintf("the taints are %v, want %v", taints, stays)
			}
			return ""
		})
		n.condition("True")

		n.undone(removal(t)[0])
		taints := kube.Taints(n.Object())
		check.That(t, slices.Equal(taints, stays), "after undo the taints are %v", taints)
		c.Delete("/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm-" + n.Name)
		n.podGone()
		n.Must("sh", "-c", removal(t)[1])
		n.Must("systemctl", "stop", "kubelet.service")
		c.Delete("/api/v1/nodes/" + n.Name)
	}
}

// pending is a startup taint of one of cluster-autoscaler's prefixes.
func pending(prefix string) kube.Object {
	return kube.Object{
		"key": prefix + ".cluster-autoscaler.kubernetes.io/gpu", "value": "pending",
		"effect": "NoSchedule",
	}
}

// taintsOf makes a list of a NodePool the taints of a Node.
func taintsOf(pool kube.Object, list string) kube.Object {
	return kube.Object{"spec": kube.Object{"taints": kube.At(pool, "spec", "template", "spec", list)}}
}

// karpenterPool has the API server judge the examples by Karpenter's schemas, which refuse a field
// that they do not know, and returns the NodePool for EKS.
func karpenterPool(c *kube.T) (pool kube.Object) {
	c.Helper()
	kinds := must.Get(kube.Karpenter(c.Context()))(c)
	c.Apply(kinds...)
	for _, kind := range kinds {
		name := kube.Text(kind, "metadata", "name")
		c.Until("the API server serves "+name, func() string {
			is := kube.Condition(c.Get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name),
				"Established")
			if is["status"] != "True" {
				return fmt.Sprint(is)
			}
			return ""
		})
	}

	judged := 0
	for _, cloud := range []string{"aks", "eks"} {
		text := must.Get(os.ReadFile(filepath.Join(lab.Source(), "docs/examples", cloud,
			"karpenter.yaml")))(c)
		for _, o := range must.Get(kube.Documents(text))(c) {
			if strings.HasPrefix(kube.Text(o, "apiVersion"), "karpenter.azure.com/") {
				c.Logf("%s is not judged: its provider is in no module of Go", o["kind"])
				continue
			}
			check.OK(c, c.Admin.DryRun(c.Context(), o))
			judged++
			if o["kind"] == "NodePool" {
				pool = o
			}
		}
	}

	check.Equal(c, judged, 3, "objects that were judged")

	wrong := must.Get(kube.Documents([]byte("{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: wrong}, spec: {template: {spec: {" +
		"nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}, requirements: [], startupTaint: []}}}}")))(c)
	err := c.Admin.DryRun(c.Context(), wrong...)
	check.That(c, err != nil && strings.Contains(err.Error(), "startupTaint"),
		"a field that is none passes: %v", err)
	return pool
}

// registersWith has a kubelet register its node again, with these taints.
func (n gpuHost) registersWith(taints []kube.Object) {
	n.t.Helper()
	n.Kubeadm(kube.Kubeadm{
		Token:  n.c.Token(),
		Config: kube.Object{"registerWithTaints": taints},
	})
	n.Must("systemctl", "start", "kubelet.service")
}

// registeredWith wants the node to have registered with these taints.
func (n gpuHost) registeredWith(taints []kube.Object) {
	n.t.Helper()
	has := kube.Taints(n.Object())
	for _, taint := range taints {
		text := fmt.Sprint(taint["key"], "=", taint["value"], ":", taint["effect"])
		text = strings.Replace(text, "=<nil>", "", 1)
		must.That(n.t, slices.Contains(has, text), "the node registered with %v, not with %s", has, text)
	}
}

// karpenterRegisters does what Karpenter does with a node that it has found.
// Source: kubernetes-sigs/karpenter, pkg/controllers/nodeclaim/lifecycle/registration.go (syncNode).
func (n gpuHost) karpenterRegisters() {
	n.t.Helper()
	o := n.Object()
	spec := o["spec"].(kube.Object)
	taints := kube.List(spec, "taints")
	left := slices.DeleteFunc(slices.Clone(taints),
		func(t kube.Object) bool { return t["key"] == "karpenter.sh/unregistered" })
	if len(left) == len(taints) {
		return
	}
	// With the version in it what is older is a conflict, and is tried again.
	_, _ = n.c.Admin.Merge(n.t.Context(), "/api/v1/nodes/"+n.Name, kube.Object{
		"metadata": kube.Object{
			"resourceVersion": kube.Text(o, "metadata", "resourceVersion"),
			"labels":          kube.Object{"karpenter.sh/registered": "true"},
		},
		"spec": kube.Object{"taints": left},
	})
}
