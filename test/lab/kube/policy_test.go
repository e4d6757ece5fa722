// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/images/daemonset"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// policyRequest is one change of a Node by gpuadm's ServiceAccount, which RBAC alone allows.
type policyRequest struct {
	what string
	edit func(node kube.Object)
	// says is a part of the denial: the key, or what gpuadm may change instead. "" for a request
	// that passes.
	says string
	// at is "/status" for a change by the subresource.
	at string
	// on is "foreign" for another Node than the one that the token's pod is on; free is for a token
	// that no pod is bound to.
	on   string
	free bool
}

func (r policyRequest) node() string { return cmp.Or(r.on, "own") }

const (
	ownNode     = "/api/v1/nodes/own"
	foreignNode = "/api/v1/nodes/foreign"
	neverKey    = "are never allowed [" + node.PolicyCode + "]"
	notListed   = "variable keys of the ValidatingAdmissionPolicy gpuadm-own-node [" + node.PolicyCode + "]"
)

// policyKeys are more keys of the list that an administrator edits, two of them never allowed.
const policyKeys = `"example.com/rack", "rack.example.com/*", "node-role.kubernetes.io/*", "node-restriction.kubernetes.io/tenant",`

// TestLabKubePolicy proves images/daemonset/rbac.yaml against the API server: gpuadm changes the
// Node its pod is on, and of that only what is its own. The same requests without the policy pass,
// all of them: it is the policy that denies.
func TestLabKubePolicy(t *testing.T) {
	c := cluster.Run(t)
	objects := policyObjects(t, policyKeys)
	rights, policy := objects[:len(objects)-2], objects[len(objects)-2:]
	if policy[0]["kind"] != "ValidatingAdmissionPolicy" || policy[1]["kind"] != "ValidatingAdmissionPolicyBinding" {
		t.Fatalf("the file does not end with the policy and its binding: %v, %v", policy[0]["kind"], policy[1]["kind"])
	}
	c.Apply(rights...)
	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	drop := func() {
		c.Delete(policies + "ybindings/gpuadm-own-node")
		c.Delete(policies + "ies/gpuadm-own-node")
	}

	drop()
	t.Cleanup(func() { c.Delete(ownNode); c.Delete(foreignNode) })
	bound := c.Bearer(c.Account("gpuadm", "gpuadm", "own"))
	free := c.Bearer(c.Account("gpuadm", "gpuadm", ""))
	denied, passing := deniedRequests(), passingRequests()
	must.That(t, len(denied) >= 30 && len(passing) >= 10, "%d requests to deny and %d to pass", len(denied), len(passing))
	policyNode(c, "foreign")
	probe := func() string {
		policyNode(c, "own")
		return denialOf(policySend(t, c, bound, policyRequest{edit: label("node-restriction.kubernetes.io/probe", "x")}))
	}

	c.Until("RBAC is known and no policy is in force", probe)
	for _, r := range append(denied, passing...) {
		policyNode(c, r.node())
		check.None(t, denialOf(policySend(t, c, policyToken(r, bound, free), r)), "without the policy, %s: denied:", r.what)
	}

	c.Apply(policy...)
	t.Cleanup(func() { // other tests of this cluster rely on it
		check.OK(t, c.Admin.Apply(context.WithoutCancel(t.Context()), policyObjects(t, labKeys)...))
	})
	c.Until("the policy is in force", func() string {
		if denial := probe(); !strings.Contains(denial, neverKey) {
			return "the probe gets: " + denial
		}
		return ""
	})
	policyNode(c, "foreign")
	for _, r := range append(denied, passing...) {
		if r.says == "" { // what is denied changes nothing
			policyNode(c, r.node())
		}
		denial := denialOf(policySend(t, c, policyToken(r, bound, free), r))
		switch {
		case r.says == "" && denial != "":
			t.Errorf("%s: denied: %s", r.what, denial)
		case r.says != "" && !strings.Contains(denial, r.says):
			t.Errorf("%s: the denial is %q, want %q in it", r.what, denial, r.says)
		}
	}

	t.Logf("%d requests were denied and %d passed; without the policy all passed", len(denied), len(passing))
	policyBeside(c, bound, policies)
}

