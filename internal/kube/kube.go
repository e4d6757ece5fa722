// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package kube asks a Kubernetes API server about one node, and changes that node's object there.
//
// It knows the few requests that matter (get the Node, patch it, set a condition, leave an Event, list its pods) and says in
// plain words why one failed. All goes through internal/host: who only looks cannot change the cluster either.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Server is the URL of the API server.
func (c *Client) Server() string { return c.server }

// Node returns the Node object.
func (c *Client) Node(ctx context.Context, name string) (*Node, error) {
	return c.node(ctx, call{verb: "get", method: http.MethodGet}, name)
}

// CachedNode returns the Node object as the API server's cache has it, a moment late at most, and costs etcd nothing. It is for those who
// ask again and again; kubelet reads its own Node so. Sources: kubernetes, pkg/kubelet/kubelet_node_status.go (tryUpdateNodeStatus);
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list (resourceVersion="0").
func (c *Client) CachedNode(ctx context.Context, name string) (*Node, error) {
	return c.node(ctx, call{verb: "get", method: http.MethodGet, query: url.Values{"resourceVersion": {"0"}}}, name)
}

// Patch is a strategic merge patch: what it sets to nil goes, conditions are replaced by their type, and other lists as a whole. With a
// resourceVersion in its metadata it holds for that version alone: it is a Conflict once another client has changed the Node.
// Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply
type Patch map[string]any

// PatchNode applies a patch to the Node object, all of it or nothing.
func (c *Client) PatchNode(ctx context.Context, name string, p Patch) (*Node, error) {
	return c.patch(ctx, call{verb: "patch"}, name, p)
}

func (c *Client) patch(ctx context.Context, r call, name string, p Patch) (*Node, error) {
	r.method, r.form = http.MethodPatch, "application/strategic-merge-patch+json"
	var err error
	if r.body, err = json.Marshal(p); err != nil {
		return nil, c.fail(r, &Error{Why: Refused, Cause: fmt.Errorf("internal error: %w", err)})
	}
	return c.node(ctx, r, name)
}

// TryLabel asks what would be answered if a label of the Node were set, and changes nothing: admission judges a dry run as the change
// itself. Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (c *Client) TryLabel(ctx context.Context, name, key, value string) error {
	_, err := c.patch(ctx, call{verb: "try to label", query: url.Values{"dryRun": {"All"}}}, name, Patch{"metadata": Patch{"labels": Patch{key: value}}})
	return err
}

// PatchStatus is PatchNode for what the status of a Node and its metadata have: the API server keeps the spec as it is. Kubelet changes
// labels and annotations with its status, too. Sources: kubernetes, pkg/registry/core/node/strategy.go (nodeStatusStrategy);
// kubernetes/component-helpers, node/util/status.go (preparePatchBytesforNodeStatus).
func (c *Client) PatchStatus(ctx context.Context, name string, p Patch) (*Node, error) {
	return c.patch(ctx, call{verb: "patch", sub: "status"}, name, p)
}

// node makes a call about a Node.
func (c *Client) node(ctx context.Context, r call, name string) (*Node, error) {
	r.what, r.path = "node "+name, "/api/v1/nodes/"+name
	if r.sub != "" {
		r.what, r.path = "the "+r.sub+" of node "+name, r.path+"/"+r.sub
	}
	if err := objectName(name); err != nil {
		return nil, c.fail(r, &Error{Why: Refused, Cause: err})
	}
	node := &Node{}
	r.into = node
	if err := c.do(ctx, r); err != nil {
		return nil, err
	}
	return node, nil
}

// objectName keeps what is no name out of URLs.
func objectName(name string) error {
	ok := name != "" && len(name) <= 253 && !strings.Contains(name, "..")
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.')
	}
	if !ok {
		return fmt.Errorf("%.80q is no name of an object", name)
	}
	return nil
}

// maxNote is how many bytes of text an Event may carry: maxMessageLength in kubernetes pkg/apis/core/validation/events.go.
const maxNote = 1024

