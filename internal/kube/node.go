// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net/http"
	"net/url"
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
	return c.node(ctx, call{
		verb:   "get",
		method: http.MethodGet,
		query:  fromCache,
	}, name)
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
	r.what = "the Node " + name
	r.path = "/api/v1/nodes/" + name
	r.names = []string{name}
	if r.sub != "" {
		r.what = "the " + r.sub + " of the Node " + name
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