// releases are the releases of Kubernetes before that of the lab, from the first that has the policy
// on: API servers of their own, or of the nearest that can emulate them. A newer one emulates those
// from three releases before it, 1.31 at the earliest. Source:
// https://kubernetes.io/docs/concepts/cluster-administration/compatibility-version/.
var releases = []struct {
	version string
	server  string   // "" is the lab's
	flags   []string // of the API server
}{
	{"1.30", "v1.30.14", nil},
	{"1.31", "v1.32.13", []string{"--emulated-version=kube=1.31"}},
	{"1.32", "v1.32.13", nil},
	{"1.33", "", []string{"--emulated-version=kube=1.33"}},
	{"1.34", "", []string{"--emulated-version=kube=1.34"}},
}

// TestLabKubePolicyVersions: the API servers of older releases take all manifests without a warning,
// and the policy denies and passes the same there as with the lab's.
func TestLabKubePolicyVersions(t *testing.T) {
	for _, r := range releases {
		t.Run(r.version, func(t *testing.T) {
			plane := &kube.Shared{Release: r.server, Flags: r.flags}
			c := plane.Run(t)
			t.Cleanup(func() {
				check.OK(t, plane.Close())
			})
			is := c.Get("/version")
			minor := cmp.Or(kube.Text(is, "emulationMinor"), kube.Text(is, "minor"))
			says := strings.HasPrefix(r.server, "v1."+minor+".") // before 1.34 none says what it emulates
			must.That(t, says || "1."+minor == r.version, "the API server is that of %v", is)

			c.Apply(policyObjects(t, policyKeys)...)
			for _, cloud := range []string{"eks", "aks", "gke", "onprem"} {
				c.Apply(must.Get(kube.Documents(manifest(t, cloud)))(t)...)
			}
			check.Equal(t, strings.Join(c.Admin.Warnings(), "\n"), "", "the API server warns:")
			warned(c)

			policyNode(c, "foreign")
			bound := c.Bearer(c.Account("gpuadm", "gpuadm", "own"))
			free := c.Bearer(c.Account("gpuadm", "gpuadm", ""))
			c.Until("the policy is in force", func() string {
				policyNode(c, "own")
				denial := denialOf(policySend(t, c, bound, policyRequest{edit: label("node-restriction.kubernetes.io/probe", "x")}))
				if !strings.Contains(denial, neverKey) {
					return "the probe gets: " + denial
				}
				return ""
			})

			requests := append(deniedRequests(), passingRequests()...)
			for _, r := range requests {
				policyNode(c, r.node())
				denial := denialOf(policySend(t, c, policyToken(r, bound, free), r))
				right := denial == "" && r.says == "" || r.says != "" && strings.Contains(denial, r.says)
				check.That(t, right, "%s: the denial is %q, want %q", r.what, denial, r.says)
			}

			t.Logf("%d requests at Kubernetes %s", len(requests), kube.Text(c.Get("/version"), "gitVersion"))
		})
	}
}

// warned wants a warning to be heard where there is one.
func warned(c *kube.T) {
	c.Helper()
	before := len(c.Admin.Warnings())
	_, err := c.Admin.Create(c.Context(), "/api/v1/namespaces/default/pods?dryRun=All", kube.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": kube.Object{"name": "warned"},
		"spec": kube.Object{
			"nodeSelector": kube.Object{"beta.kubernetes.io/arch": "amd64"},
			"containers":   []kube.Object{{"name": "main", "image": lab.PauseImage}},
		},
	})
	must.OK(c, err)
	check.That(c, len(c.Admin.Warnings()) > before, "a label that Kubernetes has given up is taken without a warning")
}

