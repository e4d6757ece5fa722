// SPDX-License-Identifier: Apache-2.0

// Package kube asks a Kubernetes API server about one node, and changes that node's object there.
//
// It makes the few requests that gpuadm needs (get the Node, patch it, set a condition, create an
// Event, list its pods) and says in plain words why one failed. All requests go through
// internal/host: code that may only look cannot change the cluster either.
package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Node returns the Node object.
func (c *Client) Node(ctx context.Context, name string) (*Node, error) {
	return c.node(ctx, call{verb: "get", method: http.MethodGet}, name)
}

// CachedNode returns the Node object from the API server's cache, which may be a moment late and
// costs etcd nothing. It is for callers that poll; kubelet reads its own Node in this way. Sources:
// kubernetes, pkg/kubelet/kubelet_node_status.go (tryUpdateNodeStatus);
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
// (resourceVersion="0").
func (c *Client) CachedNode(ctx context.Context, name string) (*Node, error) {
	fromCache := url.Values{"resourceVersion": {"0"}}
	return c.node(ctx, call{verb: "get", method: http.MethodGet, query: fromCache}, name)
}

// Patch is a strategic merge patch: a field that it sets to nil is removed, conditions are merged
// by type, and other lists are replaced as a whole. With a resourceVersion in its metadata it
// applies to that version only: it gets a Conflict if another client has changed the Node.
// Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply
type Patch map[string]any

// PatchNode applies a patch to the Node object, all of it or nothing.
func (c *Client) PatchNode(ctx context.Context, name string, p Patch) (*Node, error) {
	return c.patch(ctx, call{verb: "patch"}, name, p)
}

func (c *Client) patch(ctx context.Context, r call, name string, p Patch) (*Node, error) {
	r.method = http.MethodPatch
	r.form = "application/strategic-merge-patch+json"
	r.send = p
	return c.node(ctx, r, name)
}

// TryLabel sets a label of the Node in a dry run, which changes nothing: admission judges a dry run
// like the change itself.
// Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (c *Client) TryLabel(ctx context.Context, name, key, value string) error {
	dryRun := call{verb: "try to label", query: url.Values{"dryRun": {"All"}}}
	label := Patch{"metadata": Patch{"labels": Patch{key: value}}}
	_, err := c.patch(ctx, dryRun, name, label)
	return err
}

// PatchStatus is PatchNode for the status and the metadata of a Node: the API server ignores
// changes to the spec. Kubelet also changes labels and annotations together with its status.
// Sources: kubernetes, pkg/registry/core/node/strategy.go (nodeStatusStrategy);
// kubernetes/component-helpers, node/util/status.go (preparePatchBytesforNodeStatus).
func (c *Client) PatchStatus(ctx context.Context, name string, p Patch) (*Node, error) {
	return c.patch(ctx, call{verb: "patch", sub: "status"}, name, p)
}

// node makes a call about a Node.
func (c *Client) node(ctx context.Context, r call, name string) (*Node, error) {
	r.what = "node " + name
	r.path = "/api/v1/nodes/" + name
	r.names = []string{name}
	if r.sub != "" {
		r.what = "the " + r.sub + " of node " + name
		r.path += "/" + r.sub
	}
	// All rights that gpuadm needs: the server names only one missing right at a time.
	r.right = "get and patch nodes and nodes/status"

	node := &Node{}
	r.into = node
	if err := c.do(ctx, r); err != nil {
		return nil, err
	}
	return node, nil
}

// maxNote is how many bytes of text an Event may carry: maxMessageLength in kubernetes
// pkg/apis/core/validation/events.go.
const maxNote = 1024

// Event creates an Event about a Node.
func (c *Client) Event(ctx context.Context, node string, ev Event) error {
	if len(ev.Message) > maxNote {
		ev.Message = strings.ToValidUTF8(ev.Message[:maxNote-3], "") + "..."
	}

	ev.APIVersion = "v1"
	ev.Kind = "Event"
	ev.Namespace = "default"
	ev.Source.Component = agent
	ev.InvolvedObject = Reference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       node,
		UID:        node, // kubectl describe node looks for this UID
	}

	now := c.now()
	ev.Count = 1
	ev.FirstTimestamp = now.UTC().Truncate(time.Second)
	ev.LastTimestamp = ev.FirstTimestamp

	// The client chooses the name, so that a retry after a lost answer does not create a second
	// Event. Clocks may stop or go back, so the name includes a hash of the text.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(ev.Reason + " " + ev.Message))
	ev.Name = fmt.Sprintf("%s.%x%08x", node, now.UnixNano(), hash.Sum32())

	return c.do(ctx, call{
		verb:   "create",
		what:   "an event about node " + node,
		right:  "create events",
		method: http.MethodPost,
		path:   "/api/v1/namespaces/default/events",
		names:  []string{node},
		send:   ev,
		again:  true,
	})
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
	s, err := settingOf(v, From{Kubeconfig: kubeconfig})
	if err != nil {
		return server, here, err
	}
	s.login = &login{view: v}
	c, err := start(v, v.AskWeb, s)
	if err != nil {
		return server, here, err
	}
	r := call{verb: "ask", what: "the time", method: http.MethodGet, path: "/version"}
	a, err := c.send(ctx, r, nil, "")
	if err != nil {
		return server, here, c.fail(r, c.judgeLine(ctx, err), 0)
	}
	return a.date, c.now(), nil
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

