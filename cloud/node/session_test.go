// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestAPIIsMade: labels, taints, condition, and the startup taint gone, by the right identities and
// within the budget.
func TestAPIIsMade(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.converged(a.mark())
	// One PATCH by kubelet, and one by the ServiceAccount.
	want := []string{"GET /api/v1/nodes/gpu-1", "PATCH /api/v1/nodes/gpu-1/status", "PATCH /api/v1/nodes/gpu-1"}
	got := a.sim.Requests()
	check.That(t, slices.Equal(got, want), "requests of a change:\n%s", strings.Join(got, "\n"))
	before := a.sim.Node("gpu-1")
	a.Advance(time.Minute)
	res := a.apply()
	check.That(t, res.Run == "", "a second apply did %v", res.Made)
	check.List(t, a.sim.Requests(), want[:1], "requests of a converged node:")
	check.That(t, fmt.Sprint(before) == fmt.Sprint(a.sim.Node("gpu-1")), "the converged Node was changed")
}

// TestAPIUndo: labels and taints go, foreign ones stay; the startup taint stays off, and the
// condition says nothing any more.
func TestAPIUndo(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	must.Get(a.engine().Undo(a.ctx, a, "", nil))(t)
	got, _, _ := strings.Cut(a.shown(), " gpuadm undo")
	check.Equal(t, got, `kubernetes.io/os=linux
theirs.example/x=1
taint theirs.example/busy=y:NoSchedule <nil>
taint theirs.example/late=<nil>:NoExecute 2026-01-02T03:04:05Z
Unknown Undone`, "undo left")
}

// TestAPIUndoWithoutNode: a machine that has left its cluster, or whose Node was deleted, can be
// undone.
func TestAPIUndoWithoutNode(t *testing.T) {
	for name, set := range map[string]func(*apiNode){
		"left":    func(a *apiNode) { a.facts.Kubelet.Joined = false },
		"deleted": func(a *apiNode) { a.sim.DeleteNode("gpu-1") },
	} {
		a := apiFixture(t, apiSpec)
		a.apply()
		set(a)
		a.Advance(time.Minute)
		_, err := a.engine().Undo(a.ctx, a, "", nil)
		check.That(t, err == nil, "%s: %v", name, err)
	}
}

// TestNoKubeconfig: apply names a kubeconfig that is not there, also where kubelet's identity may
// make all that is asked for; a machine that has not joined waits.
func TestNoKubeconfig(t *testing.T) {
	a := apiFixture(t, "[node]\nlabels = { \"example.com/rack\" = \"r7\" }\nstartup_taint = \"none\"\nkubeconfig = \"/etc/gpuadm/none\"\n")
	_, err := a.engine().Apply(a.ctx, a)
	must.That(t, err != nil, "apply goes well")
	check.Has(t, err.Error(), "/etc/gpuadm/none, which kubeconfig in [node] names, is not there", "apply says")
	a.facts.Kubelet.Joined = false
	a.apply()
}

