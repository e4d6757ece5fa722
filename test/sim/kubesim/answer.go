// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// answer answers a request that no fault stops.
func (s *Server) answer(r *http.Request) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what, ok := s.raw[r.URL.Path]; ok && r.Method == http.MethodGet {
		return answer{200, what}
	}
	user := s.anonymous
	if header := r.Header.Get("Authorization"); header != "" {
		user = s.users[strings.TrimPrefix(header, "Bearer ")]
	}
	if user.Name == "" {
		return failure(401, "Unauthorized", "Unauthorized", nil)
	}
	var body []byte
	if r.Body != nil { // a simulated network hands over the client's own request
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, 1<<20)); err != nil {
			return failure(400, "BadRequest", err.Error(), nil)
		}
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch path := r.URL.Path; {
	case path == "/livez" || path == "/readyz":
		return answer{200, "ok"}
	case path == "/version":
		return answer{200, Object{"gitVersion": "v1.35.4"}}
	case path == "/apis/authentication.k8s.io/v1/selfsubjectreviews" && r.Method == http.MethodPost:
		return answer{201, Object{
			"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
			"status": Object{"userInfo": user.info()},
		}}
	case strings.HasPrefix(path, "/api/v1/nodes"):
		return s.node(r, user, parts[2:], body)
	case strings.HasPrefix(path, "/api/v1/namespaces/") && len(parts) == 5 && parts[4] == "events" && r.Method == http.MethodPost:
		return s.event(user, parts[3], body)
	case strings.HasPrefix(path, "/api/v1/namespaces/") && len(parts) == 7 && parts[4] == "pods" && parts[6] == "eviction" && r.Method == http.MethodPost:
		return s.eviction(user, parts[3], parts[5], body)
	case path == "/api/v1/pods" && r.Method == http.MethodGet:
		return s.list(r, user, "pods", "PodList", "v1", s.placed())
	case strings.HasPrefix(path, "/apis/resource.k8s.io/") && len(parts) == 4 && parts[3] == "resourceslices" && r.Method == http.MethodGet:
		if _, known := s.slices[parts[2]]; known {
			return s.list(r, user, "resourceslices", "ResourceSliceList", "resource.k8s.io/"+parts[2], s.slices[parts[2]])
		}
	}
	return answer{404, "404 page not found\n"}
}

// info is how the server knows a user: pkg/serviceaccount/util.go, UserInfo.
func (u User) info() Object {
	is := Object{"username": u.Name, "groups": u.Groups}
	if u.OnNode != "" {
		is["extra"] = Object{"authentication.kubernetes.io/node-name": []string{u.OnNode}}
	}
	return is
}

// may is the authorizers: a role, or what the node authorizer lets every kubelet.
func (u User) may(verb, what, name string) bool {
	if slices.Contains(u.May, "*") || slices.Contains(u.May, verb+" "+what) {
		return true
	}
	own, isNode := strings.CutPrefix(u.Name, "system:node:")
	if !isNode {
		return false
	}
	switch verb + " " + what {
	case "get nodes":
		return name == own // Kubernetes 1.32 and later (AuthorizeNodeWithSelectors)
	case "patch nodes", "patch nodes/status", "create events", "create pods/eviction":
		return true // admission decides which objects
	case "list pods", "list resourceslices":
		return name == own
	}
	return false
}

func forbidden(u User, verb, what, name, group string) answer {
	return failure(403, "Forbidden", fmt.Sprintf("%s %q is forbidden: User %q cannot %s resource %q in API group %q at the cluster scope",
		strings.TrimSuffix(what, "/status"), name, u.Name, verb, what, group), nil)
}

// placed are the pods whose node has the labels of their nodeSelector: the controller of a
// DaemonSet ends the others.
// Source: kubernetes, pkg/controller/daemon/daemon_controller.go, podsShouldBeOnNode.
func (s *Server) placed() []Object {
	return slices.DeleteFunc(slices.Clone(s.pods), func(pod Object) bool {
		spec := below(pod, "spec")
		name, _ := spec["nodeName"].(string)
		selects, _ := spec["nodeSelector"].(Object)
		for key, value := range selects {
			if n := s.nodes[name]; n != nil && below(below(n, "metadata"), "labels")[key] != value {
				return true
			}
		}
		return false
	})
}

