// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim/recorded"
)

// TestLabKubeAnswers records what this API server answers to the requests that the simulated one is
// held to, and compares with the record in the tree. A new record lies beside the programs.
func TestLabKubeAnswers(t *testing.T) {
	c := cluster.Run(t)
	users := map[string]*kube.Client{recorded.Admin: c.Admin, recorded.Kubelet: must.Get(c.Node("gpu-1"))(t)}
	const rbac = "rbac.authorization.k8s.io/v1"
	for _, name := range []string{"norole", "role"} {
		c.Apply(kube.Object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": kube.Object{"name": name, "namespace": "default"}})
		users["system:serviceaccount:default:"+name] = c.Bearer(c.Account("default", name, ""))
	}

	c.Apply(
		kube.Object{"apiVersion": rbac, "kind": "ClusterRole", "metadata": kube.Object{"name": "recorded"}, "rules": []kube.Object{
			{"apiGroups": []string{""}, "resources": []string{"nodes"}, "verbs": []string{"get", "patch"}},
		}},
		kube.Object{
			"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": kube.Object{"name": "recorded"},
			"roleRef":  kube.Object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "recorded"},
			"subjects": []kube.Object{{"kind": "ServiceAccount", "namespace": "default", "name": "role"}},
		},
	)
	for _, name := range []string{"gpu-1", "gpu-2"} {
		c.Apply(kube.Object{
			"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": name, "labels": kube.Object{"a": "b"}},
			"spec": kube.Object{"taints": []kube.Object{{"key": "k", "effect": "NoSchedule"}}},
		})
		t.Cleanup(func() { c.Delete("/api/v1/nodes/" + name) })
	}

	c.Until("the role is known", func() string {
		if _, err := users[recorded.Role].Get(t.Context(), "/api/v1/nodes/gpu-1"); err != nil {
			return err.Error()
		}
		return ""
	})

	is := recorded.Record{
		Server: kube.Text(c.Get("/version"), "gitVersion"),
		Date:   time.Now().UTC().Format(time.DateOnly),
	}
	for _, r := range recorded.Requests() {
		code, body, err := users[r.Who].Send(t.Context(), r.Method, r.Path, r.Form, []byte(r.Body))
		must.OK(t, err)
		is.Answers = append(is.Answers, recorded.AnswerOf(r, code, body))
	}

	text := must.Get(json.MarshalIndent(is, "", "\t"))(t)
	place := filepath.Join(must.Get(kube.CacheDir())(t), "answers.json")
	must.OK(t, os.WriteFile(place, append(text, '\n'), 0o644))

	was := recorded.Read(t)
	for i, answer := range is.Answers {
		check.Equal(t, line(t, answer), line(t, was.Answers[i]), "the new record is %s; %s:", place, answer.What)
	}
}

func line(t *testing.T, a recorded.Answer) string {
	t.Helper()
	return string(must.Get(json.Marshal(a))(t))
}
