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
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeGitOps installs images/chart as Argo CD and Flux do. Argo CD applies what helm template
// renders, over and over, and compares it with what the API server has. Flux installs and upgrades by
// helm's own code, and asks the API server by a dry run whether anything has drifted. Neither may
// find a difference that stays, and both bring back what another process has changed. The cluster's
// Pod Security forbids hostPath, and warns of more.
// Sources: https://argo-cd.readthedocs.io/en/release-3.3/user-guide/helm/ ("only used to inflate
// charts"), https://argo-cd.readthedocs.io/en/latest/user-guide/diffing/;
// https://fluxcd.io/flux/components/helm/helmreleases/ ("drift detection"), and
// fluxcd/helm-controller, internal/action/diff.go.
func TestLabKubeGitOps(t *testing.T) {
	t.Parallel()
	admission := filepath.Join(t.TempDir(), "admission.yaml")
	baseline := strings.Replace(podSecurity, "enforce: restricted",
		"enforce: baseline, warn: restricted, audit: restricted", 1)
	must.OK(t, os.WriteFile(admission, []byte(baseline), 0o600))
	plane := &kube.Shared{Flags: []string{"--admission-control-config-file=" + admission}}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	_, err := c.Admin.Create(t.Context(), "/api/v1/nodes", kube.Object{
		"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": "a-1", "labels": kube.Object{
			"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true",
		}},
	})
	must.OK(t, err)
	d := newDesk(t, c)
	d.put("node.toml", "format = 1\n[runtime]\n[node]\n")

	for _, cloud := range []string{"onprem", "eks", "aks", "gke"} {
		t.Log("Argo CD, " + cloud)
		d.types("helm template gpuadm images/chart -n gpuadm --include-crds --kube-version v1.35.0" +
			" --set cloud=" + cloud + chartValues + " >all.yaml")
		rendered := must.Get(kube.Documents([]byte(d.types("cat all.yaml"))))(t)
		for _, o := range rendered {
			check.That(t, kube.At(o, "metadata", "annotations") == nil,
				"Argo CD may take %s for a hook: %v", o["kind"], o["metadata"])
			check.That(t, o["kind"] != "Namespace", "Argo CD makes the namespace, and the chart has it, too")
		}

		d.types("kubectl create namespace gpuadm")
		d.types("kubectl label namespace gpuadm pod-security.kubernetes.io/enforce=privileged")

		d.types("kubectl apply -f all.yaml")
		d.unchanged(rendered)
		said := d.types("kubectl apply -f all.yaml")
		for line := range strings.Lines(said) {
			check.That(t, strings.HasSuffix(line, " unchanged\n"), "the second apply: %s", line)
		}
		d.types("kubectl diff -f all.yaml")
		d.comesTo("gpuadm", "a-1")

		const server = " --server-side --force-conflicts --field-manager=argocd-controller -f all.yaml"
		d.types("kubectl apply" + server)
		d.types("kubectl diff" + server)
		d.same(rendered, "kubectl apply"+server)

		d.types("kubectl delete --wait=false -f all.yaml")
		d.gone("gpuadm")
	}

	t.Log("kubectl, with the namespace that the chart makes")
	d.types("helm template gpuadm images/chart -n gpuadm --kube-version v1.35.0 --set createNamespace=true" +
		chartValues + " >all.yaml")
	said := d.types("kubectl apply -f all.yaml")
	check.That(t, !strings.Contains(said, "Warning"), "kubectl apply: %s", said)
	d.comesTo("gpuadm", "a-1")
	d.types("kubectl delete --wait=false -f all.yaml")
	d.gone("gpuadm")

	t.Log("Flux")
	install := "helm upgrade gpuadm images/chart --install -n gpuadm --create-namespace" + chartValues
	d.types(install)
	d.types("helm get manifest gpuadm -n gpuadm >all.yaml")
	rendered := must.Get(kube.Documents([]byte(d.types("cat all.yaml"))))(t)
	const drift = "kubectl diff --server-side --force-conflicts --field-manager=helm-controller -f all.yaml"
	d.types(drift)
	d.same(rendered, install)

	t.Log("another process has changed the objects")
	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gpuadm-own-node"
	const daemons = "/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm"
	right := [2]string{fmt.Sprint(c.Get(policies)["spec"]), fmt.Sprint(c.Get(daemons)["spec"])}
	d.types(`kubectl patch validatingadmissionpolicy gpuadm-own-node --type json ` +
		`-p '[{"op": "remove", "path": "/spec/validations/0"}]'`)
	d.types(`kubectl -n gpuadm patch daemonset gpuadm --type json ` +
		`-p '[{"op": "replace", "path": "/spec/template/spec/containers/0/args/2", "value": "1s"}]'`)
	said, err = d.tries(drift)
	check.That(t, err != nil && strings.Contains(said, "authentication.kubernetes.io/node-name") &&
		strings.Contains(said, "1s"),
		"Flux sees no drift: %v\n%s", err, said)
	d.types(install)
	check.Equal(t, fmt.Sprint(c.Get(policies)["spec"]), right[0], "after the upgrade the policy is")
	check.Equal(t, fmt.Sprint(c.Get(daemons)["spec"]), right[1], "after the upgrade the DaemonSet is")
	d.types(drift)

	t.Log("and the release goes")
	d.types("helm uninstall gpuadm -n gpuadm")
	for _, o := range rendered {
		path := must.Get(c.Admin.Path(t.Context(), o))(t)
		check.That(t, c.Look(path) == nil, "after the uninstall there is %s", path)
	}
}

// unchanged wants the API server to have each value of these objects as it is stated: one that it
// writes in another way is a difference for ever.
func (d desk) unchanged(objects []kube.Object) {
	d.t.Helper()
	for _, o := range objects {
		path := must.Get(d.Admin.Path(d.t.Context(), o))(d.t)
		for _, other := range rewritten("", o, d.Get(path)) {
			d.t.Errorf("%s: %s", path, other)
		}
	}
}

// rewritten are the values of a part of an object that the API server has otherwise.
func rewritten(at string, stated, has any) (list []string) {
	switch stated := stated.(type) {
	case kube.Object:
		has, _ := has.(kube.Object)
		for key, value := range stated {
			list = append(list, rewritten(at+"/"+key, value, has[key])...)
		}
	case []any:
		has, _ := has.([]any)
		if len(has) != len(stated) {
			return []string{fmt.Sprintf("%s has %d entries, stated are %d", at, len(has), len(stated))}
		}
		for i, value := range stated {
			list = append(list, rewritten(fmt.Sprintf("%s/%d", at, i), value, has[i])...)
		}
	default:
		if fmt.Sprint(stated) != fmt.Sprint(has) {
			list = append(list, fmt.Sprintf("%s is %v, stated is %v", at, has, stated))
		}
	}
	return list
}

// same wants a line to change none of these objects.
func (d desk) same(objects []kube.Object, line string) {
	d.t.Helper()
	versions := func() (list []string) {
		for _, o := range objects {
			path := must.Get(d.Admin.Path(d.t.Context(), o))(d.t)
			is := d.Get(path)
			meta := is["metadata"].(kube.Object)
			if is["spec"] == nil { // no controller writes to it
				list = append(list, fmt.Sprintf("%s at %v", path, meta["resourceVersion"]))
				continue
			}
			list = append(list, fmt.Sprintf("%s at generation %v: %v", path, meta["generation"], is["spec"]))
		}
		return list
	}

	before := versions()
	d.types(line)
	after := versions()
	check.That(d.t, slices.Equal(before, after), "after %s: %q, before %q", line, after, before)
}