// TestSpecOn: undo finds the ServiceAccount in the spec that lies on the machine, where the last
// file wins.
func TestSpecOn(t *testing.T) {
	a := apiFixture(t, apiSpec)
	check.None(t, machineSpec(a).Node.Kubeconfig, "no spec says")
	for _, dir := range []string{"/etc/gpuadm", "/etc/gpuadm/node.d"} {
		_ = a.Mkdir(dir, host.Attr{Mode: 0o755}) // the first is there
	}
	for name, text := range map[string]string{
		"/etc/gpuadm/node.toml": "format = 1\n" + apiSpec, "/etc/gpuadm/node.d/10.toml": "format = 1\n[node]\nkubeconfig = \"/other\"\n", "/etc/gpuadm/node.d/x.bak": "junk",
	} {
		must.OK(t, a.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
	}

	check.Equal(t, machineSpec(a).Node.Kubeconfig, "/other", "the spec says")
}

// TestAPIShrinks: what the spec no longer asks for goes, what the node had before us comes back.
func TestAPIShrinks(t *testing.T) {
	t.Run("with GPUs", func(t *testing.T) { apiShrinks(t, func(*apiNode) {}) })
	// Without checks between them, what goes and what comes is one batch, made by a thing from the
	// journal.
	t.Run("without", func(t *testing.T) {
		apiShrinks(t, func(a *apiNode) {
			a.facts.GPUs = nil
		})
	})
}

func apiShrinks(t *testing.T, set func(*apiNode)) {
	t.Helper()
	a := apiFixture(t, strings.Replace(apiSpec, `"example.com/rack"`, `"theirs.example/x" = "2", "example.com/rack"`, 1))
	set(a)
	a.apply()
	must.That(t, a.label("theirs.example/x") == "2", "the label was not taken over:\n%s", a.shown())
	a.spec = strings.Replace(apiSpec, `"node-role.kubernetes.io/gpu" = ""`, `"example.com/row" = "3"`, 1)
	a.sim.Requests()
	a.apply()
	check.That(t, a.label("node-role.kubernetes.io/gpu") == nil && a.label("example.com/row") == "3" && a.label("theirs.example/x") == "1", "after a shrunk spec:\n%s", a.shown())
	res := a.apply()
	check.That(t, res.Run == "", "apply again did %v", res.Made)
}

// TestAPIPowerCut: cut at every touch, then applied again, the Node is the same.
func TestAPIPowerCut(t *testing.T) {
	for cut, whole := 0, false; !whole; cut++ {
		synctest.Test(t, func(t *testing.T) { whole = cutAt(t, cut) })
		check.That(t, !whole || cut >= 5, "only %d touches", cut)
	}
}

// cutAt reports whether the apply was over before the touch at which the power would have been cut.
func cutAt(t *testing.T, cut int) (whole bool) {
	a := apiFixture(t, apiSpec)
	a.CutAt(cut)
	ctx, cancel := context.WithTimeout(a.ctx, time.Hour) // without power nothing else ends its tries to ask the API server
	_, err := a.engine().Apply(ctx, a)
	cancel()
	if err == nil {
		return true
	}

	a.Boot(simhost.LoseAll)
	for range 3 {
		if _, err = a.engine().Apply(a.ctx, a); err == nil {
			break
		}
	}

	must.That(t, err == nil, "cut at %d: %v", cut, err)
	a.converged(a.mark())
	return false
}

// TestAPIOthersWrite: another controller's labels and taints survive everything we do, whenever it
// writes.
func TestAPIOthersWrite(t *testing.T) {
	for round := range 100 {
		a := apiFixture(t, apiSpec)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		writes, begun := 0, make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}

				writes++
				a.sim.EditNode("gpu-1", func(n kubesim.Object) {
					n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)["their.example/count"] = fmt.Sprint(writes)
					sp := n["spec"].(kubesim.Object)
					taints, _ := sp["taints"].([]any)
					taints = slices.DeleteFunc(taints, func(t any) bool {
						return t.(kubesim.Object)["key"] == "their.example/moving"
					})
					at := writes % (len(taints) + 1)
					sp["taints"] = slices.Insert(taints, at, any(kubesim.Object{"key": "their.example/moving", "value": fmt.Sprint(writes), "effect": "NoSchedule"}))
				})
				if writes == 1 {
					close(begun)
				}
				time.Sleep(time.Duration(writes%5) * 100 * time.Microsecond)
			}
		})
		<-begun
		var err error
		for range 50 { // a storm may outlast a run: the next one goes on
			if _, err = a.engine().Apply(a.ctx, a); err == nil || !trouble.Passes(err) {
				break
			}
		}

		close(stop)
		wg.Wait()
		must.That(t, err == nil, "round %d: %v", round, err)
		got := a.shown()
		for _, theirs := range []string{fmt.Sprintf("their.example/count=%d\n", writes), fmt.Sprintf("taint their.example/moving=%d:NoSchedule", writes)} {
			must.That(t, strings.Contains(got, theirs), "round %d: their write %q was lost:\n%s", round, theirs, got)
		}
		got = strings.Replace(got, fmt.Sprintf("their.example/count=%d\n", writes), "", 1)
		got = strings.Replace(got, fmt.Sprintf("taint their.example/moving=%d:NoSchedule <nil>\n", writes), "", 1)
		must.That(t, got == apiConverged+a.mark(), "round %d:\n%s", round, got)
	}
}

// TestAPIOthersBetween: what another client writes between our look and our PATCH makes us look
// again, and is kept; its value of our own label stays until the next look.
func TestAPIOthersBetween(t *testing.T) {
	a := apiFixture(t, apiSpec)
	n := 0
	a.sim.Fail(kubesim.Fault{On: "PATCH", Times: 4, Do: func(s *kubesim.Server) {
		n++
		s.EditNode("gpu-1", func(o kubesim.Object) {
			sp := o["spec"].(kubesim.Object)
			sp["taints"] = slices.Insert(sp["taints"].([]any), 0, any(kubesim.Object{"key": fmt.Sprintf("their.example/t%d", n), "effect": "NoSchedule"}))
		})
	}})
	a.apply()
	got := a.shown()
	for i := range n {
		line := fmt.Sprintf("taint their.example/t%d=<nil>:NoSchedule <nil>\n", i+1)
		check.That(t, strings.Contains(got, line), "lost: %s", line)
		got = strings.Replace(got, line, "", 1)
	}

	check.That(t, n == 4 && got == apiConverged+a.mark(), "after %d writes of others:\n%s", n, got)

	a = apiFixture(t, apiSpec)
	a.sim.Fail(kubesim.Fault{On: "PATCH", Do: func(s *kubesim.Server) {
		s.EditNode("gpu-1", func(o kubesim.Object) {
			o["metadata"].(kubesim.Object)["labels"].(kubesim.Object)["example.com/rack"] = "theirs"
		})
	}})
	_, err := a.engine().Apply(a.ctx, a)
	faulted(t, "another client's new value of our label", err, changedMeanwhile)
	check.Equal(t, a.label("example.com/rack"), any("theirs"), "the label is")
	a.apply()
	a.converged(a.mark())
}

