// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/joins"
)

// whole is the join as the bootstrap has it: among stages that look at it too.
func (j *testJoin) whole() *converge.Engine {
	e, se := j.engine(), new(node.Session)
	e.Stages = []converge.Stage{node.Stage(), node.GPUs(), j.stage(se), joinedStage(se), node.NewReady(se, nil)}
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "label" || ref.Kind == "taint" || ref.Kind == "condition" {
			return node.NewPart(ref.Kind+" "+ref.Name, se)
		}
		return testThing(ref)
	}
	return e
}

// An API server that is not there is asked once, however many things and stages would ask it: each waits for half a minute.
func TestUnreachableServer(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	asked := 0
	j.n.Serve("api.example:6443", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	_, err := j.whole().Apply(kube.Within(context.Background(), 0), j.n)
	if err == nil || !trouble.Passes(err) || !strings.Contains(err.Error(), "api.example") || !strings.Contains(joins.Because(err), "try wait") {
		t.Errorf("%v\n%s", err, joins.Because(err))
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if u, err := j.n.Unit(context.Background(), "kubelet.service"); err == nil && u.Active == "active" {
		t.Error("kubelet runs without a certificate")
	}
	j.read(t, "/etc/gpuadm/token") // it is needed yet
	j.n.Serve("api.example:6443", j.joinCluster)
	e := j.whole()
	e.Stages = e.Stages[:4]
	if _, err := e.Apply(context.Background(), j.n); err != nil {
		t.Errorf("it is there again: %v\n%s", err, joins.Because(err))
	}
}

// Without its section [join] gpuadm releases the node that it made: it restores nothing and waits for nothing.
func TestJoinSectionGone(t *testing.T) {
	for name, archive := range map[string]string{"own unit": joins.Machine, "kubeadm's unit": joins.Machine + tokenKubeadmUnit} {
		t.Run(name, func(t *testing.T) {
			const node = "[node]\nlabels = { \"example.com/pool\" = \"a\" }\ntaints = [\"example.com/gpu=yes:NoSchedule\"]\nstartup_taint = \"none\"\n"
			j := startJoin(t, archive, node)
			if _, err := j.whole().Apply(context.Background(), j.n); err != nil {
				t.Logf("%v", err) // the simulated kubelet registers without labels
			}
			before := j.tree()
			var err error
			j.spec, err = spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n" + node)})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				e := j.whole()
				e.Stages = e.Stages[:2]
				p, err := e.Plan(context.Background(), j.n.View())
				if err != nil || len(p.Changes) > 0 {
					t.Fatalf("%v\n%s", err, joins.Names(p.Changes))
				}
				if len(p.Notes) > 0 {
					t.Errorf("notes %q", p.Notes)
				}
				if res, err := e.Apply(context.Background(), j.n); err != nil || len(res.Deferred) > 0 {
					t.Fatalf("%v\n%s", err, joins.Names(res.Deferred))
				}
				if after := j.tree(); after != before {
					t.Errorf("before\n%s\nafter\n%s", before, after)
				}
			}
		})
	}
}

// A message about a certificate that has run out says that, and not only that there is no token.
func TestRunOutWithoutToken(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	ends := certificates([]byte(j.read(t, kubelet.CurrentCertificate)))[0].NotAfter
	j.n.Advance(2 * 365 * 24 * time.Hour)
	_, err := j.engine().Apply(context.Background(), j.n)
	if err == nil {
		t.Fatal("no error")
	}
	all := err.Error() + "\n" + joins.Because(err)
	for _, want := range []string{
		"cannot renew the certificate of node gpu-1, which ran out on " + ends.UTC().Format("2006-01-02 15:04 MST"),
		"UTC: that takes a new bootstrap token, and /etc/gpuadm/token is not there\n", "while it holds",
		"kubeadm token create; write what it prints into /etc/gpuadm/token, with mode 0600, then apply again",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("it does not say %q:\n%s", want, all)
		}
	}
}
