// SPDX-License-Identifier: Apache-2.0

// Package kubesim is a simulated Kubernetes API server in memory, for tests: Nodes, Events, pods,
// ResourceSlices, who may do what, and faults on demand.
//
// It is an http.Handler: simhost.Node.Serve puts it on a simulated network, httptest.NewServer on a
// real one. It answers as the server of Kubernetes 1.35 does, where gpuadm reads the answer.
package kubesim

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Object is any object of the API as JSON has it.
type Object = map[string]any

// User is who makes a request.
type User struct {
	Name   string
	Groups []string
	// May lists what a role allows: "patch nodes", "patch nodes/status", "create events"; "*" is
	// all. A node's own identity (system:node:NAME) needs none: the node authorizer knows what it
	// may.
	May []string
	// OnNode is the node of the pod that the user's token is bound to.
	OnNode string
}

// Node is the identity of a kubelet.
func Node(name string) User {
	return User{
		Name:   "system:node:" + name,
		Groups: []string{"system:nodes", "system:authenticated"},
	}
}

// Admin may do everything.
func Admin() User {
	return User{
		Name:   "admin",
		Groups: []string{"system:masters", "system:authenticated"},
		May:    []string{"*"},
	}
}

// Fault is what happens to requests in place of, or before, an answer.
type Fault struct {
	On         string // beginning of "METHOD /path"; "" for any request
	Times      int    // how often; 0 is once, -1 always
	Status     int    // the answer's; 0: it is answered as always
	RetryAfter string // header
	Body       string // in place of a Status object
	Hang       bool   // no answer, until the client gives up
	Lost       bool   // the server does what was asked, and then answers with Status all the same
	// Do happens before, with the server's methods free to use: a node deleted meanwhile.
	Do func(*Server)
}

// Server is the API server.
type Server struct {
	mu        sync.Mutex
	version   int
	nodes     map[string]Object
	events    []Object
	pods      []Object
	slices    map[string][]Object // by version of resource.k8s.io
	raw       map[string]any      // what else is served by its path, to everybody
	users     map[string]User     // by bearer token
	anonymous User
	admit     func(u User, old, made Object) string
	evict     func(pod string) (budget string)
	faults    []Fault
	requests  []string
}

// New makes a server on which requests without a bearer token come from one user: there is no TLS
// on a simulated network that could show a certificate. With the zero User such requests get 401.
func New(withoutToken User) *Server {
	return &Server{
		version:   100,
		nodes:     map[string]Object{},
		raw:       map[string]any{},
		users:     map[string]User{},
		anonymous: withoutToken,
	}
}

// Token makes a bearer token known.
func (s *Server) Token(token string, u User) { s.locked(func() { s.users[token] = u }) }

// Admit has a ValidatingAdmissionPolicy judge changes of Nodes: it returns why one is denied, ""
// for none.
func (s *Server) Admit(policy func(u User, old, made Object) string) {
	s.locked(func() { s.admit = policy })
}

// OnEvict is asked whether a budget keeps a pod, NAMESPACE/NAME, from being evicted: it returns the
// budget's name, "" for none; then the pod is gone at once.
func (s *Server) OnEvict(ask func(pod string) (budget string)) {
	s.locked(func() { s.evict = ask })
}

// DeletePod deletes a pod.
func (s *Server) DeletePod(namespace, name string) {
	s.locked(func() {
		s.pods = slices.DeleteFunc(s.pods, func(pod Object) bool {
			return named(pod, namespace, name)
		})
	})
}

func named(o Object, namespace, name string) bool {
	meta := below(o, "metadata")
	return meta["namespace"] == namespace && meta["name"] == name
}

// Revoke makes a bearer token unknown.
func (s *Server) Revoke(token string) { s.locked(func() { delete(s.users, token) }) }

// PutNode adds a Node or replaces it; apiVersion, kind, uid and resourceVersion are filled in.
func (s *Server) PutNode(n Object) {
	s.locked(func() {
		n = clone(n)
		meta := below(n, "metadata")
		n["apiVersion"] = "v1"
		n["kind"] = "Node"
		name, _ := meta["name"].(string)
		if meta["uid"] == nil {
			meta["uid"] = "uid-of-" + name
		}
		below(n, "spec")
		below(n, "status")
		s.nodes[name] = s.touched(n)
	})
}

// AddNode adds a Node as kubelet registers it, Ready.
func (s *Server) AddNode(name string, labels map[string]string, taints ...Object) {
	meta, spec := Object{"name": name}, Object{}
	if labels != nil {
		meta["labels"] = labels
	}
	if taints != nil {
		spec["taints"] = taints
	}
	ready := Object{"type": "Ready", "status": "True"}
	s.PutNode(Object{
		"metadata": meta,
		"spec":     spec,
		"status":   Object{"conditions": []any{ready}},
	})
}

// EditNode changes a Node as another client would: a controller, another run. It does nothing where
// there is no such Node.
func (s *Server) EditNode(name string, edit func(Object)) {
	s.locked(func() {
		if n := s.nodes[name]; n != nil {
			n = clone(n)
			edit(n)
			s.nodes[name] = s.touched(clone(n))
		}
	})
}

