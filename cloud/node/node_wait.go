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
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// How long kubelet may take after its start to register, and to become ready. A real kubelet took 1
// to 4 seconds; it may have to pull the images of a network plugin first.
const (
	registerPatience = 2 * time.Minute
	readyPatience    = 5 * time.Minute
)

// nodeAsk reads one Node object with kubelet's identity. Without a kubeconfig it asks no server.
type nodeAsk struct {
	identity
	booting bool
	session *Session
	pause   func(context.Context, time.Duration) error
}

func newNodeAsk(session *Session, s spec.Spec, f facts.Facts, name, kubeconfig string) nodeAsk {
	return nodeAsk{
		identity: identity{
			node:    name,
			unit:    f.Kubelet.Unit,
			kubelet: kubeconfig,
			via:     method.Via(s),
			bootID:  f.BootID,
		},
		booting: f.Booting,
		session: session,
		pause:   host.Pause,
	}
}

// readNode is a session's way to read a Node: look or cachedNode.
type readNode func(context.Context, host.View, identity) (*kube.Node, error)

// get returns the Node object from read, nil if there is none.
func (a nodeAsk) get(ctx context.Context, v host.View, read readNode) (*kube.Node, error) {
	switch {
	case !v.Live():
		return nil, host.FirstBoot
	case a.booting:
		return nil, host.Later{Until: "once kubelet runs"}
	}

	n, err := read(ctx, v, a.identity)
	hasNotJoined := host.NotExist(err) // a machine without kubelet's files has no identity to ask with
	if hasNotJoined || errors.Is(err, kube.Missing) {
		return nil, nil
	}
	return n, err
}

// nodeProblem says what is wrong with a Node, nil for none; "" if nothing is.
type nodeProblem func(*kube.Node) string

// wait asks until problemOf finds no problem with the node, or until limit has passed. It also
// waits while the API server does not answer.
func (a nodeAsk) wait(ctx context.Context, v host.View, limit time.Duration, problemOf nodeProblem) error {
	// The first looks are quick: a real kubelet registers within 1 to 4 seconds. A pool of
	// thousands that waits for a network plugin asks every 5 to 15 seconds, which
	// TestBenchKubeLoad measures at an API server.
	const first, longest = 500 * time.Millisecond, 10 * time.Second
	defer a.session.forget() // the next look must see this answer

	problem := ""
	wait := newReportedWait(v, limit)
	for most := first; ; most = min(2*most, longest) {
		n, err := a.get(ctx, v, a.session.cachedNode)
		switch {
		case err == nil:
			problem = problemOf(n)
			if problem == "" {
				return nil
			}
		case trouble.Passes(err):
			problem = err.Error()
		default:
			return err
		}

		wait.report(ctx, "node "+a.node+": "+problem)
		over := wait.over()
		pause := most/2 + rand.N(most) // machines that start together do not ask together
		wait.paused += pause
		if over || a.pause(ctx, pause) != nil {
			return a.givesUp(wait, problem, err)
		}
	}
}

// givesUp says what the node still waits for; err is the last request's.
func (a nodeAsk) givesUp(wait *reportedWait, problem string, err error) error {
	try := []string{
		"journalctl -u " + a.unitName() + ", which says what it waits for",
		"then run the same command again: it continues from here",
	}
	if strings.Contains(strings.ToLower(problem), "cni") {
		try = append([]string{"the cluster's network plugin must run here: " + podsOn(a.node)}, try...)
	}
	waited := wait.elapsed().Round(time.Second)
	return &trouble.Error{
		What:    fmt.Sprintf("cannot wait any longer for node %s, after %v: %s", a.node, waited, problem),
		Because: []string{"kubelet keeps trying while it runs"},
		Try:     try,
		Passing: true,
		Err:     errors.Join(waitedEnough, err),
	}
}
