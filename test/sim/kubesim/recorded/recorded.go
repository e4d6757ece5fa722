// SPDX-License-Identifier: Apache-2.0

// Package recorded has what a real API server answered to a table of requests. The simulated one is
// held to it (test/sim/kubesim), and so is each real one that the lab builds (test/lab/kube).
package recorded

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

//go:embed answers.json
var answers []byte

// Record is the answers to all requests, in their order.
type Record struct {
	Server  string   // the server's own version
	Date    string   // of the record
	Answers []Answer // one for each of Requests
}

// Read returns the record.
func Read(t *testing.T) Record {
	t.Helper()
	var r Record
	must.OK(t, json.Unmarshal(answers, &r))
	must.That(t, len(r.Answers) == len(Requests()), "the record has %d answers, there are %d requests", len(r.Answers), len(Requests()))
	return r
}

// The users that ask. Admin may do everything; Kubelet is that of Node gpu-1.
const (
	Admin   = "admin"
	Kubelet = "system:node:gpu-1"
	NoRole  = "system:serviceaccount:default:norole"
	Role    = "system:serviceaccount:default:role" // may get and patch nodes, and nothing of their status
)

// A Request is one line of the table.
type Request struct {
	What   string
	Who    string
	Method string
	Path   string
	Form   string // the media type of Body
	Body   string
}

const (
	jsonForm  = "application/json"
	mergeForm = "application/strategic-merge-patch+json"
)