// policyBeside wants the rest of the ServiceAccount's rights as narrow, others unconcerned, and CEL
// that fits the types.
func policyBeside(c *kube.T, bound *kube.Client, policies string) {
	c.Helper()
	event := func(namespace string) kube.Object {
		return kube.Object{
			"apiVersion": "v1", "kind": "Event", "metadata": kube.Object{"generateName": "own.", "namespace": namespace},
			"involvedObject": kube.Object{"kind": "Node", "name": "own"}, "reason": "Test", "type": "Normal",
		}
	}

	for namespace, want := range map[string]int{"default": 200, "kube-system": 403, "gpuadm": 403} {
		_, err := bound.Create(c.Context(), "/api/v1/namespaces/"+namespace+"/events", event(namespace))
		if kube.StatusOf(err) != want {
			c.Errorf("an Event in %s: %v, want %d", namespace, err, want)
		}
	}

	if err := bound.Delete(c.Context(), ownNode); kube.StatusOf(err) != 403 {
		c.Errorf("it deletes its Node: %v", err)
	}
	if _, err := bound.Get(c.Context(), "/api/v1/namespaces/kube-system/secrets"); kube.StatusOf(err) != 403 {
		c.Errorf("it lists secrets: %v", err)
	}
	c.Merge(foreignNode, kube.Object{"metadata": kube.Object{"labels": kube.Object{"node-role.kubernetes.io/gpu": ""}}})
	c.Merge(ownNode, kube.Object{"spec": kube.Object{"unschedulable": nil}})
	if kubelet, err := c.Node("own"); err != nil {
		c.Error(err)
	} else if _, err := kubelet.Merge(c.Context(), ownNode+"/status", kube.Object{"status": kube.Object{"capacity": kube.Object{"nvidia.com/gpu": "8"}}}); err != nil {
		c.Errorf("a kubelet's report: %v", err)
	}

	c.Until("the API server has checked the policy's types", func() string {
		status := kube.At(c.Get(policies+"ies/gpuadm-own-node"), "status", "typeChecking")
		if status == nil {
			return "not yet"
		}
		for _, warning := range kube.List(status, "expressionWarnings") {
			c.Errorf("the policy's types: %v", warning)
		}
		return ""
	})
}

// policyObjects are those of rbac.yaml, with more keys in the list that an administrator edits.
func policyObjects(t testing.TB, more string) []kube.Object {
	t.Helper()
	const first = `"nvidia.com/*",`
	must.That(t, strings.Count(string(daemonset.RBAC), first) == 1, "rbac.yaml has not one %s", first)
	objects := must.Get(kube.Documents([]byte(strings.Replace(string(daemonset.RBAC), first, first+" "+more, 1))))(t)
	return objects
}

