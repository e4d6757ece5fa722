// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// accountPod is a DaemonSet's pod on gpu-1, its API server, and the machine.
func accountPod(t *testing.T) (p *Pod, sim *kubesim.Server, inside, machine *simhost.Node, said *bytes.Buffer) {
	t.Helper()
	ca := kubesim.CA(time.Now())
	files := fmt.Appendf(nil, "-- proc/self/environ nonl --\nKUBERNETES_SERVICE_HOST=10.96.0.1\x00KUBERNETES_SERVICE_PORT=443\x00\n"+
		"-- %[1]s/ca.crt --\n%[2]s-- %[1]s/token --\nsecret\n", podAccount[1:], ca)
	var err error
	inside, err = simhost.New(files)
	must.OK(t, err)
	if machine, err = simhost.New([]byte("-- run/gpuadm/node.toml --\nformat = 1\n")); err != nil {
		t.Fatal(err)
	}
	sim = kubesim.New(kubesim.User{})
	sim.Token("secret", kubesim.User{
		Name:   "system:serviceaccount:gpuadm:gpuadm",
		May:    []string{"patch nodes"},
		OnNode: "gpu-1",
	})
	sim.AddNode("gpu-1", nil)
	inside.Serve("10.96.0.1:443", sim)
	said = new(bytes.Buffer)
	p = &Pod{
		Read: inside.ReadFile,
		Getenv: func(name string) string {
			return map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}[name]
		},
		Own: func() (host.Host, error) { return inside, nil },
		Say: func(e Event) { fmt.Fprintln(said, e.Err) },
	}
	return p, sim, inside, machine, said
}

// TestDaemonSetLends: the account is lent while the policy narrows it, and taken back when it does
// not; a warning is said once; a cluster that does not answer changes nothing.
func TestDaemonSetLends(t *testing.T) {
	p, sim, _, machine, said := accountPod(t)
	policy := func(on bool) func() {
		return func() {
			sim.Heal()
			sim.Admit(nil)
			if on {
				sim.Admit(func(kubesim.User, kubesim.Object, kubesim.Object) string {
					return "denied [" + node.PolicyCode + "]"
				})
			}
		}
	}

	silent := func() { sim.Fail(kubesim.Fault{Status: 401, Times: -1}) }
	for _, step := range []struct {
		what          string
		do            func()
		lent, unknown bool
		says          string // "" for nothing
	}{
		{"no answer at first", silent, false, true, "cannot check whether the policy limits"},
		{"no answer again", func() {}, false, true, ""},
		{"no policy", policy(false), false, false, "no policy restricts it"},
		{"still no policy", func() {}, false, false, ""},
		{"the policy", policy(true), true, false, ""},
		{"no answer after it", silent, true, false, "cannot check whether"},
		{"the policy again", policy(true), true, false, ""},
		{"the policy is gone", policy(false), false, false, "no policy restricts it"},
	} {
		said.Reset()
		step.do()
		err := p.lend(t.Context(), machine)
		must.That(t, err == nil, "%v: %v", step.what, err)
		for _, name := range []string{node.PodKubeconfig, podToken, podCA} {
			_, err := machine.Stat(name)
			check.That(t, (err == nil) == step.lent, "%s: %s: %v", step.what, name, err)
		}

		check.That(t, p.unknown == step.unknown, "%s: unknown is %v", step.what, p.unknown)
		text := said.String()
		check.That(t, (text == "") == (step.says == "") && strings.Contains(text, step.says), "%s: it says %q, want %q", step.what, text, step.says)
	}

	p.WithoutPolicy = true
	sim.Requests()
	err := p.lend(t.Context(), machine)
	check.That(t, err == nil && len(sim.Requests()) == 0, "--without-policy: %v, or it asked", err)
	_, err = machine.Stat(node.PodKubeconfig)
	check.That(t, err == nil, "--without-policy: %v", err)
}