// list answers for what lies on one node.
func (s *Server) list(r *http.Request, u User, what, kind, version string, all []Object) answer {
	node, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	if !u.may("list", what, node) {
		return forbidden(u, "list", what, "", "")
	}
	items := []Object{}
	for _, o := range all {
		if name, _ := below(o, "spec")["nodeName"].(string); node == "" || name == node {
			items = append(items, o)
		}
	}
	return answer{200, Object{"kind": kind, "apiVersion": version, "metadata": Object{"resourceVersion": "1"}, "items": items}}
}

// eviction evicts a pod. Sources: kubernetes, pkg/registry/core/pod/storage/eviction.go (Create,
// checkAndDecrement), plugin/pkg/admission/noderestriction/admission.go (admitPodEviction);
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/.
func (s *Server) eviction(u User, namespace, name string, body []byte) answer {
	var asked struct {
		Metadata      struct{ Name string }
		DeleteOptions struct{ Preconditions struct{ UID string } }
	}
	i := slices.IndexFunc(s.pods, func(p Object) bool { return named(p, namespace, name) })
	switch err := json.Unmarshal(body, &asked); {
	case err != nil || asked.Metadata.Name != name:
		return failure(400, "BadRequest", "name in URL does not match name in Eviction object", nil)
	case !u.may("create", "pods/eviction", name):
		return forbidden(u, "create", "pods/eviction", name, "")
	case i < 0:
		return failure(404, "NotFound", fmt.Sprintf("pods %q not found", name), nil)
	}
	if own, isNode := strings.CutPrefix(u.Name, "system:node:"); isNode && below(s.pods[i], "spec")["nodeName"] != own {
		return failure(403, "Forbidden", fmt.Sprintf("pods %q is forbidden: node %s can only evict pods with spec.nodeName set to itself", name, own), nil)
	}
	if uid := asked.DeleteOptions.Preconditions.UID; uid != "" && uid != below(s.pods[i], "metadata")["uid"] {
		return failure(409, "Conflict", fmt.Sprintf("Operation cannot be fulfilled on pods %q: the UID in the precondition (%s) does not match", name, uid), nil)
	}
	if s.evict != nil {
		if budget := s.evict(namespace + "/" + name); budget != "" {
			return failure(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.",
				[]any{Object{"reason": "DisruptionBudget", "message": "The disruption budget " + budget + " needs 1 healthy pods and has 1 currently"}})
		}
	}
	s.pods = slices.Delete(s.pods, i, i+1)
	return answer{201, Object{"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}}
}

func (s *Server) event(u User, namespace string, body []byte) answer {
	if !u.may("create", "events", "") {
		return forbidden(u, "create", "events", "", "")
	}
	var ev Object
	if err := json.Unmarshal(body, &ev); err != nil {
		return failure(400, "BadRequest", err.Error(), nil)
	}
	name, _ := below(ev, "metadata")["name"].(string)
	about, _ := ev["involvedObject"].(Object)
	switch {
	case about["namespace"] == nil && namespace != "default": // legacyValidateEvent in pkg/apis/core/validation/events.go
		return failure(422, "Invalid", "Event is invalid: involvedObject.namespace: does not match event.namespace", []any{Object{"field": "involvedObject.namespace"}})
	case name == "" || about["name"] == nil || about["kind"] == nil:
		return failure(422, "Invalid", "Event is invalid: a name is required", []any{Object{"field": "metadata.name"}})
	}
	for _, there := range s.events {
		if below(there, "metadata")["name"] == name {
			return failure(409, "AlreadyExists", fmt.Sprintf("events %q already exists", name), nil)
		}
	}
	s.events = append(s.events, ev)
	return answer{201, ev}
}

// node answers what is asked about Nodes; parts is "nodes", a name, a subresource.
func (s *Server) node(r *http.Request, u User, parts []string, body []byte) answer {
	what, name := "nodes", ""
	if len(parts) > 1 {
		name = parts[1]
	}
	if len(parts) == 3 && parts[2] == "status" {
		what = "nodes/status"
	} else if len(parts) > 2 {
		return answer{404, "404 page not found\n"}
	}
	verb := map[string]string{http.MethodGet: "get", http.MethodPatch: "patch"}[r.Method]
	if name == "" && verb == "get" {
		verb = "list"
	}
	switch {
	case verb == "" || name == "" && verb != "list":
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

// patch applies a patch as the real server does: all but the status, or, by the status, all but the
// spec.
func (s *Server) patch(r *http.Request, u User, name string, status bool, body []byte) answer {
	old := s.nodes[name]
	made, bad := apply(clone(old), r.Header.Get("Content-Type"), body)
	if bad != nil {
		return *bad
	}
	if want := below(made, "metadata")["resourceVersion"]; want != below(old, "metadata")["resourceVersion"] {
		return failure(409, "Conflict", fmt.Sprintf("Operation cannot be fulfilled on nodes %q: the object has been modified; please apply your changes to the latest version and try again", name), nil)
	}
	kept := clone(old)
	if status { // labels and annotations are changed too: kubernetes, pkg/registry/core/node/strategy.go, nodeStatusStrategy
		if delete(made, "spec"); kept["spec"] != nil {
			made["spec"] = kept["spec"]
		}
	} else {
		made["status"] = kept["status"]
	}
	if why := restricted(u, name, old, made); why != "" {
		return failure(403, "Forbidden", fmt.Sprintf("nodes %q is forbidden: %s", name, why), nil)
	}
	if field := invalid(made); field != "" {
		return failure(422, "Invalid", fmt.Sprintf("Node %q is invalid: %s: Invalid value", name, field),
			[]any{Object{"reason": "FieldValueInvalid", "message": "Invalid value", "field": field}})
	}
	if s.admit != nil {
		if why := s.admit(u, old, made); why != "" {
			return failure(403, "Forbidden", fmt.Sprintf("nodes %q is forbidden: %s", name, why), []any{Object{"message": why}})
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

// restricted is the admission plugin NodeRestriction, in the words of its admitNode.
func restricted(u User, name string, old, made Object) string {
	own, isNode := strings.CutPrefix(u.Name, "system:node:")
	if !isNode {
		return ""
	}
	if own != name {
		return fmt.Sprintf("node %q is not allowed to modify node %q", own, name)
	}
	if !reflect.DeepEqual(below(old, "spec")["taints"], below(made, "spec")["taints"]) {
		return fmt.Sprintf("node %q is not allowed to modify taints", own)
	}
	before, _ := below(old, "metadata")["labels"].(Object)
	after, _ := below(made, "metadata")["labels"].(Object)
	var bad []string
	for _, both := range []Object{before, after} {
		for key := range both {
			if before[key] != after[key] && !nodeLabel(key) && !slices.Contains(bad, key) {
				bad = append(bad, key)
			}
		}
	}
	if bad != nil {
		slices.Sort(bad)
		return "is not allowed to modify labels: " + strings.Join(bad, ", ")
	}
	return ""
}

// nodeLabel says whether a kubelet may set a label on its own Node: kubelet's
// pkg/apis/well_known_labels.go.
func nodeLabel(key string) bool {
	namespace, _, has := strings.Cut(key, "/")
	under := func(domain string) bool { return namespace == domain || strings.HasSuffix(namespace, "."+domain) }
	switch {
	case !has:
		return true
	case under("node-restriction.kubernetes.io"):
		return false
	case !under("kubernetes.io") && !under("k8s.io"), under("kubelet.kubernetes.io"), under("node.kubernetes.io"):
		return true
	}
	return slices.Contains([]string{
		"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region", "beta.kubernetes.io/instance-type",
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	}, key)
}

// invalid names the first field that validation would refuse: labels that are no strings or too
// long, taints that are there twice.
func invalid(n Object) string {
	labels, _ := below(n, "metadata")["labels"].(Object)
	for _, v := range labels {
		if s, ok := v.(string); !ok || len(s) > 63 || strings.ContainsAny(s, " /:") {
			return "metadata.labels"
		}
	}
	taints, _ := below(n, "spec")["taints"].([]any)
	seen := map[string]bool{}
	for _, t := range taints {
		o, _ := t.(Object)
		id := fmt.Sprint(o["key"], ":", o["effect"])
		if o["key"] == nil || o["effect"] == nil || seen[id] {
			return "spec.taints"
		}
		seen[id] = true
	}
	return ""
}
