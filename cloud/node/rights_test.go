// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/images/daemonset"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestRightsLacking: a right that is lacking keeps the machine from nothing. The message names it,
// and how an administrator grants it; after that the same command continues.
func TestRightsLacking(t *testing.T) {
	const account = "system:serviceaccount:gpuadm:gpuadm"
	for name, c := range map[string]struct {
		lose, give func(*apiNode)
	}{
		"the account may not patch": {
			func(a *apiNode) {
				a.sim.Token(apiSecret+"-account", kubesim.User{Name: account, May: []string{"get nodes"}})
			},
			func(a *apiNode) {
				a.sim.Token(apiSecret+"-account", kubesim.User{Name: account, May: []string{"get nodes", "patch nodes"}})
			},
		},
		"unknown kubelet": {
			func(a *apiNode) { a.sim.Fail(kubesim.Fault{Times: -1, Status: 401}) },
			func(a *apiNode) { a.sim.Heal() },
		},
		"no right to look": {
			func(a *apiNode) { a.sim.Token(apiSecret+"-kubelet", kubesim.User{Name: "jane"}) },
			func(a *apiNode) { a.sim.Token(apiSecret+"-kubelet", kubesim.Node("gpu-1")) },
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
			faulted(t, name, err, rightLacking)
			data, err := a.ReadFile("/etc/machine")
			check.That(t, string(data) == "fixed", "the machine was not fixed: %v", err)
			check.That(t, a.tainted("example.com/starting"), "pods may come:\n%s", a.shown())
			c.give(a)
			a.Advance(time.Minute)
			a.apply()
			a.converged(a.mark())
		})
	}
}

// TestRightsOfTheGate: a check that fails is not a right that is lacking.
func TestRightsOfTheGate(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.sim.Fail(kubesim.Fault{Times: -1, Status: 403})
	bad := converge.Stage{Name: "bad", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{things.Check("x", func(context.Context, host.View) (string, error) {
			return "no GPU answers", nil
		}, "")}, nil
	}}
	a.stages = []converge.Stage{a.stages[0], bad, a.stages[1]}
	_, err := a.engine().Apply(a.ctx, a)
	check.That(t, !trouble.Passes(err) && errors.Is(err, trouble.Code("x")), "got %v", err)
}

// probePod is a pod on the node gpu-1, and its API server.
func probePod(t *testing.T) (*simhost.Node, *kubesim.Server) {
	t.Helper()
	const folder = "var/run/secrets/kubernetes.io/serviceaccount"
	n, err := simhost.New(fmt.Appendf(nil, "-- proc/self/environ nonl --\nKUBERNETES_SERVICE_HOST=10.96.0.1\x00KUBERNETES_SERVICE_PORT=443\x00\n"+
		"-- %[1]s/ca.crt --\n%[2]s-- %[1]s/token --\n%[3]s\n", folder, kubesim.CA(time.Now()), apiSecret))
	must.OK(t, err)
	sim := kubesim.New(kubesim.User{})
	account := kubesim.User{
		Name:   "system:serviceaccount:gpuadm:gpuadm",
		May:    []string{"patch nodes"},
		OnNode: "gpu-1",
	}
	sim.Token(apiSecret, account)
	for _, name := range []string{"gpu-1", "gpu-2"} {
		sim.AddNode(name, nil)
	}
	sim.Serve("/version", kubesim.Object{"gitVersion": "v1.29.9"})
	n.Serve("10.96.0.1:443", sim)
	return n, sim
}

// denies is a policy that says this of the label of the probe, on the pod's own Node.
func denies(t *testing.T, message string) func(kubesim.User, kubesim.Object, kubesim.Object) string {
	return func(u kubesim.User, old, made kubesim.Object) string {
		meta, _ := made["metadata"].(kubesim.Object)
		labels, _ := meta["labels"].(kubesim.Object)
		check.That(t, meta["name"] == u.OnNode && labels["node-restriction.kubernetes.io/gpuadm-probe"] != nil, "the policy is shown %v", made)
		return message
	}
}

