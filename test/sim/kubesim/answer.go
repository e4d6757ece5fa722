// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
	user := s.userOf(r)
	if user.Name == "" {
		return failure(401, "Unauthorized", "Unauthorized", nil)
	}
	body, err := bodyOf(r)
	if err != nil {
		return failure(400, "BadRequest", err.Error(), nil)
	}

	path := r.URL.Path
	parts := strings.Split(strings.Trim(path, "/"), "/")
	get, post := r.Method == http.MethodGet, r.Method == http.MethodPost
	switch {
	case path == "/livez" || path == "/readyz":
		return answer{200, "ok"}
	case path == "/version":
		return answer{200, Object{"gitVersion": "v1.35.4"}}
	case post && path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		return answer{201, Object{
			"kind":       "SelfSubjectReview",
			"apiVersion": "authentication.k8s.io/v1",
			"status":     Object{"userInfo": user.info()},
		}}
	case post && path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		return accessReview(user, body)
	case strings.HasPrefix(path, "/api/v1/nodes"):
		return s.node(r, user, parts[2:], body)
	case get && path == "/api/v1/pods":
		return s.list(r, user, "pods", "PodList", "v1", s.placed())
	case post && strings.HasPrefix(path, "/api/v1/namespaces/"):
		return s.namespaced(user, parts[3:], body)
	case get && strings.HasPrefix(path, "/apis/resource.k8s.io/") && len(parts) == 4 && parts[3] == "resourceslices":
		version := parts[2]
		if slices, known := s.slices[version]; known {
			return s.list(r, user, "resourceslices", "ResourceSliceList", "resource.k8s.io/"+version, slices)
		}
	}

	return notFound()
}

func notFound() answer { return answer{404, "404 page not found\n"} }

// namespaced answers a POST below a namespace; parts are the namespace, and what is in it.
func (s *Server) namespaced(u User, parts []string, body []byte) answer {
	switch {
	case len(parts) == 2 && parts[1] == "events":
		return s.event(u, parts[0], body)
	case len(parts) == 4 && parts[1] == "pods" && parts[3] == "eviction":
		return s.eviction(u, parts[0], parts[2], body)
	}
	return notFound()
}

// userOf returns who makes a request; the zero User for an unknown token.
func (s *Server) userOf(r *http.Request) User {
	header := r.Header.Get("Authorization")
	if header == "" {
		return s.anonymous
	}
	return s.users[strings.TrimPrefix(header, "Bearer ")]
}

// bodyOf reads a request's body. A simulated network hands over the client's own request, which may
// have none.
func bodyOf(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	return io.ReadAll(io.LimitReader(r.Body, 1<<20))
}

// info is how the server knows a user: pkg/serviceaccount/util.go, UserInfo.
func (u User) info() Object {
	info := Object{"username": u.Name, "groups": u.Groups}
	if u.OnNode != "" {
		info["extra"] = Object{"authentication.kubernetes.io/node-name": []string{u.OnNode}}
	}
	return info
}

// accessReview answers what a user may do.
// Source: k8s.io/api, authorization/v1/types.go (SelfSubjectAccessReview).
func accessReview(u User, body []byte) answer {
	var review struct {
		Spec struct {
			ResourceAttributes struct{ Verb, Resource, Name string }
		}
	}
	if err := json.Unmarshal(body, &review); err != nil {
		return failure(400, "BadRequest", err.Error(), nil)
	}
	asks := review.Spec.ResourceAttributes
	return answer{201, Object{
		"kind":       "SelfSubjectAccessReview",
		"apiVersion": "authorization.k8s.io/v1",
		"status":     Object{"allowed": u.may(asks.Verb, asks.Resource, asks.Name)},
	}}
}

// may is the authorizers: a role allows something, or the node authorizer allows it to every
// kubelet.
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
	const form = "%s %q is forbidden: User %q cannot %s resource %q in API group %q at the cluster scope"
	resource := strings.TrimSuffix(what, "/status")
	message := fmt.Sprintf(form, resource, name, u.Name, verb, what, group)
	if own, isNode := strings.CutPrefix(u.Name, "system:node:"); isNode && verb+" "+what == "get nodes" {
		message += fmt.Sprintf(": node '%s' cannot read '%s', only its own Node object", own, name)
	}
	return failure(403, "Forbidden", message, nil)
}
