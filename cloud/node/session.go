// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Session is the stages' shared knowledge of the machine's own Node object in one run: one
// request serves all of them, and the answer to a change serves as the next look. The zero Session
// is ready for use, for one machine.
type Session struct {
	mu   sync.Mutex
	node *kube.Node // the last answer
	err  error      // or why there was no answer
	name string     // of the Node that was asked for
	at   time.Time  // when, by the machine's clock
	real string     // the Node's name, if the server reports another than the machine's files

	me   who       // whose Node it is, for things built from the journal
	meAt time.Time // when that was determined

	clients kube.Clients
}

// answerServes is how long an answer is reused, for plan, look and change together. If another
// client changes the Node in that time, gpuadm's change gets a Conflict, and gpuadm reads the Node
// again.
const answerServes = 5 * time.Second

// who names the Node, and the identities that may read and change it.
type who struct {
	node    string     // the Node's name
	kubelet string     // kubelet's kubeconfig: may set most labels of its own Node and its status, and never its taints
	account string     // the kubeconfig in [node], a ServiceAccount's, for the rest
	via     host.Via   // proxies
	machine string     // the machine's id; "" if it has none
	boot    string     // the id of this boot
	later   host.Later // why there is no API server to ask yet: "once the node has joined"; "" if there is one
}

// UntilJoined is what waits for the join.
const UntilJoined = "once the node has joined"

// whose determines that from the spec and the facts.
func whose(s spec.Spec, f facts.Facts) who {
	k := f.Kubelet
	w := who{
		node: cmp.Or(k.NodeName, method.NodeName(s, f)), kubelet: k.Kubeconfig, account: s.Node.Kubeconfig, via: method.Via(s),
		machine: f.MachineID, boot: f.BootID,
	}
	switch {
	case !f.Live:
		w.later = host.FirstBoot
	case !k.Joined:
		w.later = host.Later{Until: UntilJoined}
	case f.Booting:
		w.later = host.Later{Until: "once kubelet runs"}
	}
	return w
}

// whoseAgain determines it for undo, which has no spec: from the machine and its own spec.
func whoseAgain(ctx context.Context, v host.View) (who, error) {
	f, err := facts.Gather(ctx, v, facts.Needs{})
	if err != nil {
		return who{}, err
	}
	return whose(specOn(v), f), nil
}

// specHome is the folder of a machine's spec.
const specHome = "/etc/gpuadm"

// specOn reads the spec on the machine; an unreadable one counts as empty.
func specOn(v host.View) spec.Spec {
	names := []string{path.Join(specHome, "node.toml")}
	more, _ := v.ReadDir(path.Join(specHome, "node.d")) // sorted
	for _, name := range more {
		if path.Ext(name) == ".toml" {
			names = append(names, path.Join(specHome, "node.d", name))
		}
	}
	var files []spec.File
	for _, name := range names {
		if data, err := v.ReadFile(name); err == nil {
			files = append(files, spec.File{Name: name, Data: data})
		}
	}
	s, err := spec.Parse(files...)
	if err != nil {
		return spec.Spec{}
	}
	return s
}

// serviceAccount returns the kubeconfig of an identity that may change taints, "" if there is none:
// that of [node], or that of the DaemonSet's pod.
func (w who) serviceAccount(v host.View) string {
	if w.account != "" {
		return w.account
	}
	if _, err := v.Stat(PodKubeconfig); err == nil {
		return PodKubeconfig
	}
	return ""
}

// from returns the origin of a client with one of the identities.
func (w who) from(kubeconfig string) kube.From {
	return kube.From{Kubeconfig: kubeconfig, Via: w.via, Judged: kubeconfig == w.account}
}

// first returns the kubeconfig for reading.
func (w who) first(v host.View) (string, error) {
	if name := cmp.Or(w.kubelet, w.serviceAccount(v)); name != "" {
		return name, nil
	}
	return "", &trouble.Error{
		What: "cannot ask the cluster about this node: kubelet's command line names no kubeconfig",
		Try:  []string{"set kubeconfig in [node] to a file whose user may read and patch this node"}, Err: noKubeconfig,
	}
}

// look returns the Node, from the cluster or from an answer of a moment ago.
func (s *Session) look(ctx context.Context, v host.View, w who) (*kube.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.node != nil || s.err != nil) && s.name == w.node && serves(v, s.at) {
		return w.own(s.node, s.err)
	}
	if s.err != nil { // do not wait again for a server that did not answer a moment ago
		ctx = kube.Within(ctx, 0)
	}
	s.node, s.err = nil, nil
	n, err := s.get(ctx, v, w)
	if err != nil && ctx.Err() != nil { // the end of the run says nothing about the cluster
		return nil, err
	}
	s.keep(v, w, n)
	if s.err = err; err != nil {
		s.node = nil
	}
	return w.own(s.node, err)
}

