// SPDX-License-Identifier: Apache-2.0

package kubesim_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// send makes a request and returns the status, and the object or the text of the answer.
func send(t *testing.T, s *kubesim.Server, token, method, path, form, body string) (int, kubesim.Object) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", form)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	text := must.Get(io.ReadAll(rec.Body))(t)
	var o kubesim.Object
	if json.Unmarshal(text, &o) != nil {
		o = kubesim.Object{"text": string(text)}
	}
	return rec.Code, o
}

const strategic = "application/strategic-merge-patch+json"

// TestPatches is a table of what Kubernetes 1.35.4 was seen to answer: status code, and a part of
// its message.
func TestPatches(t *testing.T) {
	for _, tt := range []struct {
		name, token, path, form, body string
		code                          int
		message                       string
	}{
		{"label", "node", "gpu-1", strategic, `{"metadata":{"labels":{"x":"y"}}}`, 200, ""},
		{"kubelet's label", "node", "gpu-1", strategic, `{"metadata":{"labels":{"node.kubernetes.io/x":"y"}}}`, 200, ""},
		{"label away", "node", "gpu-1", strategic, `{"metadata":{"labels":{"a":null}}}`, 200, ""},
		{"no value", "admin", "gpu-1", strategic, `{"metadata":{"labels":{"x":"a b"}}}`, 422, "is invalid: metadata.labels"},
		{"taint twice", "admin", "gpu-1", strategic, `{"spec":{"taints":[{"key":"k","effect":"NoSchedule"},{"key":"k","effect":"NoSchedule"}]}}`, 422, "metadata.taints[1]"},
		{"taint away", "admin", "gpu-1", strategic, `{"spec":{"taints":[]}}`, 200, ""},
		{"old version", "admin", "gpu-1", strategic, `{"metadata":{"resourceVersion":"1"}}`, 409, "has been modified"},
		{"taints by node", "node", "gpu-1", strategic, `{"spec":{"taints":null}}`, 403, `node "gpu-1" is not allowed to modify taints`},
		{"label by node", "node", "gpu-1", strategic, `{"metadata":{"labels":{"app.kubernetes.io/x":"y"}}}`, 403, "is not allowed to modify labels: app.kubernetes.io/x"},
		{"restricted label", "node", "gpu-1", strategic, `{"metadata":{"labels":{"x.node-restriction.kubernetes.io/x":"y"}}}`, 403, "is not allowed"},
		{"another node", "node", "gpu-2", strategic, `{"metadata":{"labels":{"x":"y"}}}`, 403, `node "gpu-1" is not allowed to modify node "gpu-2"`},
		{"no node", "node", "gpu-3", strategic, `{}`, 404, `nodes "gpu-3" not found`},
		{"no user", "", "gpu-1", strategic, `{}`, 401, "Unauthorized"},
		{"no role", "none", "gpu-1", strategic, `{}`, 403, `User "none" cannot patch resource "nodes"`},
		{"a role", "role", "gpu-1", strategic, `{"spec":{"taints":null}}`, 200, ""},
		{"role, not status", "role", "gpu-1/status", strategic, `{}`, 403, "cannot patch"},
		{"other form", "admin", "gpu-1", "text/plain", `[]`, 415, ""},
		{"condition", "node", "gpu-1/status", strategic, `{"status":{"conditions":[{"type":"X","status":"True"}]}}`, 200, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := kubesim.New(kubesim.User{})
			s.Token("node", kubesim.Node("gpu-1"))
			s.Token("admin", kubesim.Admin())
			s.Token("none", kubesim.User{Name: "none"})
			s.Token("role", kubesim.User{Name: "role", May: []string{"patch nodes"}})
			for _, name := range []string{"gpu-1", "gpu-2"} {
				s.AddNode(name, map[string]string{"a": "b"}, kubesim.Object{"key": "k", "effect": "NoSchedule"})
			}
			before := version(s)
			code, o := send(t, s, tt.token, http.MethodPatch, "/api/v1/nodes/"+tt.path, tt.form, tt.body)
			message, _ := o["message"].(string)
			check.That(t, code == tt.code && strings.Contains(message, tt.message), "got %d %q, want %d %q", code, message, tt.code, tt.message)
			changed := version(s) != before
			check.That(t, changed == (tt.code == 200), "it changed: %v", changed)
		})
	}
}

func version(s *kubesim.Server) any {
	return s.Node("gpu-1")["metadata"].(kubesim.Object)["resourceVersion"]
}

// TestStatus wants conditions merged by type, no spec changed through the status, and no status
// from beside it. Labels change by both.
func TestStatus(t *testing.T) {
	s := kubesim.New(kubesim.Admin())
	s.AddNode("gpu-1", nil)
	for _, body := range []string{
		`{"metadata":{"labels":{"x":"y"}},"spec":{"unschedulable":true},"status":{"conditions":[{"type":"X","status":"False","reason":"R"}]}}`,
		`{"status":{"conditions":[{"type":"X","status":"True"}]}}`,
	} {
		code, o := send(t, s, "", http.MethodPatch, "/api/v1/nodes/gpu-1/status", strategic, body)
		must.That(t, code == 200, "%v: %v", code, o)
	}

	send(t, s, "", http.MethodPatch, "/api/v1/nodes/gpu-1", strategic, `{"status":{"conditions":[{"type":"Y","status":"True"}]}}`)
	n := s.Node("gpu-1")
	got, err := json.Marshal([]any{n["metadata"].(kubesim.Object)["labels"], n["spec"].(kubesim.Object)["unschedulable"], n["status"]})
	want := `[{"x":"y"},null,{"conditions":[{"reason":"R","status":"True","type":"X"},{"status":"True","type":"Ready"}]}]`
	check.That(t, err == nil && string(got) == want, "got %s, want %s", got, want)
	before := version(s)
	send(t, s, "", http.MethodPatch, "/api/v1/nodes/gpu-1", strategic, `{}`)
	check.That(t, version(s) == before, "a patch that changes nothing made a new version")
}

func TestFaults(t *testing.T) {
	s := kubesim.New(kubesim.Admin())
	s.AddNode("gpu-1", nil)
	get := func() int {
		code, _ := send(t, s, "", http.MethodGet, "/api/v1/nodes/gpu-1", "", "")
		return code
	}

	s.Fail(kubesim.Fault{On: "PATCH", Status: 500})
	s.Fail(kubesim.Fault{On: "GET /api/v1/nodes", Status: 409, Times: 2})
	s.Fail(kubesim.Fault{On: "GET", Do: func(s *kubesim.Server) { s.DeleteNode("gpu-1") }})
	got, want := []int{get(), get(), get(), get()}, []int{409, 409, 404, 404}
	check.That(t, slices.Equal(got, want), "got %v, want %v", got, want)
	if got := len(s.Requests()); got != 4 {
		t.Errorf("%d requests", got)
	}
	s.AddNode("gpu-1", nil)
	s.Fail(kubesim.Fault{Status: 503, Times: -1})
	first, second := get(), get()
	check.That(t, first == 503 && second == 503, "always is not always")
	if s.Heal(); get() != 200 {
		t.Error("it does not heal")
	}
}
