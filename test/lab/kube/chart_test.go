// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// podSecurity is a default of the whole cluster that refuses hostPath. Source:
// https://kubernetes.io/docs/tasks/configure-pod-container/enforce-standards-admission-controller/.
//
//go:embed testdata/pod-security.yaml
var podSecurity string

// chartBefore is images/chart as another version of gpuadm had it.
//
//go:embed testdata/chart-before.txtar
var chartBefore []byte

// desk is a folder of an administrator with helm, kubectl and the source's images.
type desk struct {
	*kube.T
	t  *testing.T
	at string
}

func newDesk(t *testing.T, c *kube.T) desk {
	t.Helper()
	parts := must.Get(kube.Find())(t)
	d := desk{T: c, t: t, at: t.TempDir()}
	for from, to := range map[string]string{
		must.Get(filepath.Abs(lab.Source()))(t) + "/images": "images", parts.Path("kubectl"): "kubectl", parts.Path("helm"): "helm",
	} {
		must.OK(t, os.Symlink(from, filepath.Join(d.at, to)))
	}

	d.put("admin.conf", must.Get(c.AdminConfig(c.Local))(t))
	return d
}

func (d desk) put(name, text string) {
	d.t.Helper()
	must.OK(d.t, os.MkdirAll(filepath.Dir(filepath.Join(d.at, name)), 0o700))
	must.OK(d.t, os.WriteFile(filepath.Join(d.at, name), []byte(text), 0o600))
}

// types types a line, and returns what it printed.
func (d desk) types(line string) string {
	d.t.Helper()
	said, err := d.tries(line)
	must.That(d.t, err == nil, "%s: %v\n%s", line, err, said)
	return said
}

func (d desk) tries(line string) (said string, err error) {
	cmd := exec.CommandContext(d.t.Context(), "sh", "-ec", line)
	cmd.Dir = d.at
	cmd.Env = append(os.Environ(), "PATH="+d.at+":"+os.Getenv("PATH"), "HOME="+d.at, "KUBECONFIG="+filepath.Join(d.at, "admin.conf"))
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err = cmd.Run()
	return both.String(), err
}

// nodeToml is what the pods of a DaemonSet get.
func (d desk) nodeToml(namespace, name string) string {
	d.t.Helper()
	config := d.Get("/api/v1/namespaces/" + namespace + "/configmaps/" + name)
	odd := must.Get(base64.StdEncoding.DecodeString(kube.Text(config, "binaryData", "node.toml")))(d.t)
	return kube.Text(config, "data", "node.toml") + string(odd)
}

// comesTo waits until a namespace has pods for these nodes, and for no others.
func (d desk) comesTo(namespace string, nodes ...string) {
	d.t.Helper()
	d.Until("the pods of "+namespace+" are there", func() string {
		var names []string
		for _, pod := range kube.List(d.Get("/api/v1/namespaces/"+namespace+"/pods"), "items") {
			names = append(names, podNode(pod))
		}
		slices.Sort(names)
		if !slices.Equal(names, nodes) {
			return fmt.Sprintf("they are for %q, want %q", names, nodes)
		}
		return ""
	})
}

// podNode is the node that a DaemonSet's pod is for, scheduled or not.
func podNode(pod kube.Object) string {
	for _, term := range kube.List(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms") {
		for _, field := range kube.List(term, "matchFields") {
			return fmt.Sprint(field["values"].([]any)[0])
		}
	}
	return ""
}

// refusesPods waits until the DaemonSet's controller was refused a pod.
func (d desk) refusesPods(namespace string) {
	d.t.Helper()
	d.Until("Pod Security refuses the pods of "+namespace, func() string {
		for _, e := range kube.List(d.Get("/api/v1/namespaces/"+namespace+"/events"), "items") {
			if e["reason"] == "FailedCreate" && strings.Contains(kube.Text(e, "message"), "violates PodSecurity") {
				return ""
			}
		}
		return "there is no such event"
	})
}

