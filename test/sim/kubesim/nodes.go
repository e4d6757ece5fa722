// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"fmt"
	"net/http"
	"reflect"
	"strconv"
)

// node answers what is asked about Nodes; parts is "nodes", a name, a subresource.
func (s *Server) node(r *http.Request, u User, parts []string, body []byte) answer {
	name := ""
	if len(parts) > 1 {
		name = parts[1]
	}
	what := "nodes"
	if len(parts) > 2 {
		if len(parts) > 3 || parts[2] != "status" {
			return notFound()
		}
		what = "nodes/status"
	}

	verb := nodeVerb(r.Method, name)
	switch {
	case verb == "":
		return failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", nil)
	case !u.may(verb, what, name):
		return forbidden(u, verb, what, name, "")
	case verb == "list":
		items := []Object{}
		for _, n := range s.nodes {
			items = append(items, n)
		}
		return answer{200, Object{"kind": "NodeList", "apiVersion": "v1", "metadata": Object{}, "items": items}}
	case s.nodes[name] == nil:
		return failure(404, "NotFound", fmt.Sprintf("nodes %q not found", name), nil)
	case verb == "get":
		return answer{200, s.nodes[name]}
	}

	return s.patch(r, u, name, what == "nodes/status", body)
}

// nodeVerb is the verb of a request about Nodes; "" if the server allows none.
func nodeVerb(method, name string) string {
	switch {
	case method == http.MethodGet && name == "":
		return "list"
	case method == http.MethodGet:
		return "get"
	case method == http.MethodPatch && name != "":
		return "patch"
	}
	return ""
}

// patch applies a patch as the real server does: all but the status, or, by the status, all but the
// spec.
func (s *Server) patch(r *http.Request, u User, name string, status bool, body []byte) answer {
	old := s.nodes[name]
	made, bad := apply(clone(old), r.Header.Get("Content-Type"), body)
	if bad != nil {
		return *bad
	}
	if below(made, "metadata")["resourceVersion"] != below(old, "metadata")["resourceVersion"] {
		const form = "Operation cannot be fulfilled on nodes %q: the object has been modified; please apply your changes to the latest version and try again"
		return failure(409, "Conflict", fmt.Sprintf(form, name), nil)
	}

	// With the status, labels and annotations are changed too: kubernetes,
	// pkg/registry/core/node/strategy.go, nodeStatusStrategy.
	kept := clone(old)
	if !status {
		made["status"] = kept["status"]
	} else {
		delete(made, "spec")
		if kept["spec"] != nil {
			made["spec"] = kept["spec"]
		}
	}

	denied := "nodes " + strconv.Quote(name) + " is forbidden: "
	if why := restricted(u, name, old, made); why != "" {
		return failure(403, "Forbidden", denied+why, nil)
	}
	if field := invalid(made); field != "" {
		cause := Object{"reason": "FieldValueInvalid", "message": "Invalid value", "field": field}
		message := fmt.Sprintf("Node %q is invalid: %s: Invalid value", name, field)
		return failure(422, "Invalid", message, []any{cause})
	}

	if s.admit != nil {
		if why := s.admit(u, old, made); why != "" {
			return failure(403, "Forbidden", denied+why, []any{Object{"message": why}})
		}
	}

	if r.URL.Query().Get("dryRun") == "All" {
		return answer{200, made}
	}
	if !reflect.DeepEqual(old, made) { // a patch that changes nothing makes no new version
		s.nodes[name] = s.touched(made)
	}
	return answer{200, s.nodes[name]}
}