// Requests are sent in this order to a server that has the Nodes gpu-1 and gpu-2, each with the label
// a=b and the taint k:NoSchedule.
func Requests() []Request {
	get := func(what, who, node string) Request {
		return Request{what, who, "GET", "/api/v1/nodes/" + node, "", ""}
	}
	patch := func(what, who, node, body string) Request {
		return Request{what, who, "PATCH", "/api/v1/nodes/" + node, mergeForm, body}
	}
	event := func(what, who, namespace, body string) Request {
		return Request{what, who, "POST", "/api/v1/namespaces/" + namespace + "/events", jsonForm, body}
	}
	about := func(name, more string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"involvedObject":{"kind":"Node","name":"gpu-1"%s},"reason":"R","message":"m","type":"Normal"}`, name, more)
	}
	return []Request{
		get("its own Node", Kubelet, "gpu-1"),
		get("another Node", Kubelet, "gpu-2"),
		get("a Node that is missing", Admin, "gpu-3"),
		get("without a role", NoRole, "gpu-1"),
		get("with a role", Role, "gpu-1"),

		patch("a label", Kubelet, "gpu-1", `{"metadata":{"labels":{"x":"y"}}}`),
		patch("a label away", Kubelet, "gpu-1", `{"metadata":{"labels":{"a":null}}}`),
		patch("kubelet's label", Kubelet, "gpu-1", `{"metadata":{"labels":{"node.kubernetes.io/x":"y"}}}`),
		patch("a label that kubelet may not set", Kubelet, "gpu-1", `{"metadata":{"labels":{"app.kubernetes.io/x":"y"}}}`),
		patch("two of them", Kubelet, "gpu-1", `{"metadata":{"labels":{"b.k8s.io/x":"y","a.kubernetes.io/x":"y"}}}`),
		patch("a restricted label", Kubelet, "gpu-1", `{"metadata":{"labels":{"x.node-restriction.kubernetes.io/x":"y"}}}`),
		patch("a label that is not a value", Admin, "gpu-1", `{"metadata":{"labels":{"x":"a b"}}}`),
		patch("another Node", Kubelet, "gpu-2", `{"metadata":{"labels":{"x":"y"}}}`),
		patch("a Node that is missing", Kubelet, "gpu-3", `{}`),
		patch("without a role", NoRole, "gpu-1", `{}`),

		patch("taints by kubelet", Kubelet, "gpu-1", `{"spec":{"taints":null}}`),
		patch("a taint instead of all", Role, "gpu-2", `{"spec":{"taints":[{"key":"n","value":"v","effect":"NoExecute"}]}}`),
		patch("one key, two effects", Role, "gpu-2", `{"spec":{"taints":[{"key":"n","effect":"NoExecute"},{"key":"n","effect":"NoSchedule"}]}}`),
		patch("a taint twice", Role, "gpu-2", `{"spec":{"taints":[{"key":"n","effect":"NoSchedule"},{"key":"n","effect":"NoSchedule"}]}}`),
		patch("a taint without an effect", Role, "gpu-2", `{"spec":{"taints":[{"key":"n"}]}}`),
		patch("no taints", Role, "gpu-2", `{"spec":{"taints":[]}}`),
		patch("taints away", Role, "gpu-1", `{"spec":{"taints":null}}`),
		patch("cordoned", Role, "gpu-1", `{"spec":{"unschedulable":true}}`),

		patch("an old version", Admin, "gpu-1", `{"metadata":{"resourceVersion":"1"}}`),
		patch("no JSON", Admin, "gpu-1", `{`),
		{"another form", Admin, "PATCH", "/api/v1/nodes/gpu-1", "text/plain", `[]`},

		patch("a condition", Kubelet, "gpu-1/status", `{"status":{"conditions":[{"type":"example.com/X","status":"True","reason":"R","message":"m"}]}}`),
		patch("the condition again", Kubelet, "gpu-1/status", `{"status":{"conditions":[{"type":"example.com/X","status":"False"}]}}`),
		patch("a second condition", Kubelet, "gpu-1/status", `{"status":{"conditions":[{"type":"example.com/Y","status":"Unknown"}]}}`),
		patch("a label by the status", Kubelet, "gpu-1/status", `{"metadata":{"labels":{"s":"t"}}}`),
		patch("a taint by the status", Admin, "gpu-1/status", `{"spec":{"taints":[{"key":"s","effect":"NoSchedule"}]}}`),
		patch("a condition, not by the status", Admin, "gpu-1", `{"status":{"conditions":[{"type":"example.com/Z","status":"True"}]}}`),
		patch("the status by a role", Role, "gpu-1/status", `{}`),
		patch("another Node's status", Kubelet, "gpu-2/status", `{"status":{"conditions":[{"type":"example.com/X","status":"True"}]}}`),

		event("an Event", Kubelet, "default", about("one", "")),
		event("the Event again", Kubelet, "default", about("one", "")),
		event("an Event without a role", NoRole, "default", about("two", "")),
		event("an Event in another namespace", Admin, "kube-system", about("three", "")),
		event("an Event about another namespace", Admin, "default", about("four", `,"namespace":"kube-system"`)),
	}
}

// An Answer is what gpuadm reads of a server's answer.
type Answer struct {
	What    string // the request's
	Code    int
	Reason  string   `json:",omitempty"` // of a refusal
	Message string   `json:",omitempty"` // of a refusal, unless it names fields
	Fields  []string `json:",omitempty"` // that a refusal names
	Node    *Node    `json:",omitempty"`
}

// Node is the part of a Node that is gpuadm's matter. What the control plane adds is left out.
type Node struct {
	Labels     map[string]string
	Taints     []string
	Cordoned   bool
	Conditions []string
}

// AnswerOf reads an answer.
func AnswerOf(to Request, code int, body []byte) Answer {
	var is struct {
		Kind, Reason, Message string
		Details               struct{ Causes []struct{ Field string } }
		Metadata              struct{ Labels map[string]string }
		Spec                  struct {
			Unschedulable bool
			Taints        []struct{ Key, Value, Effect string }
		}
		Status json.RawMessage // of a Status it is a word
	}
	_ = json.Unmarshal(body, &is) // a text has none of it
	a := Answer{What: to.What, Code: code}
	if code >= 300 {
		a.Reason = is.Reason
		for _, cause := range is.Details.Causes {
			a.Fields = append(a.Fields, cause.Field)
		}
		a.Fields = slices.Compact(a.Fields) // a field may be wrong in more than one way
		if len(a.Fields) == 0 && (code == 403 || code == 404 || code == 409) {
			a.Message = is.Message
		}
		return a
	}

	if is.Kind != "Node" {
		return a
	}

	a.Node = &Node{Labels: is.Metadata.Labels, Cordoned: is.Spec.Unschedulable}
	for _, t := range is.Spec.Taints {
		if !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			a.Node.Taints = append(a.Node.Taints, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
		}
	}

	var status struct {
		Conditions []struct{ Type, Status, Reason, Message string }
	}
	_ = json.Unmarshal(is.Status, &status)
	for _, c := range status.Conditions {
		if strings.HasPrefix(c.Type, "example.com/") {
			a.Node.Conditions = append(a.Node.Conditions, fmt.Sprintf("%s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message))
		}
	}

	return a
}
