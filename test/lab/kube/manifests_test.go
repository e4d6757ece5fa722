// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/images/daemonset"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// manifest is a cloud's file of images/daemonset.
func manifest(t testing.TB, cloud string) []byte {
	t.Helper()
	text := must.Get(daemonset.Manifests.ReadFile(cloud + ".yaml"))(t)
	return text
}

// gkeAdmission is how GKE keeps pods of the critical classes to namespaces with a quota that names
// them. Sources:
// https://kubernetes.io/docs/concepts/policy/resource-quotas/#limit-priority-class-consumption-by-default
// and the refusal that https://github.com/open-policy-agent/gatekeeper/issues/1120 quotes.
//
//go:embed testdata/gke-admission.yaml
var gkeAdmission string

// machines are nodes, by their labels and taints, and the cloud that has them. Sources: those of
// images/chart/values.yaml.
var machines = []struct {
	name   string
	clouds string // which manifests give it a pod
	labels kube.Object
	taints []kube.Object
}{
	{"nfd", "eks aks gke onprem", kube.Object{"feature.node.kubernetes.io/pci-10de.present": "true"}, nil},
	{"by-hand", "eks aks gke onprem", kube.Object{"nvidia.com/gpu.present": "true"}, []kube.Object{gpuTaint("nvidia.com/gpu")}},
	{"managed-group", "eks", kube.Object{"node.kubernetes.io/instance-type": "p5.48xlarge"}, []kube.Object{gpuTaint("example.com/any")}},
	{"karpenter", "eks", kube.Object{"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"}, []kube.Object{gpuTaint("karpenter.sh/unregistered")}},
	{"fargate", "", kube.Object{"eks.amazonaws.com/compute-type": "fargate", "nvidia.com/gpu.present": "true"}, nil},
	{"auto-mode", "", kube.Object{"eks.amazonaws.com/compute-type": "auto", "node.kubernetes.io/instance-type": "g6.xlarge"}, nil},
	{"inferentia", "", kube.Object{"node.kubernetes.io/instance-type": "inf2.xlarge"}, nil},
	{"aks-pool", "aks", kube.Object{"kubernetes.azure.com/accelerator": "nvidia"}, []kube.Object{
		gpuTaint("sku"), gpuTaint("kubernetes.azure.com/scalesetpriority"), gpuTaint("startup-taint.cluster-autoscaler.kubernetes.io/gpu"),
	}},
	{"aks-system", "eks gke onprem", kube.Object{"nvidia.com/gpu.present": "true"}, []kube.Object{gpuTaint("CriticalAddonsOnly")}},
	{"virtual", "", kube.Object{"type": "virtual-kubelet", "nvidia.com/gpu.present": "true"}, nil},
	{"gke-pool", "gke", kube.Object{"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, []kube.Object{gpuTaint("nvidia.com/gpu")}},
	{"windows", "", kube.Object{"kubernetes.io/os": "windows", "nvidia.com/gpu.present": "true"}, nil},
	{"control-plane", "", kube.Object{"node-role.kubernetes.io/control-plane": "", "nvidia.com/gpu.present": "true"}, nil},
	{"plain", "", kube.Object{}, nil},
}

func gpuTaint(key string) kube.Object {
	return kube.Object{"key": key, "value": "present", "effect": "NoSchedule"}
}

// TestLabKubeManifests: the API server takes each cloud's manifest, GKE's limit on critical pods
// included, and the DaemonSet's controller makes pods for that cloud's GPU nodes alone.
func TestLabKubeManifests(t *testing.T) {
	t.Parallel()
	admission := filepath.Join(t.TempDir(), "admission.yaml")
	must.OK(t, os.WriteFile(admission, []byte(gkeAdmission), 0o600))
	plane := &kube.Shared{Flags: []string{"--admission-control-config-file=" + admission}}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	for _, m := range machines {
		labels := kube.Object{"kubernetes.io/os": "linux"}
		for key, value := range m.labels {
			labels[key] = value
		}
		if _, err := c.Admin.Create(t.Context(), "/api/v1/nodes", kube.Object{
			"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": m.name, "labels": labels}, "spec": kube.Object{"taints": m.taints},
		}); err != nil {
			t.Fatal(err)
		}
	}

	account := must.Get(kube.Documents(daemonset.RBAC))(t)
	c.Apply(account...)
	check.OK(t, c.Admin.DryRun(t.Context(), account...))
	must.That(t, refusedByQuota(c), "pods come without a quota: this is not GKE")
	for _, cloud := range []string{"gke", "eks", "aks", "onprem"} { // the quota is GKE's, and the others need it here too
		objects := must.Get(kube.Documents(manifest(t, cloud)))(t)
		err := c.Admin.DryRun(t.Context(), objects...)
		check.That(t, err == nil, "%s: %v", cloud, err)
		c.Apply(objects...)
		var want []string
		for _, m := range machines {
			if slices.Contains(strings.Fields(m.clouds), cloud) {
				want = append(want, m.name)
			}
		}

		slices.Sort(want)
		c.Until("the pods of "+cloud+" are there", func() string {
			if is := podNodes(c); !slices.Equal(is, want) {
				return fmt.Sprintf("they are for %q, want %q", is, want)
			}
			return ""
		})
		withoutPods(c)
	}
}

// refusedByQuota applies GKE's DaemonSet without its quota, and says whether an event tells that
// its pods are refused.
func refusedByQuota(c *kube.T) bool {
	objects := must.Get(kube.Documents(manifest(c, "gke")))(c)
	for _, o := range objects {
		if o["kind"] != "ResourceQuota" {
			c.Apply(o)
		}
	}

	refused := false
	c.Until("the controller has tried to make pods", func() string {
		for _, e := range kube.List(c.Get("/api/v1/namespaces/gpuadm/events"), "items") {
			refused = refused || e["reason"] == "FailedCreate" && strings.Contains(kube.Text(e, "message"), "insufficient quota to match these scopes")
		}
		if !refused && len(podNodes(c)) == 0 {
			return "there is neither a pod nor an event"
		}
		return ""
	})
	withoutPods(c)
	return refused
}

// podNodes are the nodes that the DaemonSet's pods are for, scheduled or not.
func podNodes(c *kube.T) (names []string) {
	for _, pod := range kube.List(c.Get("/api/v1/namespaces/gpuadm/pods"), "items") {
		for _, term := range kube.List(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms") {
			for _, field := range kube.List(term, "matchFields") {
				for _, name := range field["values"].([]any) {
					names = append(names, name.(string))
				}
			}
		}
	}

	slices.Sort(names)
	return slices.Compact(names)
}

// withoutPods deletes the DaemonSet and waits until its pods are gone, with which no kubelet helps.
func withoutPods(c *kube.T) {
	c.Delete("/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm")
	c.Until("the pods are gone", func() string {
		for _, pod := range kube.List(c.Get("/api/v1/namespaces/gpuadm/pods"), "items") {
			// A refusal is a conflict with a controller: it is asked again.
			_ = c.Admin.Delete(c.Context(), "/api/v1/namespaces/gpuadm/pods/"+kube.Text(pod, "metadata", "name")+"?gracePeriodSeconds=0")
		}

		if is := podNodes(c); len(is) > 0 {
			return fmt.Sprint(is)
		}
		return ""
	})
}

// TestLabKubeShipped: the shipped manifests and image, with the digest of the image in its place,
// take two nodes with GPUs from nothing to ready, and containerd is restarted under the pods; then
// again, while the pods, kubelet and containerd are killed.
func TestLabKubeShipped(t *testing.T) {
	t.Parallel()
	archive := lab.AgentArchive(t)
	plane := &kube.Shared{}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	apply := func(text string) {
		t.Helper()
		objects := must.Get(kube.Documents([]byte(text)))(t)
		c.Apply(objects...)
	}

	apply(string(daemonset.RBAC))
	var nodes []gpuHost
	image := ""
	for _, dist := range []string{"bookworm", "trixie"} {
		n := bootGPU(t, c, "shipped-"+dist, dist)
		r := n.ExecInput(bytes.NewReader(archive), "ctr", "-n", "k8s.io", "images", "import", "--base-name", "lab.invalid/gpuadm", "-")
		must.That(t, r.Exit == 0, "%v", r)
		digest := strings.Fields(n.Must("sh", "-c", "ctr -n k8s.io images list | grep ^lab.invalid/gpuadm:devel"))[2]
		image = "lab.invalid/gpuadm@" + digest
		n.Must("ctr", "-n", "k8s.io", "images", "tag", "lab.invalid/gpuadm:devel", image) // so that nothing is pulled
		n.Kubeadm(kube.Kubeadm{
			Token:  c.Token(),
			Flags:  "--node-labels=" + nfdLabel + "=true",
			Config: restartsSoon(),
		})
		n.Must("systemctl", "start", "kubelet.service")
		n.Ready()
		nodes = append(nodes, n)
	}

	const placeholder = "gpuadm@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	began, took := time.Now(), time.Duration(0)
	apply(strings.Replace(string(manifest(t, "onprem")), placeholder, image, 1))
	for _, n := range nodes {
		n.condition("True")
		took = max(took, time.Since(began))
		n.untainted()
		starts := strings.Count(n.Must("journalctl", "--no-pager", "--unit=containerd.service"), "Started containerd.service")
		check.That(t, starts == 2, "%s: containerd was started %d times, want once by the boot and once by gpuadm", n.Name, starts)
		check.Has(t, n.Must("ctr", "-n", "k8s.io", "containers", "list"), "lab.invalid/gpuadm", "%s: the pod does not run the image %s:", n.Name, image)
	}

	killed(t, nodes, took)
}