// Event leaves an Event. Of one about a Node only Reason, Message, Type and the node's name need be given.
func (c *Client) Event(ctx context.Context, ev Event) error {
	about, now := &ev.InvolvedObject, seconds(c.now())
	if about.Kind == "Node" && about.UID == "" {
		about.UID = about.Name // what kubectl describe node looks for: kubelet does so too
	}
	about.APIVersion = or(about.APIVersion, "v1")
	ev.APIVersion, ev.Kind = "v1", "Event"
	ev.Namespace = or(ev.Namespace, or(about.Namespace, "default"))
	ev.Type = or(ev.Type, "Normal")
	ev.Source.Component = or(ev.Source.Component, agent)
	ev.Count = max(ev.Count, 1)
	if ev.LastTimestamp.IsZero() {
		ev.LastTimestamp = now
	}
	if ev.FirstTimestamp.IsZero() {
		ev.FirstTimestamp = ev.LastTimestamp
	}
	if len(ev.Message) > maxNote {
		ev.Message = strings.ToValidUTF8(ev.Message[:maxNote-3], "") + "..."
	}
	// The name is chosen here, so that a second try after a lost answer does not leave a second Event. Clocks stop and
	// go back: what it says is a part of it.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(ev.Reason + " " + ev.Message))
	ev.Name = or(ev.Name, fmt.Sprintf("%s.%x%08x", about.Name, c.now().UnixNano(), hash.Sum32()))
	r := call{
		verb: "create", what: "an event about " + strings.ToLower(about.Kind) + " " + about.Name, method: http.MethodPost,
		path: "/api/v1/namespaces/" + ev.Namespace + "/events", form: "application/json", again: true,
	}
	var err error
	if r.body, err = json.Marshal(ev); err != nil {
		return c.fail(r, &Error{Why: Refused, Cause: fmt.Errorf("internal error: %w", err)})
	}
	return c.do(ctx, r)
}

// Whoami tells as whom the server knows us.
func (c *Client) Whoami(ctx context.Context) (user string, groups []string, err error) {
	is, err := c.review(ctx)
	return is.Username, is.Groups, err
}

// PodsNode is the node of the pod that our token is bound to, by the server's own word; "" where the token says nothing of one. A
// server before Kubernetes 1.30 writes none into tokens, and one before 1.28 does not know the question (Missing).
// Source: kubernetes/enhancements, keps/sig-auth/4193-bound-service-account-token-improvements and 3325-self-subject-attributes-review-api.
func (c *Client) PodsNode(ctx context.Context) (string, error) {
	is, err := c.review(ctx)
	if names := is.Extra["authentication.kubernetes.io/node-name"]; len(names) == 1 {
		return names[0], err
	}
	return "", err
}

// userInfo is how the server knows who asks.
type userInfo struct {
	Username string
	Groups   []string
	Extra    map[string][]string
}

func (c *Client) review(ctx context.Context) (userInfo, error) {
	var review struct{ Status struct{ UserInfo userInfo } }
	err := c.do(ctx, call{
		verb: "ask", what: "who we are", method: http.MethodPost, path: "/apis/authentication.k8s.io/v1/selfsubjectreviews",
		form: "application/json", body: []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`), into: &review,
	})
	return review.Status.UserInfo, err
}

// Pods lists the pods of a node, as the server's cache has them: version 0 costs etcd nothing, and the cache has an index by node.
func (c *Client) Pods(ctx context.Context, node string) ([]Pod, error) {
	var list struct{ Items []Pod }
	r := call{verb: "list", what: "the pods of node " + node, method: http.MethodGet, path: "/api/v1/pods", into: &list}
	r.query = url.Values{"fieldSelector": {"spec.nodeName=" + node}, "resourceVersion": {"0"}}
	if err := objectName(node); err != nil {
		return nil, c.fail(r, &Error{Why: Refused, Cause: err})
	}
	err := c.do(ctx, r)
	return list.Items, err
}

// Evict has a pod end as its PodDisruptionBudgets let it. While they do not, it is Busy, and Because says which budget; a pod that is gone is
// Missing, and one that another of its name has replaced is a Conflict. A pod with two budgets gets a Status that says 500.
// Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/; kubernetes, pkg/registry/core/pod/storage/eviction.go.
func (c *Client) Evict(ctx context.Context, p Pod) error {
	var made struct{ Status, Message string }
	r := call{
		verb: "evict", what: "pod " + p.Namespace + "/" + p.Name, method: http.MethodPost, form: "application/json", into: &made,
		path: "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name + "/eviction",
	}
	if err := errors.Join(objectName(p.Namespace), objectName(p.Name)); err != nil {
		return c.fail(r, &Error{Why: Refused, Cause: err})
	}
	var err error
	if r.body, err = json.Marshal(map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction", "metadata": Meta{Name: p.Name, Namespace: p.Namespace},
		"deleteOptions": map[string]any{"preconditions": map[string]string{"uid": p.UID}},
	}); err != nil {
		return c.fail(r, &Error{Why: Refused, Cause: fmt.Errorf("internal error: %w", err)})
	}
	if err := c.do(ctx, r); err != nil || made.Status != "Failure" {
		return err
	}
	return c.fail(r, &Error{Why: Busy, Cause: fmt.Errorf("the API server says: %s", made.Message)})
}

// Version is the server's version, such as "v1.35.4".
func (c *Client) Version(ctx context.Context) (string, error) {
	var is struct{ GitVersion string }
	err := c.do(ctx, call{verb: "ask", what: "the server's version", method: http.MethodGet, path: "/version", into: &is})
	return is.GitVersion, err
}

// seconds is a time as Kubernetes writes it.
func seconds(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Second)
}

// or returns the first of two that says something.
func or[T ~string](a, b T) T {
	if a == "" {
		return b
	}
	return a
}