func TestProbePolicy(t *testing.T) {
	const denied = "gpuadm may not change the key [" + PolicyCode + "]"
	account := func(u kubesim.User) func(*testing.T, *kubesim.Server) {
		return func(_ *testing.T, s *kubesim.Server) { s.Token(apiSecret, u) }
	}
	const name = "system:serviceaccount:gpuadm:gpuadm"
	for _, tt := range []struct {
		what string
		set  func(*testing.T, *kubesim.Server)
		code trouble.Code // "": the account may be lent
	}{
		{"the policy is in force", func(t *testing.T, s *kubesim.Server) { s.Admit(denies(t, denied)) }, ""},
		{"there is no policy", func(*testing.T, *kubesim.Server) {}, noPolicy},
		{"an older policy, or another's", func(t *testing.T, s *kubesim.Server) { s.Admit(denies(t, "gpuadm may not [gpuadm-node-keys-0]")) }, rightLacking},
		{"the account has no rights", account(kubesim.User{Name: name, OnNode: "gpu-1"}), rightLacking},
		{"the server writes no node into tokens", account(kubesim.User{Name: name, May: []string{"patch nodes"}}), noPolicy},
		{"the server does not know who asks", func(_ *testing.T, s *kubesim.Server) {
			s.Fail(kubesim.Fault{On: "POST /apis/authentication.k8s.io", Status: 404})
		}, noPolicy},
	} {
		t.Run(tt.what, func(t *testing.T) {
			n, sim := probePod(t)
			tt.set(t, sim)
			before := fmt.Sprint(sim.Node("gpu-1"))
			told, err := ProbePolicy(t.Context(), n)
			must.OK(t, err)
			must.That(t, (told == nil) == (tt.code == ""), "it says %v", told)
			if told != nil {
				faulted(t, tt.what, told, tt.code)
			}
			check.That(t, fmt.Sprint(sim.Node("gpu-1")) == before, "the probe has changed the Node")
		})
	}
}

// TestProbeUnanswered: that the cluster does not answer says nothing of its policy.
func TestProbeUnanswered(t *testing.T) {
	for _, fault := range []kubesim.Fault{
		{On: "POST", Status: 401, Times: -1},
		{On: "PATCH", Status: 401, Times: -1},
		{On: "PATCH", Status: 404, Times: -1}, // the Node is not registered yet
	} {
		n, sim := probePod(t)
		sim.Fail(fault)
		told, err := ProbePolicy(t.Context(), n)
		check.That(t, err != nil && told == nil, "%+v: %v, %v", fault, told, err)
	}

	n, err := simhost.New([]byte("-- proc/self/environ --\nA=b\n"))
	must.OK(t, err)
	told, err := ProbePolicy(t.Context(), n)
	check.That(t, errors.Is(err, kube.Broken) && told == nil, "no pod: %v, %v", told, err)
}

// TestPolicyFits holds rbac.yaml to what the code relies on: its code, its condition, and our
// taints in its list.
func TestPolicyFits(t *testing.T) {
	text := string(daemonset.RBAC)
	check.That(t, strings.Count(text, "["+PolicyCode+"]") == 1, "rbac.yaml does not say [%s] once", PolicyCode)
	check.That(t, strings.Count(text, `c.type != "`+GPUReady+`"`) == 2, "rbac.yaml does not leave the condition %s to gpuadm", GPUReady)
	for _, key := range []string{readinessTaint().Key, autoscalerTaint().Key, failureTaint().Key} {
		check.That(t, strings.Contains(text, "          \""+key+"\",\n"), "the taint %s is not in the list of rbac.yaml", key)
	}
	for _, key := range []string{labelRecord, taintRecord, gpuRecord} {
		check.That(t, strings.HasPrefix(key, "nvidia.com/") && bytes.Contains(daemonset.RBAC, []byte(`"nvidia.com/*",`)), "the annotation %s is not in the list of rbac.yaml", key)
	}
}