// TestNoAnswerIsNotANo: a container that starts again while the cluster does not answer, does not know
// the account, or does not give it its rights keeps what the pod before it has lent, with the token
// of today. Only a clear no takes it back. The machine's apply learns that the cluster did not say.
func TestNoAnswerIsNotANo(t *testing.T) {
	for name, fault := range map[string]kubesim.Fault{
		"mute":      {Status: 501, Times: -1}, // the first error that is no wait
		"401":       {Status: 401, Times: -1},
		"no rights": {On: "PATCH", Status: 403, Times: -1},
	} {
		t.Run(name, func(t *testing.T) {
			before, sim, inside, machine, _ := accountPod(t)
			sim.Admit(func(kubesim.User, kubesim.Object, kubesim.Object) string {
				return "denied [" + node.PolicyCode + "]"
			})
			must.OK(t, before.lend(t.Context(), machine))

			must.OK(t, inside.WriteFile(podAccount+"/token", []byte("newer"), host.Attr{Mode: 0o600}))
			sim.Token("newer", kubesim.User{
				Name:   "system:serviceaccount:gpuadm:gpuadm",
				May:    []string{"patch nodes"},
				OnNode: "gpu-1",
			})
			after := &Pod{
				Read:   before.Read,
				Getenv: before.Getenv,
				Own:    before.Own,
				Say:    before.Say,
			}
			sim.Fail(fault)
			must.OK(t, after.lend(t.Context(), machine))
			token, err := machine.ReadFile(podToken)
			check.That(t, err == nil && string(token) == "newer", "the machine has the token %q, %v", token, err)
			check.That(t, exists(machine, node.PodKubeconfig), "the kubeconfig was taken back")

			sim.Heal()
			sim.Admit(nil)
			must.OK(t, after.lend(t.Context(), machine))
			check.That(t, !exists(machine, node.PodKubeconfig) && !exists(machine, node.PodUnsure), "without a policy the kubeconfig stays")

			sim.Fail(fault)
			must.OK(t, after.lend(t.Context(), machine))
			check.That(t, !exists(machine, node.PodKubeconfig), "the kubeconfig came back")
		})
	}

	p, sim, _, machine, _ := accountPod(t)
	sim.Fail(kubesim.Fault{Status: 501, Times: -1})
	must.OK(t, p.lend(t.Context(), machine))
	check.That(t, exists(machine, node.PodUnsure), "the machine is not told that the cluster did not answer")
	sim.Heal()
	sim.Admit(func(kubesim.User, kubesim.Object, kubesim.Object) string {
		return "denied [" + node.PolicyCode + "]"
	})
	must.OK(t, p.lend(t.Context(), machine))
	check.That(t, exists(machine, node.PodKubeconfig) && !exists(machine, node.PodUnsure), "the answer is not used")
}

func exists(v host.View, name string) bool {
	_, err := v.Stat(name)
	return err == nil
}

// TestPodWithdraws: a pod that ends takes back what it has lent, also during an apply, and nothing
// that another pod has lent since.
func TestPodWithdraws(t *testing.T) {
	for name, want := range map[string]bool{"its own": false, "another pod's": true} {
		p, sim, _, machine, _ := accountPod(t)
		sim.Admit(func(kubesim.User, kubesim.Object, kubesim.Object) string {
			return "denied [" + node.PolicyCode + "]"
		})
		must.OK(t, p.lend(t.Context(), machine))
		if want {
			must.OK(t, machine.WriteFile(podToken, []byte("another"), host.Attr{Mode: 0o600}))
		}

		stop, ended := make(chan struct{}), make(chan bool)
		go func() { p.renew(t.Context(), machine, nil, stop); close(ended) }()
		close(stop)
		<-ended
		check.That(t, exists(machine, node.PodKubeconfig) == want, "%s: the kubeconfig is there: %v", name, !want)
	}
}

// TestDaemonSetRenews: a token that kubelet renews in the pod comes to the machine during an apply,
// where one was lent.
func TestDaemonSetRenews(t *testing.T) {
	for _, lent := range []bool{true, false} {
		p, _, inside, machine, _ := accountPod(t)
		p.WithoutPolicy = lent
		must.OK(t, p.lend(t.Context(), machine))
		must.OK(t, inside.WriteFile(podAccount+"/token", []byte("newer"), host.Attr{Mode: 0o600}))
		ctx, stop := context.WithCancel(t.Context())
		tick, ended := make(chan time.Time), make(chan bool)
		go func() { p.renew(ctx, machine, tick, nil); close(ended) }()
		tick <- time.Time{}
		tick <- time.Time{} // it is taken when the first has been seen to
		stop()
		<-ended
		token, err := machine.ReadFile(podToken)
		check.That(t, (!lent || string(token) == "newer") && (lent || err != nil), "lent %v: the machine has %q, %v", lent, token, err)
	}
}

// TestPodSeesLabel: a pod asks its own Node, and sees each change of the label once.
func TestPodSeesLabel(t *testing.T) {
	p, sim, _, _, _ := accountPod(t)
	sim.Token("secret", kubesim.User{
		Name:   "system:serviceaccount:gpuadm:gpuadm",
		May:    []string{"get nodes"},
		OnNode: "gpu-1",
	})
	for i, step := range []struct {
		label   string
		fails   bool
		changed bool
	}{{"", false, false}, {"two", false, true}, {"two", false, false}, {"three", true, false}, {"three", false, true}} {
		sim.EditNode("gpu-1", func(n kubesim.Object) {
			n["metadata"].(kubesim.Object)["labels"] = kubesim.Object{node.MIGConfig: step.label}
		})
		sim.Heal()
		if step.fails {
			sim.Fail(kubesim.Fault{On: "GET", Status: 403})
		}
		check.Equal(t, p.relabelled(t.Context()), step.changed, "step %d: changed", i)
	}
}
