// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Session is the stages' shared knowledge of the machine's own Node object in one run: one
// request serves all of them, and the answer to a change serves as the next look. The zero Session
// is ready for use, for one machine.
type Session struct {
	mu sync.Mutex

	node *kube.Node // the last answer
	err  error      // or why there was no answer
	name string     // of the Node that was asked for
	at   time.Time  // when, by the machine's clock
	real string     // the Node's name, if the server reports another than the machine's files

	identity   identity  // for things built from the journal
	identityAt time.Time // when it was determined

	clients kube.Clients

	accountAsked bool   // an undo has asked what the account may do
	accountLost  string // why it may change nothing; "" if it may

	// Remark is what the condition's message says beside the GPUs: that gpuadm could not use
	// node.toml. Empty: nothing.
	Remark string
}

// remark is the Remark; a nil session has none.
func (s *Session) remark() string {
	if s == nil || s.Remark == "" {
		return ""
	}
	return "; " + s.Remark
}

// answerServes is how long an answer is reused, for plan, look and change together. If another
// client changes the Node in that time, gpuadm's change gets a Conflict, and gpuadm reads the Node
// again.
const answerServes = 5 * time.Second

// look returns the Node, from the cluster or from an answer of a moment ago.
func (s *Session) look(ctx context.Context, v host.View, id identity) (*kube.Node, error) {
	return s.lookWithin(ctx, v, id, kube.Patience)
}

// lookWithin is look that asks the cluster for at most patience.
func (s *Session) lookWithin(
	ctx context.Context, v host.View, id identity, patience time.Duration,
) (*kube.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	answered := s.node != nil || s.err != nil
	if answered && s.name == id.node && isFresh(v, s.at) {
		return id.own(s.node, s.err)
	}

	if s.err != nil { // do not wait again for a server that did not answer a moment ago
		patience = 0
	}
	s.node, s.err = nil, nil
	n, err := s.fetch(ctx, v, id, patience)
	if err != nil && ctx.Err() != nil { // the end of the run says nothing about the cluster
		return nil, err
	}
	if err != nil {
		n = nil
	}
	s.store(v, id, n)
	s.err = err
	return id.own(n, err)
}

// isFresh reports whether knowledge from that time may still be used.
func isFresh(v host.View, at time.Time) bool {
	age := v.Now().Sub(at)
	return age >= 0 && age < answerServes
}

// currentIdentity is identityOfMachine, once for all things that ask at about the same time.
func (s *Session) currentIdentity(ctx context.Context, v host.View) (identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.identityAt.IsZero() && isFresh(v, s.identityAt) {
		return s.identity, nil
	}

	id, err := identityOfMachine(ctx, v)
	if err != nil {
		return identity{}, err
	}
	s.identity = id
	s.identityAt = v.Now()
	return id, nil
}

// store keeps an answer for the next looks; the session is locked.
func (s *Session) store(v host.View, id identity, n *kube.Node) {
	s.node = n
	s.err = nil
	s.name = id.node
	s.at = v.Now()
}

// forget makes the next look ask the cluster.
func (s *Session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node, s.err = nil, nil
}

// reader returns a client for reading.
func (s *Session) reader(v host.View, id identity) (*kube.Client, error) {
	kubeconfig, err := id.reads(v)
	if err != nil {
		return nil, err
	}
	return s.clients.Ask(v, id.from(kubeconfig))
}

// cachedNode reads from the API server's cache, for callers that poll.
func (s *Session) cachedNode(ctx context.Context, v host.View, id identity) (*kube.Node, error) {
	client, err := s.reader(v, id)
	if err != nil {
		return nil, err
	}
	return client.CachedNode(ctx, id.node)
}

// fetch asks the cluster for at most patience; the session is locked.
func (s *Session) fetch(
	ctx context.Context, v host.View, id identity, patience time.Duration,
) (*kube.Node, error) {
	client, err := s.reader(v, id)
	if err != nil {
		return nil, err
	}
	client = client.Within(patience)

	n, err := client.Node(ctx, s.nodeName(id))
	unknownName := errors.Is(err, kube.Forbidden) || errors.Is(err, kube.Missing)
	if s.real == "" && unknownName {
		// A cloud may have named the node: EC2 by its private DNS name, whatever the host name.
		user, userErr := client.Whoami(ctx)
		real, ok := strings.CutPrefix(user.Username, "system:node:")
		if userErr == nil && ok && real != id.node {
			s.real = real
			n, err = client.Node(ctx, real)
		}
	}

	return n, unseen(waitForRight(explainMissing(err, s.nodeName(id))))
}

// unseen says of a look without a right that the Node's state is unknown: the wait for the right
// does not mean that gpuadm has looked.
func unseen(err error) error {
	if !errors.Is(err, rightLacking) {
		return err
	}
	return &trouble.Unknown{Err: err}
}

// nodeName returns the name under which the server has the Node.
func (s *Session) nodeName(id identity) string { return cmp.Or(s.real, id.node) }

// explainMissing says what to do about a missing Node. Kubelet creates it only when it starts: it
// does not restore a deleted Node.
// Source: kubernetes, pkg/kubelet/kubelet_node_status.go, registerWithAPIServer.
func explainMissing(err error, name string) error {
	if !errors.Is(err, kube.Missing) {
		return err
	}
	return trouble.Wait{
		For: fmt.Sprintf("kubelet has not registered the node %s, or another client has deleted it", name),
		Try: []string{"if it does not come, restart kubelet: it registers when it starts"},
		Err: notRegistered,
	}
}

// waitForRight turns a missing right, or credentials that the cluster does not know, into a wait:
// only the cluster's administrator can help. Changes of the Node wait for that, and gpuadm still
// configures the machine. The stages that hold kubelet back do not ask the cluster.
func waitForRight(err error) error {
	if !errors.Is(err, kube.Forbidden) && !errors.Is(err, kube.Unauthorized) {
		return err
	}
	const rest = "labels, taints and the condition of the node wait for that, and nothing else of this machine does"
	because, try := detailsOf(err)
	return &trouble.Error{
		What:    "cannot show the cluster the state of this node: " + err.Error(),
		Because: append([]string{rest}, because...),
		Try:     append(slices.Clone(try), "then run the same command again: it continues from here"),
		Err:     errors.Join(trouble.Wait{For: "a right in the cluster", Err: rightLacking}, err),
	}
}

// detailsOf returns the lines of an error after the first.
func detailsOf(err error) (because, try []string) {
	var detailed *trouble.Error
	if errors.As(err, &detailed) {
		return detailed.Because, detailed.Try
	}
	return nil, nil
}
