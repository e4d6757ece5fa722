// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestRightsLacking: a right that is lacking keeps the machine from nothing. The message names it, and how an administrator grants
// it; after that the same command continues.
func TestRightsLacking(t *testing.T) {
	const account = "system:serviceaccount:gpuadm:gpuadm"
	const right = "give it a ClusterRole with the right to get and patch nodes and nodes/status"
	for name, c := range map[string]struct {
		lose, give func(*apiNode)
		says       []string
	}{
		"the account may not patch": {
			func(a *apiNode) {
				a.sim.Token(apiSecret+"-account", kubesim.User{Name: account, May: []string{"get nodes"}})
			},
			func(a *apiNode) {
				a.sim.Token(apiSecret+"-account", kubesim.User{Name: account, May: []string{"get nodes", "patch nodes"}})
			},
			[]string{"may not patch it", account, right},
		},
		"unknown kubelet": {
			func(a *apiNode) { a.sim.Fail(kubesim.Fault{Times: -1, Status: 401}) },
			func(a *apiNode) { a.sim.Heal() },
			[]string{"rejects the credentials (401)"},
		},
		"no right to look": {
			func(a *apiNode) { a.sim.Token(apiSecret+"-kubelet", kubesim.User{Name: "jane"}) },
			func(a *apiNode) { a.sim.Token(apiSecret+"-kubelet", kubesim.Node("gpu-1")) },
			[]string{"may not get it", "jane", right},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec)
			machine := converge.Stage{Name: "machine", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
				return []converge.Want{things.Exact("/etc/machine", []byte("fixed"), 0o644, "")}, nil
			}}
			e := a.engine()
			e.Stages = []converge.Stage{a.stages[0], machine, a.stages[1]}
			c.lose(a)
			_, err := e.Apply(a.ctx, a)
			told := (*trouble.Error)(nil)
			must.That(t, trouble.Passes(err) && errors.As(err, &told), "got %v", err)
			all := strings.Join(append(append([]string{err.Error()}, told.Because...), told.Try...), "\n")
			check.Says(t, all, c.says...)
			data, err := a.ReadFile("/etc/machine")
			check.That(t, string(data) == "fixed", "the machine was not fixed: %v", err)
			if !strings.Contains(a.shown(), "example.com/starting") {
				t.Errorf("pods may come:\n%s", a.shown())
			}
			c.give(a)
			a.Advance(time.Minute)
			a.apply()
			a.converged(a.mark())
		})
	}
}

// TestRightsOfTheGate: a check that fails is no right that is lacking.
func TestRightsOfTheGate(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.sim.Fail(kubesim.Fault{Times: -1, Status: 403})
	bad := converge.Stage{Name: "bad", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{things.Check("x", func(context.Context, host.View) (string, error) { return "no GPU answers", nil }, "")}, nil
	}}
	a.stages = []converge.Stage{a.stages[0], bad, a.stages[1]}
	_, err := a.engine().Apply(a.ctx, a)
	check.That(t, !trouble.Passes(err) && err != nil && strings.Contains(err.Error(), "no GPU answers"), "got %v", err)
}