// DeleteNode deletes a Node.
func (s *Server) DeleteNode(name string) { s.locked(func() { delete(s.nodes, name) }) }

// Node returns a Node, nil if there is none.
func (s *Server) Node(name string) (n Object) {
	s.locked(func() {
		if s.nodes[name] != nil {
			n = clone(s.nodes[name])
		}
	})
	return n
}

// AddPod adds a pod.
func (s *Server) AddPod(pod Object) {
	s.locked(func() { s.pods = append(s.pods, clone(pod)) })
}

// AddSlice adds a ResourceSlice under a version of resource.k8s.io ("v1"); nil only makes the
// version known.
func (s *Server) AddSlice(version string, slice Object) {
	s.locked(func() {
		if s.slices == nil {
			s.slices = map[string][]Object{}
		}
		s.slices[version] = slices.Clone(s.slices[version])
		if slice != nil {
			s.slices[version] = append(s.slices[version], clone(slice))
		}
	})
}

// Serve answers GETs of a path, from any user, with an object as JSON or with a string.
func (s *Server) Serve(path string, what any) { s.locked(func() { s.raw[path] = what }) }

// Fail adds a fault; the first that fits a request is taken.
func (s *Server) Fail(f Fault) { s.locked(func() { s.faults = append(s.faults, f) }) }

// Heal takes all faults away.
func (s *Server) Heal() { s.locked(func() { s.faults = nil }) }

// Events returns the Events that were left.
func (s *Server) Events() (all []Object) {
	s.locked(func() { all = slices.Clone(s.events) })
	return all
}

// Requests returns what was asked, "GET /api/v1/nodes/x", with "cached" where the server's cache
// may answer, and forgets it.
func (s *Server) Requests() (all []string) {
	s.locked(func() {
		all = s.requests
		s.requests = nil
	})
	return all
}

func (s *Server) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// touched gives an object a new version.
func (s *Server) touched(n Object) Object {
	s.version++
	below(n, "metadata")["resourceVersion"] = strconv.Itoa(s.version)
	return n
}

// take returns the fault for a request.
func (s *Server) take(request string) (f Fault) {
	s.locked(func() {
		s.requests = append(s.requests, request)
		i := slices.IndexFunc(s.faults, func(f Fault) bool {
			return strings.HasPrefix(request, f.On)
		})
		if i < 0 {
			return
		}
		f = s.faults[i]
		switch f.Times {
		case 0, 1:
			s.faults = slices.Delete(s.faults, i, i+1)
		case -1:
		default:
			s.faults[i].Times--
		}
	})
	return f
}

// ServeHTTP is http.Handler's.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := r.Method + " " + r.URL.Path
	if r.URL.Query().Get("resourceVersion") == "0" {
		request += " cached"
	}

	f := s.take(request)
	if f.Do != nil {
		f.Do(s)
	}
	if f.Hang {
		wait(r.Context())
		return
	}
	if f.Lost {
		_ = s.answer(r)
	}
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}

	a := answer{code: f.Status, body: f.Body}
	switch {
	case f.Status == 0:
		a = s.answer(r)
	case f.Body == "":
		a = failure(f.Status, reasonOf(f.Status), "a fault on demand", nil)
	}

	a.write(w)
}

func (a answer) write(w http.ResponseWriter) {
	if w.Header().Get("Date") == "" {
		w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	form := "text/plain"
	text, plain := a.body.(string)
	if !plain {
		form = "application/json"
		data, err := json.Marshal(a.body)
		if err != nil {
			panic(err)
		}
		text = string(data)
	}

	w.Header().Set("Content-Type", form)
	w.WriteHeader(a.code)
	_, _ = w.Write([]byte(text))
}

func wait(ctx context.Context) { <-ctx.Done() }

// answer is a status and an object, or a text.
type answer struct {
	code int
	body any
}

func failure(code int, reason, message string, causes []any) answer {
	details := Object{}
	if causes != nil {
		details = Object{"kind": "Node", "causes": causes}
	}
	return answer{code, Object{
		"kind":       "Status",
		"apiVersion": "v1",
		"metadata":   Object{},
		"status":     "Failure",
		"message":    message,
		"reason":     reason,
		"details":    details,
		"code":       code,
	}}
}

func reasonOf(code int) string {
	reasons := map[int]string{
		400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound",
		409: "Conflict", 422: "Invalid", 429: "TooManyRequests",
		500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
	}
	return reasons[code]
}

// below returns the object under a key; it makes one where there is none.
func below(o Object, key string) Object {
	inner, ok := o[key].(Object)
	if !ok {
		inner = Object{}
		o[key] = inner
	}
	return inner
}

// clone copies an object as JSON would carry it.
func clone(o Object) (copied Object) {
	b, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(b, &copied)
	}
	if err != nil {
		panic(err) // a test made an object that is not JSON
	}
	return maps.Clone(copied)
}
