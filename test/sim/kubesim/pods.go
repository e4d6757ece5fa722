// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// placed are the pods whose node has the labels of their nodeSelector: the controller of a
// DaemonSet ends the others.
// Source: kubernetes, pkg/controller/daemon/daemon_controller.go, podsShouldBeOnNode.
func (s *Server) placed() []Object {
	return slices.DeleteFunc(slices.Clone(s.pods), func(pod Object) bool {
		spec := below(pod, "spec")
		name, _ := spec["nodeName"].(string)
		node := s.nodes[name]
		selects, _ := spec["nodeSelector"].(Object)
		for key, value := range selects {
			if node != nil && below(below(node, "metadata"), "labels")[key] != value {
				return true
			}
		}

		return false
	})
}

// list answers with the objects on one node.
func (s *Server) list(r *http.Request, u User, what, kind, version string, all []Object) answer {
	node, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	if !u.may("list", what, node) {
		return forbidden(u, "list", what, "", "")
	}
	items := []Object{}
	for _, o := range all {
		name, _ := below(o, "spec")["nodeName"].(string)
		if node == "" || name == node {
			items = append(items, o)
		}
	}

	return answer{200, Object{
		"kind":       kind,
		"apiVersion": version,
		"metadata":   Object{"resourceVersion": "1"},
		"items":      items,
	}}
}

// eviction evicts a pod. Sources: kubernetes, pkg/registry/core/pod/storage/eviction.go (Create,
// checkAndDecrement), plugin/pkg/admission/noderestriction/admission.go (admitPodEviction);
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/.
func (s *Server) eviction(u User, namespace, name string, body []byte) answer {
	var asked struct {
		Metadata      struct{ Name string }
		DeleteOptions struct{ Preconditions struct{ UID string } }
	}
	err := json.Unmarshal(body, &asked)
	i := slices.IndexFunc(s.pods, func(pod Object) bool { return named(pod, namespace, name) })
	switch {
	case err != nil || asked.Metadata.Name != name:
		return failure(400, "BadRequest", "name in URL does not match name in Eviction object", nil)
	case !u.may("create", "pods/eviction", name):
		return forbidden(u, "create", "pods/eviction", name, "")
	case i < 0:
		return failure(404, "NotFound", fmt.Sprintf("pods %q not found", name), nil)
	}

	pod := s.pods[i]
	own, isNode := strings.CutPrefix(u.Name, "system:node:")
	if isNode && below(pod, "spec")["nodeName"] != own {
		const form = "pods %q is forbidden: node %s can only evict pods with spec.nodeName set to itself"
		return failure(403, "Forbidden", fmt.Sprintf(form, name, own), nil)
	}
	uid := asked.DeleteOptions.Preconditions.UID
	if uid != "" && uid != below(pod, "metadata")["uid"] {
		const form = "Operation cannot be fulfilled on pods %q: the UID in the precondition (%s) does not match"
		return failure(409, "Conflict", fmt.Sprintf(form, name, uid), nil)
	}
	if s.evict != nil {
		if budget := s.evict(namespace + "/" + name); budget != "" {
			return overBudget(budget)
		}
	}

	s.pods = slices.Delete(s.pods, i, i+1)
	return answer{201, Object{"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}}
}

func overBudget(budget string) answer {
	cause := Object{
		"reason":  "DisruptionBudget",
		"message": "The disruption budget " + budget + " needs 1 healthy pods and has 1 currently",
	}
	const message = "Cannot evict pod as it would violate the pod's disruption budget."
	return failure(429, "TooManyRequests", message, []any{cause})
}

func (s *Server) event(u User, namespace string, body []byte) answer {
	if !u.may("create", "events", "") {
		const form = "events is forbidden: User %q cannot create resource \"events\" in API group \"\" in the namespace %q"
		return failure(403, "Forbidden", fmt.Sprintf(form, u.Name, namespace), nil)
	}
	var event Object
	if err := json.Unmarshal(body, &event); err != nil {
		return failure(400, "BadRequest", err.Error(), nil)
	}

	name, _ := below(event, "metadata")["name"].(string)
	about, _ := event["involvedObject"].(Object)
	switch {
	case about["namespace"] == nil && namespace != "default", about["namespace"] != nil && about["namespace"] != namespace:
		// legacyValidateEvent in pkg/apis/core/validation/events.go
		const field = "involvedObject.namespace"
		message := "Event is invalid: " + field + ": does not match event.namespace"
		return failure(422, "Invalid", message, []any{Object{"field": field}})
	case name == "" || about["name"] == nil || about["kind"] == nil:
		return failure(422, "Invalid", "Event is invalid: a name is required", []any{Object{"field": "metadata.name"}})
	}

	for _, other := range s.events {
		if below(other, "metadata")["name"] == name {
			return failure(409, "AlreadyExists", fmt.Sprintf("events %q already exists", name), nil)
		}
	}

	s.events = append(s.events, event)
	return answer{201, event}
}
