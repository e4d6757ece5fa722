// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

const ownNodePolicy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"

// TestLabKubeLost: an administrator deletes one part of the release before the undo: the namespace,
// the account, its rights, the policy, or all of it between the condition and the taint of a first
// apply. Undo then reverts the machine, exits with 0, and each line that it prints for the rest is
// typed and leaves the Node as it was.
func TestLabKubeLost(t *testing.T) {
	t.Parallel()
	plane := &kube.Shared{}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	d := newDesk(t, c)
	n := bootGPU(t, c, "lost", "bookworm")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	flags, config := n.Get(kubeletFlags), n.Get(engineConfig)
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()

	everything := []string{
		ownNodePolicy + "ybindings/gpuadm-own-node", ownNodePolicy + "ies/gpuadm-own-node",
		bindings, "/api/v1/namespaces/gpuadm",
	}
	for _, l := range []struct {
		what    string
		deletes []string
		cut     bool // before the first apply has taken the startup taint off
	}{
		{"the namespace", everything[3:], false},
		{"the account", []string{"/api/v1/namespaces/gpuadm/serviceaccounts/gpuadm"}, false},
		{"its rights", []string{bindings}, false},
		{"the policy", everything[:2], false},
		{"all of it, in a first apply", everything, true},
	} {
		t.Log("without " + l.what)
		if l.cut {
			keepsTaint(c)
		}
		c.Apply(policyObjects(t, labKeys)...)
		d.ownPolicyHolds(n.Name)
		n.agent("[runtime]\n[node]\n")
		if l.cut {
			n.c.Until("the startup taint stays", func() string {
				return silentUnless(n.Exec("sh", "-c", "grep keeps-taint /var/log/pods/gpuadm*/*/*.log"))
			})
			taints := kube.Taints(n.Object())
			kept := len(taints) == 1 && strings.Contains(taints[0], "taint.cluster-autoscaler.kubernetes.io/gpu")
			must.That(t, kept, "the apply was not cut: taints %v", taints) // the startup taint, or a failure's
		} else {
			n.condition("True")
			n.untainted()
		}

		account := c.Bearer(n.Get("/run/gpuadm/token")) // what the API server has found good is good for 10 s
		for _, path := range l.deletes {
			c.Delete(path)
			n.c.Until(path+" is gone", func() string {
				if c.Look(path) != nil {
					return "it is there"
				}
				return ""
			})
		}

		if l.cut {
			n.podGone()
		}
		n.c.Until("the machine may not use the account", func() string {
			r := n.Exec("sh", "-c", "[ ! -e /run/gpuadm/kubeconfig ]")
			_, err := account.Get(t.Context(), "/api/v1/nodes/"+n.Name)
			refused := kube.StatusOf(err) == http.StatusUnauthorized || kube.StatusOf(err) == http.StatusForbidden
			if r.Exit != 0 && !refused {
				return fmt.Sprint("it is lent, and may: ", err)
			}
			return ""
		})

		r := n.undone(removal(t)[0])
		t.Log(r)
		check.Equal(t, n.Get(kubeletFlags), flags, "after undo kubelet's flags are")
		check.Equal(t, n.Get(engineConfig), config, "after undo containerd's configuration is")
		lines := linesFor(r.Stdout + r.Stderr)
		must.That(t, len(lines) > 0, "undo names no line for what it leaves")
		for _, line := range lines {
			t.Log(d.types(line))
		}
		check.Equal(t, kube.Text(n.condition("Unknown"), "reason"), "Undone",
			"after undo the condition's reason is")
		taints := kube.Taints(n.Object())
		check.That(t, len(taints) == 0, "after undo and its lines the taints are %v", taints)
		for key := range kube.At(n.Object(), "metadata", "annotations").(kube.Object) {
			check.That(t, !strings.HasPrefix(key, "nvidia.com/"),
				"after undo and its lines there is the annotation %s", key)
		}

		for key := range kube.At(n.Object(), "metadata", "labels").(kube.Object) {
			check.That(t, !strings.HasPrefix(key, "nvidia.com/"),
				"after undo and its lines there is the label %s", key)
		}

		c.Delete("/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm-" + n.Name)
		n.podGone()
		n.Must("sh", "-c", removal(t)[1])
		d.gone("gpuadm")
	}
}

// linesFor are the lines for an administrator, each once, in what undo prints of what it leaves.
func linesFor(said string) (lines []string) {
	for _, left := range regexp.MustCompile(`so it stays on the Node: (.+)`).FindAllStringSubmatch(said, -1) {
		lines = append(lines, strings.Split(left[1], "; ")...)
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// ownPolicyHolds waits until the API server judges by the policy of the account. Before, the pod uses
// kubelet's identity, and its first apply sees no startup taint that it could take off.
func (d desk) ownPolicyHolds(node string) {
	d.t.Helper()
	as := d.Bearer(d.Account("gpuadm", "gpuadm", node))
	labels := kube.Object{"node-restriction.kubernetes.io/probe": "x"}
	foreign := kube.Object{"metadata": kube.Object{"labels": labels}}

	d.Until("the policy is in force", func() string {
		_, err := as.Merge(d.t.Context(), "/api/v1/nodes/"+node+"?dryRun=All", foreign)
		if !strings.Contains(fmt.Sprint(err), "gpuadm-own-node") {
			return fmt.Sprint("a label that is not listed gets: ", err)
		}
		return ""
	})
}

// keepsTaint has the API server refuse gpuadm's account to take a startup taint off.
func keepsTaint(c *kube.T) {
	c.Helper()
	name := kube.Object{"name": "keeps-taint"}
	c.Apply(kube.Object{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
		"metadata": name,
		"spec": kube.Object{
			"failurePolicy": "Fail",
			"matchConstraints": kube.Object{"resourceRules": []kube.Object{{
				"apiGroups": []string{""}, "apiVersions": []string{"*"},
				"operations": []string{"UPDATE"}, "resources": []string{"nodes"},
			}}},
			"matchConditions": []kube.Object{{
				"name":       "account",
				"expression": `request.userInfo.username == "` + accountUser + `"`,
			}},
			"validations": []kube.Object{{"expression": "!has(oldObject.spec.taints) || " +
				"has(object.spec.taints) && size(object.spec.taints) >= size(oldObject.spec.taints)"}},
		},
	}, kube.Object{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
		"metadata": name,
		"spec":     kube.Object{"policyName": "keeps-taint", "validationActions": []string{"Deny"}},
	})
	c.Cleanup(func() {
		c.Delete(ownNodePolicy + "ybindings/keeps-taint")
		c.Delete(ownNodePolicy + "ies/keeps-taint")
	})
}