// TestAPIFaults: what waiting helps against is waited for, with nothing half done that stays; the
// rest is an error.
func TestAPIFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault  kubesim.Fault
		passes bool
	}{
		"api busy":           {kubesim.Fault{On: "GET", Times: -1, Status: 429}, true},
		"api broken":         {kubesim.Fault{On: "PATCH", Times: -1, Status: 500}, true},
		"conflict for ever":  {kubesim.Fault{On: "PATCH", Times: -1, Status: 409}, true},
		"two conflicts":      {kubesim.Fault{On: "PATCH", Times: 2, Status: 409}, true},
		"unknown token":      {kubesim.Fault{On: "GET", Times: -1, Status: 401}, true},
		"may not":            {kubesim.Fault{On: "PATCH", Times: -1, Status: 403}, true},
		"deleted meanwhile":  {kubesim.Fault{On: "PATCH", Do: func(s *kubesim.Server) { s.DeleteNode("gpu-1") }}, true},
		"answer of one lost": {kubesim.Fault{On: "PATCH", Lost: true, Status: 500}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec)
			a.shared.clients.OneTry = true
			a.sim.Fail(c.fault)
			_, err := a.engine().Apply(a.ctx, a)
			if name == "two conflicts" {
				must.OK(t, err)
				a.converged(a.mark())
				return
			}

			must.That(t, err != nil && trouble.Passes(err) == c.passes, "passes by waiting: want %v, got %v", c.passes, err)
			check.That(t, !strings.Contains(err.Error(), "s3cret"), "the error repeats a secret: %v", err)
			a.sim.Heal()
			a.Advance(time.Minute)
			if a.sim.Node("gpu-1") == nil {
				a.sim.AddNode("gpu-1", map[string]string{"kubernetes.io/os": "linux", "theirs.example/x": "1"},
					kubesim.Object{"key": "theirs.example/busy", "value": "y", "effect": "NoSchedule"},
					kubesim.Object{"key": "theirs.example/late", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"})
			}

			a.apply()
			a.converged(a.mark())
		})
	}
}

// TestAPINotYet: before the join gpuadm asks no server.
func TestAPINotYet(t *testing.T) {
	for want, set := range map[string]func(*apiNode){
		"once the node has joined": func(a *apiNode) { a.facts.Kubelet.Joined = false },
		"once kubelet runs":        func(a *apiNode) { a.facts.Booting = true },
		"first boot":               func(a *apiNode) { a.Image() },
	} {
		a := apiFixture(t, apiSpec)
		set(a)
		res := a.apply()
		check.That(t, res.Run == "" && len(res.Deferred) > 0 && len(a.sim.Requests()) == 0, "%s: %+v", want, res)
		for _, c := range res.Deferred {
			check.That(t, c.Deferred == want, "%s waits: %q, want %q", c, c.Deferred, want)
		}
	}
}

// TestAPINoAccount: without a ServiceAccount a taint is refused before anything is touched, with
// the fix.
func TestAPINoAccount(t *testing.T) {
	a := apiFixture(t, "[node]\ntaints = [\"example.com/a:NoSchedule\"]\nlabels = { \"example.com/b\" = \"c\" }\ngpu_labels = false\n")
	a.facts.GPUs = nil
	before := a.shown()
	_, err := a.engine().Apply(a.ctx, a)
	faulted(t, "no account for a taint", err, noAccount)
	check.That(t, a.shown() == before, "something was touched:\n%s", a.shown())
}

// TestAPINames: every name builds the same thing again, and says what it is.
func TestAPINames(t *testing.T) {
	for _, name := range []string{"label nvidia.com/gpu.count", "taint nvidia.com/gpu:NoSchedule", "condition " + GPUReady} {
		thing, err := NewPart(name, nil)
		check.That(t, err == nil && thing.Ref().Name == name && thing.Ref().Kind == "node", "%s: %v %v", name, thing, err)
	}

	guard, err := NewGuardThing("startup taint example.com/a=b:NoSchedule", nil)
	check.That(t, err == nil && guard.Ref().Name == "startup taint example.com/a=b:NoSchedule" && guard.Ref().Kind == "guard", "%v %v", guard, err)
	for _, name := range []string{"", "label", "taint x", "finger x", "label "} {
		thing, err := NewPart(name, nil)
		check.That(t, err != nil, "%q made %+v", name, thing)
	}

	s := valueState("")
	check.That(t, s != "" && stateValue(s) == "", "a taint without a value is like none: %q", s)
}
