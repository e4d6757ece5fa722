// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pages"
)

// rules is the name of the node readiness controller's kind, without its fields, for a network
// without its own crds.yaml.
const rules = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: nodereadinessrules.readiness.node.x-k8s.io}
spec:
  group: readiness.node.x-k8s.io
  scope: Cluster
  names: {kind: NodeReadinessRule, plural: nodereadinessrules}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// typedHere says whether a line can be typed here by a way: it asks nothing of a kubelet, the
// internet or this machine.
func typedHere(line pages.Line, cloud, way string) bool {
	outside := []string{"https://", "oci://", "nvdp", " debug ", " logs ", " wait "}
	helms := []string{" namespace gpuadm"}
	kubectls := []string{"images/daemonset/" + cloud, "images/daemonset/rbac", " -n gpuadm "}
	in := func(part string) bool { return strings.Contains(line.Text, part) }
	words := line.Commands()[0]
	switch words[0] {
	case "helm":
		return way == "helm" && !slices.ContainsFunc(outside, in)
	case "kubectl":
		others := helms
		if way == "helm" {
			others = kubectls
		}
		return !slices.ContainsFunc(outside, in) && !slices.ContainsFunc(others, in)
	case "gpuadm":
		return slices.Contains([]string{"validate", "manifest"}, words[1]) || words[1] == "init" && in(" --gpu ")
	}

	return false
}

// TestLabKubePages types what the pages of the clouds have of kubectl, and of helm for
// images/chart, in order, at a real API server: once the lines for Helm, and once those without.
// Both ways end in the same DaemonSet, with the page's node.toml and the image by its digest. Then
// each example's values.
func TestLabKubePages(t *testing.T) {
	t.Parallel()
	plane := &kube.Shared{}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	parts := must.Get(kube.Find())(t)
	at, source := t.TempDir(), must.Get(filepath.Abs(lab.Source()))(t)
	for from, to := range map[string]string{
		source + "/docs": "docs", source + "/images": "images", source + "/bin/gpuadm": "gpuadm", parts.Path("kubectl"): "kubectl", parts.Path("helm"): "helm",
	} {
		must.OK(t, os.Symlink(from, filepath.Join(at, to)))
	}

	must.OK(t, os.WriteFile(filepath.Join(at, "admin.conf"), []byte(must.Get(c.AdminConfig(c.Local))(t)), 0o600))
	crd := must.Get(kube.Documents([]byte(rules)))(t)
	c.Apply(crd...)
	typed := func(line string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", line)
		cmd.Dir, cmd.Env = at, append(os.Environ(), "PATH="+at+":"+os.Getenv("PATH"), "HOME="+at, "KUBECONFIG="+filepath.Join(at, "admin.conf"))
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		err := cmd.Run()
		t.Logf("$ %s\n%s", line, &said)
		must.That(t, err == nil, "%s: %v", line, err)
		return said.String()
	}

	fill := strings.NewReplacer("REGISTRY", "registry.invalid", "DIGEST", strings.Repeat("a", 64), "NODE ", "gpu-1 ", "NODE\n", "gpu-1\n")
	pod := map[string]string{}
	for _, cloud := range []string{"eks", "aks", "gke", "onprem"} {
		text := string(must.Get(os.ReadFile(filepath.Join(at, "docs", cloud+".md")))(t))
		for _, way := range []string{"helm", "kubectl"} {
			must.OK(t, os.WriteFile(filepath.Join(at, "node.toml"), []byte("format = 1\n[runtime]\n[node]\n"), 0o600))
			lines := 0
			for _, line := range pages.Lines(cloud, text) {
				if !typedHere(line, cloud, way) {
					continue
				}
				// The node, if a line before has not deleted it.
				_, _ = c.Admin.Create(t.Context(), "/api/v1/nodes", kube.Object{
					"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": "gpu-1", "labels": kube.Object{
						"nvidia.com/gpu.present": "true", "type": "virtual-kubelet", // so that no pod comes that no kubelet would end
					}},
				})
				c.Merge("/api/v1/nodes/gpu-1/status", kube.Object{"status": kube.Object{
					"allocatable": kube.Object{"nvidia.com/gpu": "8"}, "conditions": []kube.Object{{"type": "nvidia.com/GPUReady", "status": "True"}},
				}})
				said := typed(strings.TrimSuffix(fill.Replace(line.Text+"\n"), "\n"))
				lines++
				if strings.Contains(line.Text, "custom-columns") {
					check.Equal(t, strings.Join(strings.Fields(said), " "), "NODE GPUS READY gpu-1 8 True", "%s: the node is shown as", line.At)
				}
				if strings.Contains(line.Text, "helm install gpuadm") || strings.Contains(line.Text, "set image") {
					spec := fmt.Sprint(c.Get("/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm")["spec"], c.Get("/api/v1/namespaces/gpuadm/configmaps/gpuadm")["data"])
					check.Has(t, spec, "registry.invalid/gpuadm@sha256:aaaa", "%s by %s:", cloud, way)
					check.That(t, way == "helm" || spec == pod[cloud], "%s: by helm the DaemonSet is\n%s\nby kubectl\n%s", cloud, pod[cloud], spec)
					pod[cloud] = spec
				}
			}

			check.That(t, lines >= 8, "%s by %s: %d lines were typed", cloud, way, lines)
			c.Until("the namespace is gone", func() string {
				if c.Look("/api/v1/namespaces/gpuadm") != nil {
					return "it is there"
				}
				return ""
			})
		}

		typed("helm template gpuadm images/chart --kube-version v1.30.0 --namespace gpuadm --set createNamespace=true -f docs/examples/" + cloud + "/values.yaml >shipped.yaml")
		typed("kubectl apply -f shipped.yaml && kubectl delete -f shipped.yaml")
	}
}