// policyNode makes a Node new: one that an administrator has drained and set apart, with all that
// the requests want to change.
func policyNode(c *kube.T, name string) {
	c.Helper()
	path := "/api/v1/nodes/" + name
	if c.Look(path) != nil {
		c.Merge(path, kube.Object{"metadata": kube.Object{"finalizers": nil}})
	}
	c.Delete(path)
	_, err := c.Admin.Create(c.Context(), "/api/v1/nodes", kube.Object{
		"apiVersion": "v1", "kind": "Node",
		"metadata": kube.Object{
			"name": name,
			"labels": kube.Object{
				"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "a", "nvidia.com/gpu.count": "8", "example.com/rack": "r7",
				"node-restriction.kubernetes.io/tenant": "red", "node-role.kubernetes.io/worker": "",
			},
			"annotations": kube.Object{"nvidia.com/gpuadm.labels": "a=b", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		"spec": kube.Object{"unschedulable": true, "taints": []kube.Object{
			{"key": "example.org/quarantine", "value": "yes", "effect": "NoExecute"},
			{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
			{"key": "startup-taint.cluster-autoscaler.kubernetes.io/gpu", "value": "pending", "effect": "NoSchedule"},
		}},
	})
	must.OK(c, err)
	c.Merge(path+"/status", kube.Object{"status": kube.Object{
		"capacity": kube.Object{"cpu": "8"}, "allocatable": kube.Object{"cpu": "8"},
		"conditions": []kube.Object{
			{"type": "Ready", "status": "True", "reason": "KubeletReady"},
			{"type": "MemoryPressure", "status": "False"},
			{"type": node.GPUReady, "status": "False", "reason": "Test"},
		},
		"images": []kube.Object{{"names": []string{"registry.invalid/a:1"}, "sizeBytes": 1}},
	}})
}

func policyToken(r policyRequest, bound, free *kube.Client) *kube.Client {
	if r.free {
		return free
	}
	return bound
}

// policySend makes a request of the current Node: the controllers of the cluster write to it too,
// and then it is sent again.
func policySend(t *testing.T, c *kube.T, as *kube.Client, r policyRequest) error {
	t.Helper()
	path := "/api/v1/nodes/" + r.node()
	for {
		node := c.Get(path)
		if r.edit != nil {
			r.edit(node)
		}
		var ops []kube.Object
		for _, part := range []string{"metadata", "spec", "status"} { // with the version in it: what is older is a conflict
			ops = append(ops, kube.Object{"op": "add", "path": "/" + part, "value": node[part]})
		}
		body, err := json.Marshal(ops)
		must.OK(t, err)
		_, err = as.Do(t.Context(), http.MethodPatch, path+r.at, "application/json-patch+json", body)
		if kube.StatusOf(err) != http.StatusConflict {
			return err
		}
	}
}

// denialOf is what the server says of a denied request; "" of one that passed.
func denialOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func label(key, value string) func(kube.Object) {
	return func(n kube.Object) { kube.At(n, "metadata", "labels").(kube.Object)[key] = value }
}

func noLabel(key string) func(kube.Object) {
	return func(n kube.Object) { delete(kube.At(n, "metadata", "labels").(kube.Object), key) }
}

func annotation(key, value string) func(kube.Object) {
	return func(n kube.Object) {
		kube.At(n, "metadata", "annotations").(kube.Object)[key] = value
	}
}

func noAnnotation(key string) func(kube.Object) {
	return func(n kube.Object) {
		delete(kube.At(n, "metadata", "annotations").(kube.Object), key)
	}
}

// field sets a field of a part of the Node; nil takes it away.
func field(part, key string, value any) func(kube.Object) {
	return func(n kube.Object) {
		if value == nil {
			delete(n[part].(kube.Object), key)
			return
		}
		n[part].(kube.Object)[key] = value
	}
}

func taint(key, effect string) func(kube.Object) {
	return func(n kube.Object) {
		spec := n["spec"].(kube.Object)
		spec["taints"] = append(spec["taints"].([]any), kube.Object{"key": key, "effect": effect})
	}
}

// taintIs sets a field of a taint that is there; "" takes the taint off.
func taintIs(key, what, value string) func(kube.Object) {
	return func(n kube.Object) {
		spec, kept := n["spec"].(kube.Object), []any{}
		for _, t := range kube.List(spec, "taints") {
			if t["key"] == key && what != "" {
				t[what] = value
			}
			if t["key"] != key || what != "" {
				kept = append(kept, t)
			}
		}

		spec["taints"] = kept
	}
}

// condition sets a condition's status; "" takes it away.
func condition(kind, status string) func(kube.Object) {
	return func(n kube.Object) {
		kept := []any{}
		for _, c := range kube.List(n, "status", "conditions") {
			if c["type"] != kind {
				kept = append(kept, c)
			}
		}

		if status != "" {
			kept = append(kept, kube.Object{"type": kind, "status": status})
		}
		n["status"].(kube.Object)["conditions"] = kept
	}
}

func all(edits ...func(kube.Object)) func(kube.Object) {
	return func(n kube.Object) {
		for _, edit := range edits {
			edit(n)
		}
	}
}

// deniedRequests are what a stolen node would ask for. The policy that is in force allows
// node-role.kubernetes.io/* and node-restriction.kubernetes.io/tenant by its list, and denies them
// all the same.
func deniedRequests() []policyRequest {
	const (
		restricted = "node-restriction.kubernetes.io/"
		role       = "node-role.kubernetes.io/"
		quarantine = "example.org/quarantine"
		meta       = "only labels and annotations in the metadata"
		spec       = "only taints in the spec"
		status     = "only the condition nvidia.com/GPUReady"
		own        = "only the Node that its pod runs on"
	)
	ready := condition(node.GPUReady, "True")
	return []policyRequest{
		{what: "a restricted label", edit: label(restricted+"x", "y"), says: restricted + "x of its Node: keys of"},
		{what: "a restricted label of the list, changed", edit: label(restricted+"tenant", "blue"), says: neverKey},
		{what: "a restricted label of the list, removed", edit: noLabel(restricted + "tenant"), says: neverKey},
		{what: "a restricted label of a subdomain", edit: label("a."+restricted+"x", "y"), says: neverKey},
		{what: "a restricted label by the status", at: "/status", edit: label(restricted+"x", "y"), says: neverKey},
		{what: "a role of the list", edit: label(role+"control-plane", ""), says: role + "control-plane"},
		{what: "a role removed", edit: noLabel(role + "worker"), says: neverKey},
		{what: "the host's name", edit: label("kubernetes.io/hostname", "other"), says: "kubernetes.io/hostname"},
		{what: "the zone", edit: label("topology.kubernetes.io/zone", "b"), says: "topology.kubernetes.io/zone of its Node: the list is the " + notListed},
		{what: "a label that is not listed", edit: label("example.com/other", "x"), says: "example.com/other"},
		{what: "a label without a domain", edit: label("pool", "gpu"), says: notListed},
		{what: "a longer key than the listed one", edit: label("example.com/racks", "x"), says: "example.com/racks"},
		{what: "a domain that begins as a listed one", edit: label("nvidia.com.example.org/gpu", "x"), says: notListed},
		{what: "one of two labels", edit: all(label("nvidia.com/a", "x"), label("example.com/other", "x")), says: "the key example.com/other of"},
		{what: "an annotation", edit: annotation("cluster-autoscaler.kubernetes.io/scale-down-disabled", "true"), says: "scale-down-disabled"},
		{what: "an annotation removed", edit: noAnnotation("volumes.kubernetes.io/controller-managed-attach-detach"), says: "controller-managed-attach-detach"},
		{what: "the quarantine taken off", edit: taintIs(quarantine, "", ""), says: quarantine},
		{what: "the quarantine with another value", edit: taintIs(quarantine, "value", "no"), says: quarantine},
		{what: "the quarantine with a weaker effect", edit: taintIs(quarantine, "effect", "PreferNoSchedule"), says: quarantine},
		{what: "all taints taken off", edit: field("spec", "taints", nil), says: quarantine},
		{what: "a taint of a role of the list taken off", edit: taintIs(role+"control-plane", "", ""), says: neverKey},
		{what: "a taint that is not listed", edit: taint("example.com/busy", "NoExecute"), says: "example.com/busy"},
		{what: "Kubernetes' own taint", edit: taint("node.kubernetes.io/out-of-service", "NoExecute"), says: "node.kubernetes.io/out-of-service"},
		{what: "no cordon", edit: field("spec", "unschedulable", nil), says: spec},
		{what: "the provider's id", edit: field("spec", "providerID", "aws:///x/i-1"), says: spec},
		{what: "the pods' network", edit: all(field("spec", "podCIDR", "10.9.0.0/24"), field("spec", "podCIDRs", []any{"10.9.0.0/24"})), says: spec},
		{what: "a finalizer, which keeps the Node from being deleted", edit: field("metadata", "finalizers", []any{"example.com/stay"}), says: meta},
		// With an owner that is not there the garbage collector deletes the Node. Here it owns
		// itself, and stays for the test.
		{what: "an owner", edit: ownerItself, says: meta},
		{what: "kubelet's condition", at: "/status", edit: condition("Ready", "False"), says: status},
		{what: "kubelet's condition removed", at: "/status", edit: condition("MemoryPressure", ""), says: status},
		{what: "a condition of another domain", at: "/status", edit: condition("example.com/Fine", "True"), says: status},
		{what: "our condition, and capacity", at: "/status", edit: all(ready, field("status", "capacity", kube.Object{"cpu": "8", "nvidia.com/gpu": "80"})), says: status},
		{what: "allocatable", at: "/status", edit: field("status", "allocatable", kube.Object{"cpu": "7"}), says: status},
		{what: "addresses", at: "/status", edit: field("status", "addresses", []any{kube.Object{"type": "InternalIP", "address": "10.0.0.9"}}), says: status},
		{what: "images", at: "/status", edit: field("status", "images", []any{kube.Object{"names": []any{"registry.invalid/b:1"}, "sizeBytes": 1}}), says: status},
		{what: "attached volumes", at: "/status", edit: field("status", "volumesInUse", []any{"kubernetes.io/csi/x"}), says: status},
		{what: "another Node", on: "foreign", edit: label("nvidia.com/x", "y"), says: own},
		{what: "another Node's status", on: "foreign", at: "/status", edit: ready, says: own},
		{what: "a Node, with no pod's token", free: true, edit: label("nvidia.com/x", "y"), says: own},
		{what: "a Node's status, with no pod's token", free: true, at: "/status", edit: ready, says: own},
	}
}

func ownerItself(n kube.Object) {
	field("metadata", "ownerReferences", []any{kube.Object{
		"apiVersion": "v1", "kind": "Node", "name": kube.Text(n, "metadata", "name"), "uid": kube.Text(n, "metadata", "uid"),
	}})(n)
}

// passingRequests are what gpuadm asks for.
func passingRequests() []policyRequest {
	const starting, failed = "startup-taint.cluster-autoscaler.kubernetes.io/gpu", "status-taint.cluster-autoscaler.kubernetes.io/gpu"
	return []policyRequest{
		{what: "no change", edit: nil},
		{what: "a label of NVIDIA's", edit: label("nvidia.com/gpu.present", "true")},
		{what: "a label of NVIDIA's changed", edit: label("nvidia.com/gpu.count", "7")},
		{what: "a label of NVIDIA's removed", edit: noLabel("nvidia.com/gpu.count")},
		{what: "a listed label", edit: label("example.com/rack", "r8")},
		{what: "a label of a listed domain", edit: label("rack.example.com/row", "2")},
		{what: "the record of labels", edit: annotation("nvidia.com/gpuadm.labels", "a=c")},
		{what: "the record of labels removed", edit: noAnnotation("nvidia.com/gpuadm.labels")},
		{what: "a taint of NVIDIA's beside others", edit: taint("nvidia.com/gpu", "NoSchedule")},
		{what: "the startup taint off", edit: taintIs(starting, "", "")},
		{what: "the startup taint swapped for a failure's", edit: all(taintIs(starting, "", ""), taint(failed, "NoSchedule"))},
		{what: "the startup taint for Karpenter", edit: taint("readiness.k8s.io/gpu", "NoSchedule")},
		{what: "a listed taint", edit: taint("example.com/rack", "NoExecute")},
		{what: "label, record and taint in one", edit: all(label("nvidia.com/x", "y"), annotation("nvidia.com/gpuadm.gpus", "2"), taintIs(starting, "", ""))},
		{what: "the condition", at: "/status", edit: condition(node.GPUReady, "True")},
		{what: "the condition removed", at: "/status", edit: condition(node.GPUReady, "")},
	}
}