// gone removes a namespace and waits until it has gone, with pods that no kubelet would end.
func (d desk) gone(namespace string) {
	d.t.Helper()
	d.Delete("/api/v1/namespaces/" + namespace)
	d.Until("the namespace "+namespace+" is gone", func() string {
		if d.Look("/api/v1/namespaces/"+namespace) == nil {
			return ""
		}
		for _, pod := range kube.List(d.Get("/api/v1/namespaces/"+namespace+"/pods"), "items") {
			_ = d.Admin.Delete(d.t.Context(), "/api/v1/namespaces/"+namespace+"/pods/"+kube.Text(pod, "metadata", "name")+"?gracePeriodSeconds=0")
		}
		return "it is there"
	})
}

// labelLine is the line that the chart's notes print for a cluster whose Pod Security refuses the
// pods.
var labelLine = regexp.MustCompile(`(?m)^ +(kubectl label namespace .*)$`)

const chartValues = ` --set image=registry.invalid/gpuadm@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa --set-file nodeToml=node.toml`

// TestLabKubeChart installs images/chart as everybody does, by a real helm, at an API server whose
// Pod Security refuses hostPath by default: into a namespace that helm makes, into one that is there,
// by kubectl from what helm renders, over the chart before with its values kept, and twice side by
// side, where each release's account may change the Node of its own pods alone.
func TestLabKubeChart(t *testing.T) {
	t.Parallel()
	admission := filepath.Join(t.TempDir(), "admission.yaml")
	must.OK(t, os.WriteFile(admission, []byte(podSecurity), 0o600))
	plane := &kube.Shared{Flags: []string{"--admission-control-config-file=" + admission}}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	d := newDesk(t, c)
	for name, pool := range map[string]string{"a-1": "a", "b-1": "b"} {
		_, err := c.Admin.Create(t.Context(), "/api/v1/nodes", kube.Object{
			"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": name, "labels": kube.Object{
				"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true", "example.com/pool": pool,
			}},
		})
		must.OK(t, err)
	}

	const odd = "\n  format = 1 # \u00e4\u2028\r\n   \n[node]\n\n\n"
	d.put("node.toml", odd)
	d.types("helm lint images/chart --strict" + chartValues)

	t.Log("into a namespace that helm makes")
	said := d.types("helm install gpuadm images/chart -n gpuadm --create-namespace" + chartValues)
	check.Has(t, said, "undo --to all", "the notes:")
	check.Equal(t, d.nodeToml("gpuadm", "gpuadm"), odd, "node.toml of the pods is")
	d.refusesPods("gpuadm")
	line := labelLine.FindStringSubmatch(said)
	must.That(t, line != nil, "the notes name no line against Pod Security:\n%s", said)
	d.types(line[1])
	d.comesTo("gpuadm", "a-1", "b-1")
	said = d.types("helm upgrade gpuadm images/chart -n gpuadm --reuse-values --set interval=1h")
	check.That(t, !labelLine.MatchString(said), "the notes still name the line:\n%s", said)
	check.Equal(t, d.nodeToml("gpuadm", "gpuadm"), odd, "after an upgrade node.toml of the pods is")
	check.Has(t, fmt.Sprint(c.Get("/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm")["spec"]), "--every 1h", "after an upgrade the DaemonSet is")
	d.types("helm uninstall gpuadm -n gpuadm")
	d.gone("gpuadm")

	t.Log("into a namespace that is there, under a name of its own")
	d.types("kubectl create namespace infra && kubectl label namespace infra pod-security.kubernetes.io/enforce=privileged")
	d.types("helm install nodes images/chart -n infra" + chartValues)
	c.Get("/apis/apps/v1/namespaces/infra/daemonsets/nodes-gpuadm")
	d.comesTo("infra", "a-1", "b-1")
	d.types("helm uninstall nodes -n infra")
	d.gone("infra")

	t.Log("by kubectl from what helm renders")
	d.types("helm template gpuadm images/chart -n gpuadm --kube-version v1.30.0 --set createNamespace=true" + chartValues + " >all.yaml")
	d.types("kubectl apply -f all.yaml")
	d.comesTo("gpuadm", "a-1", "b-1")
	check.Equal(t, d.nodeToml("gpuadm", "gpuadm"), odd, "by kubectl node.toml of the pods is")
	d.types("kubectl apply -f all.yaml && kubectl delete -f all.yaml --wait=false")
	d.gone("gpuadm")

	t.Log("over the chart before")
	for _, file := range txtar.Parse(chartBefore).Files {
		d.put("before/"+file.Name, string(file.Data))
	}
	d.put("plain.toml", "format = 1\n[node]\n")
	kept := strings.Replace(chartValues, "node.toml", "plain.toml", 1) + ` --set-json 'keys=["nvidia.com/*","example.com/rack"]'`
	d.types("helm install gpuadm before -n default" + kept)
	d.comesTo("gpuadm", "a-1", "b-1")
	d.types("kubectl create namespace gpuadm2 && kubectl label namespace default pod-security.kubernetes.io/enforce=privileged")
	d.types("helm upgrade gpuadm images/chart -n default --reuse-values")
	d.comesTo("default", "a-1", "b-1")
	check.Equal(t, d.nodeToml("default", "gpuadm"), "format = 1\n[node]\n", "after the upgrade node.toml of the pods is")
	policy := c.Get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/default.gpuadm-own-node")
	check.Has(t, fmt.Sprint(policy["spec"]), "example.com/rack", "after the upgrade the policy is")
	d.gone("gpuadm")
	d.types("helm uninstall gpuadm -n default")

	t.Log("twice side by side")
	for _, pool := range []string{"a", "b"} {
		d.types("helm install pool-" + pool + " images/chart -n pools --create-namespace --set-string nodeSelector.'example\\.com/pool'=" + pool +
			" --set-json 'keys=[\"nvidia.com/*\",\"example.com/" + pool + "\"]'" + chartValues)
	}

	d.types("kubectl label namespace pools pod-security.kubernetes.io/enforce=privileged")
	d.comesTo("pools", "a-1", "b-1")
	d.ownNodeOnly("pools", "pool-a-gpuadm", "a-1", "b-1", "example.com/a", "example.com/b")
	d.ownNodeOnly("pools", "pool-b-gpuadm", "b-1", "a-1", "example.com/b", "example.com/a")
	d.types("helm uninstall pool-a -n pools")
	d.ownNodeOnly("pools", "pool-b-gpuadm", "b-1", "a-1", "example.com/b", "example.com/a")
}

// ownNodeOnly wants a release's account to change a listed key of its pod's own Node, and no other
// Node and no key that another release lists.
func (d desk) ownNodeOnly(namespace, account, own, other, listed, unlisted string) {
	d.t.Helper()
	as := d.Bearer(d.Account(namespace, account, own))
	tries := 0
	change := func(node, key string) error {
		tries++ // each try another value: what is there already is no change, which no policy refuses
		labels := kube.Object{key: fmt.Sprintf("%s-%d", account, tries)}
		_, err := as.Merge(d.t.Context(), "/api/v1/nodes/"+node, kube.Object{"metadata": kube.Object{"labels": labels}})
		return err
	}

	d.Until("the policy of "+account+" is in force", func() string {
		if err := change(own, unlisted); !strings.Contains(fmt.Sprint(err), account+"-own-node") {
			return fmt.Sprintf("it may change %s of %s: %v", unlisted, own, err)
		}
		return ""
	})
	check.OK(d.t, change(own, listed))
	if err := change(other, listed); kube.StatusOf(err) != 403 {
		d.t.Errorf("%s changes %s: %v", account, other, err)
	}
}
