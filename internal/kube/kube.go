// SPDX-License-Identifier: Apache-2.0

// Package kube asks a Kubernetes API server about one node, and changes that node's object there.
//
// It knows the few requests that matter (get the Node, patch it, set a condition, leave an Event, list its pods) and says in
// plain words why one failed. All goes through internal/host: who only looks cannot change the cluster either.
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
	r.method, r.form, r.send = http.MethodPatch, "application/strategic-merge-patch+json", p
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
	r.right = "get and patch nodes and nodes/status" // all that gpuadm asks of it: the server names one missing right at a time
	if r.sub != "" {
		r.what, r.path = "the "+r.sub+" of node "+name, r.path+"/"+r.sub
	}
	node := &Node{}
	r.names, r.into = []string{name}, node
	if err := c.do(ctx, r); err != nil {
		return nil, err
	}
	return node, nil
}

// maxNote is how many bytes of text an Event may carry: maxMessageLength in kubernetes pkg/apis/core/validation/events.go.
const maxNote = 1024

// Event leaves an Event about a Node.
func (c *Client) Event(ctx context.Context, node string, ev Event) error {
	if len(ev.Message) > maxNote {
		ev.Message = strings.ToValidUTF8(ev.Message[:maxNote-3], "") + "..."
	}
	now := c.now()
	ev.APIVersion, ev.Kind, ev.Namespace, ev.Count = "v1", "Event", "default", 1
	ev.InvolvedObject = Reference{APIVersion: "v1", Kind: "Node", Name: node, UID: node} // kubectl describe node looks for this UID
	ev.Source.Component = agent
	ev.FirstTimestamp, ev.LastTimestamp = now.UTC().Truncate(time.Second), now.UTC().Truncate(time.Second)
	// The name is chosen here, so that a second try after a lost answer does not leave a second Event. Clocks stop and
	// go back: what it says is a part of it.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(ev.Reason + " " + ev.Message))
	ev.Name = fmt.Sprintf("%s.%x%08x", node, now.UnixNano(), hash.Sum32())
	return c.do(ctx, call{
		verb: "create", what: "an event about node " + node, right: "create events", method: http.MethodPost, path: "/api/v1/namespaces/default/events",
		names: []string{node}, send: ev, again: true,
	})
}

// User is the identity by which the server knows us.
type User struct {
	Username string
	Groups   []string
	Extra    map[string][]string
}

// Node is the node of the pod that our token is bound to, by the server's own word; "" where the token says nothing of one. A
// server before Kubernetes 1.30 writes none into tokens.
// Source: kubernetes/enhancements, keps/sig-auth/4193-bound-service-account-token-improvements.
func (u User) Node() string {
	if names := u.Extra["authentication.kubernetes.io/node-name"]; len(names) == 1 {
		return names[0]
	}
	return ""
}

// Clock is the time of a kubeconfig's server, and the machine's at its answer. No credentials are shown: an answer that refuses the asker has
// the time too.
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

// Whoami returns the identity by which the server knows us. A server before Kubernetes 1.28 does not know the question (Missing): KEP 3325.
func (c *Client) Whoami(ctx context.Context) (User, error) {
	var review struct{ Status struct{ UserInfo User } }
	err := c.do(ctx, call{
		verb: "ask", what: "who we are", method: http.MethodPost, path: "/apis/authentication.k8s.io/v1/selfsubjectreviews",
		send: map[string]string{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}, into: &review,
	})
	return review.Status.UserInfo, err
}

// Pods lists the pods of a node, as the server's cache has them: version 0 costs etcd nothing, and the cache has an index by node.
func (c *Client) Pods(ctx context.Context, node string) ([]Pod, error) {
	var list struct{ Items []Pod }
	err := c.do(ctx, ofNode(call{what: "the pods of node " + node, right: "list pods", path: "/api/v1/pods", into: &list}, node))
	return list.Items, err
}

// Evict has a pod end as its PodDisruptionBudgets let it. While they do not, it is Busy, and Because says which budget; a pod that is gone is
// Missing, and one that another of its name has replaced is a Conflict. A pod with two budgets gets a Status that says 500.
// Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/; kubernetes, pkg/registry/core/pod/storage/eviction.go.
func (c *Client) Evict(ctx context.Context, p Pod) error {
	var made struct{ Status, Message string }
	r := call{
		verb: "evict", what: "pod " + p.Namespace + "/" + p.Name, right: "create pods/eviction", method: http.MethodPost, into: &made,
		names: []string{p.Namespace, p.Name}, path: "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name + "/eviction",
		send: map[string]any{
			"apiVersion": "policy/v1", "kind": "Eviction", "metadata": Meta{Name: p.Name, Namespace: p.Namespace},
			"deleteOptions": map[string]any{"preconditions": map[string]string{"uid": p.UID}},
		},
	}
	if err := c.do(ctx, r); err != nil || made.Status != "Failure" {
		return err
	}
	return c.fail(r, &fault{why: Busy, cause: fmt.Errorf("the API server says: %s", made.Message)}, 0)
}

// ofNode is a call that lists what a node has, as the server's cache knows it.
func ofNode(r call, node string) call {
	r.verb, r.method, r.names = "list", http.MethodGet, []string{node}
	r.query = url.Values{"fieldSelector": {"spec.nodeName=" + node}, "resourceVersion": {"0"}}
	return r
}

// Version is the server's version, such as "v1.35.4".
func (c *Client) Version(ctx context.Context) (string, error) {
	var is struct{ GitVersion string }
	err := c.do(ctx, call{verb: "ask", what: "the server's version", method: http.MethodGet, path: "/version", into: &is})
	return is.GitVersion, err
}

// slice is what counts of a ResourceSlice. The versions differ in how a device is described, not in this.
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

// Slices counts the devices that DRA drivers offer on a node: driver name to devices of complete pools, 0 for a driver whose
// pools are not complete yet. nil where the server has no such API. (v1 is in Kubernetes 1.34 and later, the others from 1.32.)
func (c *Client) Slices(ctx context.Context, node string) (devices map[string]int, err error) {
	for _, version := range []string{"v1", "v1beta2", "v1beta1"} {
		var list struct{ Items []slice }
		r := call{what: "the ResourceSlices of node " + node, right: "list resourceslices.resource.k8s.io", into: &list, path: "/apis/resource.k8s.io/" + version + "/resourceslices"}
		if err := c.do(ctx, ofNode(r, node)); errors.Is(err, Missing) {
			continue
		} else if err != nil {
			return nil, err
		}
		return count(list.Items), nil
	}
	return nil, nil
}

// count counts the devices of complete pools: those of which all slices of the newest generation are there.
func count(slices []slice) map[string]int {
	type key struct{ driver, pool string }
	type pool struct{ generation, slices, of, devices int64 }
	pools, devices := map[key]*pool{}, map[string]int{}
	for _, s := range slices {
		k, at := key{s.Spec.Driver, s.Spec.Pool.Name}, s.Spec.Pool
		p := pools[k]
		if p == nil || at.Generation > p.generation {
			p = &pool{generation: at.Generation, of: at.ResourceSliceCount}
			pools[k] = p
		}
		if at.Generation == p.generation {
			p.slices++
			p.devices += int64(len(s.Spec.Devices))
		}
	}
	for k, p := range pools {
		devices[k.driver] += 0
		if p.slices == p.of {
			devices[k.driver] += int(p.devices)
		}
	}
	return devices
}