// serves says whether knowledge from that time may still be used.
func serves(v host.View, at time.Time) bool {
	age := v.Now().Sub(at)
	return age >= 0 && age < answerServes
}

// whose is whoseAgain, once for all things that ask at about the same time.
func (s *Session) whose(ctx context.Context, v host.View) (w who, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meAt.IsZero() || !serves(v, s.meAt) {
		if w, err = whoseAgain(ctx, v); err != nil {
			return w, err
		}
		s.me, s.meAt = w, v.Now()
	}
	return s.me, nil
}

// keep stores an answer for the next looks; the session is locked.
func (s *Session) keep(v host.View, w who, n *kube.Node) {
	s.node, s.err, s.name, s.at = n, nil, w.node, v.Now()
}

// forget makes the next look ask.
func (s *Session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node, s.err = nil, nil
}

// ask returns a client for reading.
func (s *Session) ask(v host.View, w who) (*kube.Client, error) {
	name, err := w.first(v)
	if err != nil {
		return nil, err
	}
	return s.clients.Ask(v, w.from(name))
}

// cached reads from the API server's cache, for callers that poll.
func (s *Session) cached(ctx context.Context, v host.View, w who) (*kube.Node, error) {
	c, err := s.ask(v, w)
	if err != nil {
		return nil, err
	}
	return c.CachedNode(ctx, w.node)
}

// get asks the cluster; the session is locked.
func (s *Session) get(ctx context.Context, v host.View, w who) (*kube.Node, error) {
	c, err := s.ask(v, w)
	if err != nil {
		return nil, err
	}
	n, err := c.Node(ctx, cmp.Or(s.real, w.node))
	if s.real == "" && (errors.Is(err, kube.Forbidden) || errors.Is(err, kube.Missing)) {
		// A cloud may have named the node: EC2 by its private DNS name, whatever the host name.
		is, werr := c.Whoami(ctx)
		if real, ok := strings.CutPrefix(is.Username, "system:node:"); werr == nil && ok && real != w.node {
			s.real = real
			n, err = c.Node(ctx, real)
		}
	}
	return n, lacking(explainNode(err, cmp.Or(s.real, w.node)))
}

// own refuses the Node of another machine: a clone has the host name and the kubelet certificate of
// its original. kubelet reports the machine's id only when it starts, so after a change of the id
// gpuadm waits for its report. Without a machine id the caller has already checked.
func (w who) own(n *kube.Node, err error) (*kube.Node, error) {
	if err != nil || w.machine == "" {
		return n, err
	}
	if told := n.Status.NodeInfo.MachineID; told != "" && told != w.machine {
		return nil, trouble.Wait{
			For: fmt.Sprintf("the node %s has the machine id %s, and this machine's is %s: it is another machine's node, or kubelet has not reported since the id became another", n.Name, told, w.machine),
			Try: []string{
				"if this machine's id was changed: systemctl restart kubelet",
				"if it is a clone: it needs a name, a machine id and kubelet credentials of its own; remove those, and it joins again",
			}, Err: anotherMachine,
		}
	}
	return n, nil
}

// explainNode says what to do about a missing Node. Kubelet creates it only when it starts: it does
// not restore a deleted Node.
// Source: kubernetes, pkg/kubelet/kubelet_node_status.go, registerWithAPIServer.
func explainNode(err error, name string) error {
	if !errors.Is(err, kube.Missing) {
		return err
	}
	return trouble.Wait{
		For: fmt.Sprintf("kubelet has not registered the node %s, or another client has deleted it", name),
		Try: []string{"if it does not come, restart kubelet: it registers when it starts"}, Err: notRegistered,
	}
}

// lacking turns a missing right, or credentials that the cluster does not know, into a wait: only
// the cluster's administrator can help. Changes of the Node wait for that, and gpuadm still
// configures the machine. The stages that hold kubelet back do not ask the cluster.
func lacking(err error) error {
	if !errors.Is(err, kube.Forbidden) && !errors.Is(err, kube.Unauthorized) {
		return err
	}
	because, try := details(err)
	return &trouble.Error{
		What:    "cannot show the cluster the state of this node: " + err.Error(),
		Because: append([]string{"labels, taints and the condition of the node wait for that, and nothing else of this machine does"}, because...),
		Try:     append(slices.Clone(try), "then run the same command again: it goes on from here"),
		Err:     errors.Join(trouble.Wait{For: "a right in the cluster", Err: rightLacking}, err),
	}
}

// details returns the lines of an error after the first.
func details(err error) (because, try []string) {
	if e := (*trouble.Error)(nil); errors.As(err, &e) {
		return e.Because, e.Try
	}
	return nil, nil
}