// Pods lists the pods of a node from the server's cache: version 0 costs etcd nothing, and the
// cache has an index by node.
func (c *Client) Pods(ctx context.Context, node string) ([]Pod, error) {
	var list struct{ Items []Pod }
	pods := call{
		what:  "the pods of node " + node,
		right: "list pods",
		path:  "/api/v1/pods",
		into:  &list,
	}
	err := c.do(ctx, ofNode(pods, node))
	return list.Items, err
}

// Evict evicts a pod if its PodDisruptionBudgets allow it. If they do not, the error is Busy, and
// Because names the budget; it is Missing if the pod is gone, and a Conflict if another pod of that
// name has replaced it. For a pod with two budgets the server answers with a Status of 500.
// Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/; kubernetes,
// pkg/registry/core/pod/storage/eviction.go.
func (c *Client) Evict(ctx context.Context, p Pod) error {
	var made struct{ Status, Message string }
	eviction := map[string]any{
		"apiVersion": "policy/v1",
		"kind":       "Eviction",
		"metadata":   Meta{Name: p.Name, Namespace: p.Namespace},
		"deleteOptions": map[string]any{
			"preconditions": map[string]string{"uid": p.UID},
		},
	}
	r := call{
		verb:   "evict",
		what:   "pod " + p.Namespace + "/" + p.Name,
		right:  "create pods/eviction",
		method: http.MethodPost,
		path:   "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name + "/eviction",
		names:  []string{p.Namespace, p.Name},
		send:   eviction,
		into:   &made,
	}
	if err := c.do(ctx, r); err != nil || made.Status != "Failure" {
		return err
	}
	return c.fail(r, &fault{why: Busy, cause: fmt.Errorf("the API server says: %s", made.Message)}, 0)
}

// ofNode returns a call that lists a node's objects from the server's cache.
func ofNode(r call, node string) call {
	r.verb = "list"
	r.method = http.MethodGet
	r.names = []string{node}
	r.query = url.Values{
		"fieldSelector":   {"spec.nodeName=" + node},
		"resourceVersion": {"0"},
	}
	return r
}

// Version is the server's version, such as "v1.35.4".
func (c *Client) Version(ctx context.Context) (string, error) {
	var is struct{ GitVersion string }
	err := c.do(ctx, call{
		verb:   "ask",
		what:   "the server's version",
		method: http.MethodGet,
		path:   "/version",
		into:   &is,
	})
	return is.GitVersion, err
}

// slice has the fields of a ResourceSlice that gpuadm reads.
type slice struct {
	Spec struct {
		Driver string
		Pool   struct {
			Name               string
			Generation         int64
			ResourceSliceCount int64
		}
		Devices []struct{}
	}
}

// Slices counts the devices that DRA drivers offer on a node: driver name to devices of complete
// pools, 0 for a driver whose pools are not complete yet. nil if the server has no such API, which
// is in Kubernetes 1.34 and newer; NVIDIA's driver needs 1.34.2.
func (c *Client) Slices(ctx context.Context, node string) (devices map[string]int, err error) {
	var list struct{ Items []slice }
	r := call{
		what:  "the ResourceSlices of node " + node,
		right: "list resourceslices.resource.k8s.io",
		path:  "/apis/resource.k8s.io/v1/resourceslices",
		into:  &list,
	}
	err = c.do(ctx, ofNode(r, node))
	switch {
	case errors.Is(err, Missing):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return countDevices(list.Items), nil
}

// countDevices counts the devices of complete pools: pools with all slices of the newest generation.
func countDevices(slices []slice) map[string]int {
	type key struct{ driver, pool string }
	type pool struct {
		generation int64
		slices     int64 // found
		expected   int64 // slices of a complete pool
		devices    int64
	}

	pools := map[key]*pool{}
	for _, s := range slices {
		id := key{s.Spec.Driver, s.Spec.Pool.Name}
		published := s.Spec.Pool
		p := pools[id]
		if p == nil || published.Generation > p.generation {
			p = &pool{generation: published.Generation, expected: published.ResourceSliceCount}
			pools[id] = p
		}
		if published.Generation == p.generation {
			p.slices++
			p.devices += int64(len(s.Spec.Devices))
		}
	}

	devices := map[string]int{}
	for id, p := range pools {
		devices[id.driver] += 0
		if p.slices == p.expected {
			devices[id.driver] += int(p.devices)
		}
	}
	return devices
}
