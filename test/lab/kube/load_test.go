// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// crowd is a machine with GPUs, a kubelet that has joined, and nothing else: one of many that are
// the same.
//
//go:embed testdata/crowd.txtar
var crowd string

// onTheWire is a simulated machine on the real network.
type onTheWire struct {
	*simhost.Node
	real host.Host
	open []http.RoundTripper
}

func (o *onTheWire) AskWeb(w host.Web) (http.RoundTripper, error) {
	return o.keep(o.real.AskWeb(w))
}

func (o *onTheWire) DoWeb(w host.Web) (http.RoundTripper, error) {
	return o.keep(o.real.DoWeb(w))
}

func (o *onTheWire) keep(t http.RoundTripper, err error) (http.RoundTripper, error) {
	if err == nil {
		o.open = append(o.open, t)
	}
	return t, err
}

// hangUp closes what the end of a process closes.
func (o *onTheWire) hangUp() {
	for _, t := range o.open {
		if c, ok := t.(interface{ CloseIdleConnections() }); ok {
			c.CloseIdleConnections()
		}
	}

	o.open = nil
}

// TestBenchKubeLoad prints what it costs one API server that 5,000 nodes come up at once, each by
// all of gpuadm's stages, with a connection and a certificate of its own: labels, taints and the
// condition, and how it went, told; then once more, when all is converged. LOAD says how many else.
func TestBenchKubeLoad(t *testing.T) {
	c := cluster.Run(t)
	nodes := 5000
	if text := os.Getenv("LOAD"); text != "" {
		var err error
		nodes, err = strconv.Atoi(text)
		must.OK(t, err)
	}

	real := must.Get(local.Open("/"))(t)
	base := must.Get(os.ReadFile("../../hosts/mig-h100-a100-t4.txtar"))(t)
	wanted := must.Get(spec.Parse(spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n[node]\nlabels = { \"lab.invalid/pool\" = \"crowd\" }\n"),
	}))(t)
	for _, again := range []bool{false, true} {
		figures, err := c.Load(t.Context(),
			kube.Load{Nodes: nodes, Parallel: 64, Each: func(ctx context.Context, node string) error {
				h, err := oneOfMany(c, real, base, node)
				if err != nil {
					return err
				}
				defer h.hangUp()
				if err := bringUp(ctx, h, wanted); err != nil || !again {
					return err
				}
				return bringUp(ctx, h, wanted)
			}})
		must.OK(t, err)
		t.Logf("applied twice: %t: %s", again, figures)
		// One GET, one PATCH, and an Event for the stage that changed something; then one GET.
		budget := 3.01 // a retry may be among thousands
		if again {
			budget = 4.01
		}
		if figures.Requests > budget {
			t.Errorf("%.2f requests for a node, want at most %.2f", figures.Requests, budget)
		}
		check.That(t, figures.Errors <= 0, "%d errors, as %v", figures.Errors, figures.Why)
		left := kube.List(c.Get("/api/v1/nodes?labelSelector=lab.invalid%2Fload"), "items")
		check.That(t, len(left) == 0, "%d Nodes are left", len(left))
	}
}

// oneOfMany is a machine of the crowd under this name.
func oneOfMany(c *kube.T, real host.Host, base []byte, node string) (*onTheWire, error) {
	config, err := c.NodeConfig(c.Local, node)
	if err != nil {
		return nil, err
	}
	// Certificates are of today.
	machine := bytes.Replace(base, []byte("now = 2026-03-04T05:06:07Z"),
		[]byte("now = "+time.Now().UTC().Format(time.RFC3339Nano)), 1)
	n, err := simhost.New(fmt.Appendf(machine, crowd+"%s", node, config))
	if err != nil {
		return nil, err
	}
	return &onTheWire{Node: n, real: real}, nil
}

// TestBenchKubeRecovery prints what 200 converged nodes ask for when an API server that has answered
// nothing for a minute answers again. Each applies as a DaemonSet's pod has it: what waits is tried
// again after 20 seconds, a fifth more or less (internal/agent/pod.go: podRetry, spread).
func TestBenchKubeRecovery(t *testing.T) {
	const nodes = 200
	c := cluster.Run(t)
	real := must.Get(local.Open("/"))(t)
	base := must.Get(os.ReadFile("../../hosts/mig-h100-a100-t4.txtar"))(t)
	wanted := must.Get(spec.Parse(spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n[node]\nlabels = { \"lab.invalid/pool\" = \"crowd\" }\n"),
	}))(t)

	var converged sync.WaitGroup
	converged.Add(nodes)
	mute := make(chan struct{})
	var answers time.Time
	outage := make(chan struct{})
	go func() {
		defer close(outage)
		converged.Wait()
		speaks := c.Mute()
		close(mute)
		time.Sleep(time.Minute)
		answers = time.Now()
		speaks()
	}()

	var mutex sync.Mutex
	refused, last := 0, time.Time{}
	figures, err := c.Load(t.Context(),
		kube.Load{Nodes: nodes, Parallel: nodes, Each: func(ctx context.Context, node string) error {
			h, err := oneOfMany(c, real, base, node)
			if err == nil {
				defer h.hangUp()
				err = bringUp(ctx, h, wanted)
			}
			converged.Done()
			if err != nil {
				return err
			}

			<-mute
			for {
				time.Sleep(16*time.Second + time.Duration(rand.Int64N(int64(8*time.Second))))
				err := bringUp(ctx, h, wanted)
				mutex.Lock()
				if err == nil {
					last = time.Now()
				} else {
					refused++
				}

				mutex.Unlock()
				if err == nil {
					return nil
				}
			}
		}})
	must.OK(t, err)
	<-outage
	check.That(t, figures.Errors == 0, "%d errors, as %v", figures.Errors, figures.Why)
	check.That(t, refused > 0, "no apply has met the outage")
	t.Logf("%d nodes, %d applies in vain in the outage: the last one converged %.1f s after the API server answered, %d requests in a second at most",
		nodes, refused, last.Sub(answers).Seconds(), c.Peak("system:node:load-", answers))
}

// bringUp is what gpuadm apply does.
func bringUp(ctx context.Context, h host.Host, s spec.Spec) error {
	session := new(node.Session)
	sequence, thingOf := stages.Run(session, nil)
	e := &converge.Engine{
		Stages:  sequence,
		Spec:    s,
		ThingOf: thingOf,
		Prune:   stages.Prune,
		Version: "test",
	}
	result, err := e.Apply(ctx, h)
	if err != nil {
		return err
	}
	f, err := e.Facts(ctx, h)
	if err != nil {
		return err
	}
	return node.Report(ctx, session, h, s, f, node.Outcome{Made: result.Made})
}
