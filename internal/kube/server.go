// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Version is the server's version, such as "v1.35.4".
func (c *Client) Version(ctx context.Context) (string, error) {
	var version struct{ GitVersion string }
	err := c.do(ctx, call{
		verb:   "ask",
		what:   "the server's version",
		method: http.MethodGet,
		path:   "/version",
		into:   &version,
	})
	return version.GitVersion, err
}

// Whoami returns the client's identity as the server sees it. A server before Kubernetes 1.28 lacks
// that API (Missing): KEP 3325.
func (c *Client) Whoami(ctx context.Context) (User, error) {
	const group = "authentication.k8s.io/v1"
	var review struct {
		Status struct{ UserInfo User }
	}
	err := c.do(ctx, call{
		verb:   "ask",
		what:   "who we are",
		method: http.MethodPost,
		path:   "/apis/" + group + "/selfsubjectreviews",
		send:   map[string]string{"apiVersion": group, "kind": "SelfSubjectReview"},
		into:   &review,
	})
	return review.Status.UserInfo, err
}

// MayPatchNode reports whether the authorizers let the client patch a Node. Admission may still
// deny a change. Source: https://kubernetes.io/docs/reference/access-authn-authz/authorization/,
// "Checking API access"; k8s.io/api, authorization/v1/types.go.
func (c *Client) MayPatchNode(ctx context.Context, name string) (bool, error) {
	const group = "authorization.k8s.io/v1"
	type attributes struct {
		Verb     string `json:"verb"`
		Version  string `json:"version"`
		Resource string `json:"resource"`
		Name     string `json:"name"`
	}
	type spec struct {
		ResourceAttributes attributes `json:"resourceAttributes"`
	}
	type request struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       spec   `json:"spec"`
	}

	var review struct {
		Status struct{ Allowed bool }
	}
	patchesNode := attributes{
		Verb:     "patch",
		Version:  "v1",
		Resource: "nodes",
		Name:     name,
	}
	err := c.do(ctx, call{
		verb:   "ask",
		what:   "what we may do",
		method: http.MethodPost,
		path:   "/apis/" + group + "/selfsubjectaccessreviews",
		send: request{
			APIVersion: group,
			Kind:       "SelfSubjectAccessReview",
			Spec:       spec{patchesNode},
		},
		into: &review,
	})
	return review.Status.Allowed, err
}

// User is the client's identity as the server sees it.
type User struct {
	Username string
	Groups   []string
	Extra    map[string][]string
}

// Node returns the node of the pod to which the token is bound, as the server reports it; "" if the
// token has none. A server before Kubernetes 1.30 writes none into tokens.
// Source: kubernetes/enhancements, keps/sig-auth/4193-bound-service-account-token-improvements.
func (u User) Node() string {
	if names := u.Extra["authentication.kubernetes.io/node-name"]; len(names) == 1 {
		return names[0]
	}
	return ""
}

// Clock is the time of a kubeconfig's server, and the machine's at its answer. No credentials are
// shown: an answer that refuses the asker has the time too.
func Clock(ctx context.Context, v host.View, kubeconfig string) (server, here time.Time, err error) {
	s, err := settingsFrom(v, From{Kubeconfig: kubeconfig})
	if err != nil {
		return server, here, err
	}
	s.login = &login{view: v}
	c, err := newClient(v, v.AskWeb, s)
	if err != nil {
		return server, here, err
	}

	r := call{
		verb:   "ask",
		what:   "the time",
		method: http.MethodGet,
		path:   "/version",
	}
	a, err := c.send(ctx, r, nil, "")
	if err != nil {
		return server, here, c.fail(r, c.judgeSilence(ctx, err), 0)
	}
	return a.date, c.now(), nil
}
