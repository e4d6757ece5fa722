// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	// How long kubelet may take after its start to register, and to become ready. A real kubelet
	// took 1 to 4 seconds; it may have to pull the images of a network plugin first.
	registerPatience = 2 * time.Minute
	readyPatience    = 5 * time.Minute
)

// nodeAsk reads one Node object with kubelet's identity. Without a kubeconfig it asks no server.
type nodeAsk struct {
	who
	booting bool
	session *Session // the stages' shared knowledge of the Node
	pause   func(context.Context, time.Duration) error
}

func nodeOf(se *Session, s spec.Spec, f facts.Facts, name, kubeconfig string) nodeAsk {
	return nodeAsk{who{node: name, kubelet: kubeconfig, via: method.Via(s), boot: f.BootID}, f.Booting, se, host.Pause}
}

// get returns the Node object from ask, nil if there is none.
func (n nodeAsk) get(ctx context.Context, v host.View, ask func(context.Context, host.View, who) (*kube.Node, error)) (*kube.Node, error) {
	switch {
	case !v.Live():
		return nil, host.FirstBoot
	case n.booting:
		return nil, host.Later{Until: "once kubelet runs"}
	}
	found, err := ask(ctx, v, n.who)
	if errors.Is(err, kube.Missing) || host.NotExist(err) { // a machine without the files has not joined yet, and has no identity to ask by
		return nil, nil
	}
	return found, err
}

// wait asks until want reports no problem with the node, or until limit has passed. It also waits
// for an API server that does not answer.
func (n nodeAsk) wait(ctx context.Context, v host.View, limit time.Duration, want func(*kube.Node) (problem string)) error {
	// The first looks are quick: a real kubelet registers within 1 to 4 seconds. A pool of
	// thousands that waits for a network plugin asks every 5 to 15 seconds, which
	// TestBenchKubeLoad measures at an API server.
	const first, longest = 500 * time.Millisecond, 10 * time.Second
	defer n.session.forget() // the next look must see this answer
	problem := ""
	wait := StartWait(v, limit)
	for most := first; ; most = min(2*most, longest) {
		between := most/2 + rand.N(most) // machines that start together do not ask together
		found, err := n.get(ctx, v, n.session.cached)
		switch {
		case err == nil:
			if problem = want(found); problem == "" {
				return nil
			}
		case trouble.Passes(err):
			problem = err.Error()
		default:
			return err
		}
		wait.Tell(ctx, "node "+n.node+": "+problem)
		over := wait.Over()
		if wait.Paused += between; over || n.pause(ctx, between) != nil {
			try := []string{"journalctl -u kubelet, which says what it waits for", "then run the same command again: it goes on from here"}
			if strings.Contains(strings.ToLower(problem), "cni") {
				try = append([]string{"the cluster's network plugin must run here: " + podsOn(n.node)}, try...)
			}
			return &trouble.Error{
				What:    fmt.Sprintf("cannot wait any longer for node %s, after %v: %s", n.node, wait.so().Round(time.Second), problem),
				Because: []string{"kubelet keeps trying while it runs"},
				Try:     try,
				Passing: true, Err: errors.Join(waitedEnough, err),
			}
		}
	}
}

// registered is the existence of the Node object. Kubelet creates it, and undo cannot delete it: a
// node may not delete itself.
type registered struct {
	nodeAsk
	// absent says that the Node was missing when its stage looked first. kubelet may register it
	// before the next look, and still does so because gpuadm started kubelet: the journal has to
	// record that. nil for undo.
	absent *bool
}

// WaitRegistered wants kubelet to have registered the node.
func WaitRegistered(se *Session, s spec.Spec, f facts.Facts, name, kubeconfig string) converge.Want {
	return converge.Want{
		Thing: registered{nodeAsk: nodeOf(se, s, f, name, kubeconfig), absent: new(bool)},
		Why:   "kubelet registers it",
		To:    func(converge.State) (converge.State, error) { return "there", nil },
		Keeps: "the cluster still has the node: kubectl delete node " + name + "; pods of DaemonSets that still run here: crictl rmp --all --force",
	}
}

// NewRegistered builds the thing for undo, which leaves the node.
func NewRegistered(name string) converge.Thing {
	return registered{nodeAsk: nodeAsk{who: who{node: name}}}
}

func (r registered) Ref() converge.Ref { return converge.Ref{Kind: "registered", Name: r.node} }

func (r registered) Look(ctx context.Context, v host.View) (converge.State, error) {
	if r.kubelet == "" {
		return "", nil
	}
	found, err := r.get(ctx, v, r.session.look)
	missing := errors.Is(err, notRegistered) || err == nil && found == nil
	switch {
	case missing && r.absent != nil:
		*r.absent = true
	case missing:
	case err != nil:
		return "", err
	case r.absent == nil || !*r.absent:
		return "there", nil
	}
	return "", nil
}

func (r registered) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return converge.Stays{Why: "a node may not delete itself"}
	}
	err := r.wait(ctx, h, registerPatience, func(n *kube.Node) string {
		if n == nil {
			return "kubelet has not registered it"
		}
		return ""
	})
	if err == nil && r.absent != nil {
		*r.absent = false
	}
	return err
}

// joined is the readiness of the node, as kubelet has reported it in this boot: until then the API
// server shows the last boot's report. It is a Follower, so undo restores nothing.
type joined struct{ nodeAsk }

const isReady = "ready"

// WaitReady wants the node to be ready in this boot.
func WaitReady(se *Session, s spec.Spec, f facts.Facts, name, kubeconfig string) converge.Want {
	j := joined{nodeOf(se, s, f, name, kubeconfig)}
	return converge.Want{Thing: j, Why: "kubelet says so, in this boot", To: func(found converge.State) (converge.State, error) {
		return j.Current(found), nil
	}}
}

// NewJoined builds the thing for undo, which does nothing with it.
func NewJoined(name string) converge.Thing { return joined{nodeAsk{who: who{node: name}}} }

func (j joined) Ref() converge.Ref { return converge.Ref{Kind: "joined", Name: j.node} }

func (j joined) Look(ctx context.Context, v host.View) (converge.State, error) {
	if j.kubelet == "" {
		return isReady, nil
	}
	found, err := j.get(ctx, v, j.session.look)
	if err != nil {
		return "", err
	}
	if problem := Unready(found, j.boot); problem != "" {
		return "not ready", nil
	}
	return isReady, nil
}

func (j joined) Make(ctx context.Context, h host.Host, _ converge.State) error {
	return j.wait(ctx, h, readyPatience, func(n *kube.Node) string { return Unready(n, j.boot) })
}

// Affected returns the state found.
func (j joined) Affected(found converge.State, _ converge.Change) converge.State { return found }

// Current returns ready.
func (j joined) Current(converge.State) converge.State { return isReady }

// Unready says why a node is not ready in this boot, "" if it is.
func Unready(n *kube.Node, bootID string) string {
	if n == nil {
		return "the cluster has no node of this name"
	}
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type != "Ready":
		case n.Status.NodeInfo.BootID != bootID && bootID != "":
			return "kubelet has not said how it is since the last boot"
		case c.Status == kube.True:
			return ""
		default:
			return "it is not ready: " + trouble.OneLine(c.Reason+": "+c.Message)
		}
	}
	return "it does not say whether it is ready"
}

// reportEvery is how often a run reports what it waits for.
const reportEvery = 15 * time.Second

// reportedWait is a wait that reports what it waits for: at once, and then every reportEvery.
type reportedWait struct {
	view   host.View
	began  time.Time
	limit  time.Duration
	Paused time.Duration // between the questions so far
	told   time.Duration
	spoke  bool
}

func StartWait(v host.View, limit time.Duration) *reportedWait {
	return &reportedWait{view: v, began: v.Now(), limit: limit}
}

// so returns how long it has waited, including the requests: one to a server that does not answer
// takes half a minute.
func (w *reportedWait) so() time.Duration { return max(w.Paused, w.view.Now().Sub(w.began)) }

// Over says whether it has waited long enough.
func (w *reportedWait) Over() bool { return w.so() >= w.limit }

// Tell reports what it waits for, if a report is due.
func (w *reportedWait) Tell(ctx context.Context, problem string) {
	so := w.so()
	if w.spoke && so-w.told < reportEvery {
		return
	}
	w.spoke, w.told = true, so
	const clock = "15:04:05"
	converge.Say(ctx, converge.Waiting, fmt.Sprintf("%s; waiting since %s, until %s at the latest", problem, w.began.Format(clock), w.began.Add(w.limit).Format(clock)))
}
