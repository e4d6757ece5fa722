// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// accountLosses are the ways in which the account of a node is lost, while kubelet's identity works:
// its release is uninstalled, a file is taken away, its ClusterRoleBinding is deleted.
func accountLosses() map[string]func(a *apiNode) {
	account := apiSecret + "-account"
	return map[string]func(a *apiNode){
		"401":           func(a *apiNode) { a.sim.Revoke(account) },
		"no kubeconfig": func(a *apiNode) { must.OK(a.t, a.Remove(apiAccount)) },
		"no rights": func(a *apiNode) {
			a.sim.Token(account, kubesim.User{Name: "system:serviceaccount:gpuadm:gpuadm"})
		},
	}
}

// leftAfter undoes all, and returns what undo says that it left.
func (a *apiNode) leftAfter() string {
	a.t.Helper()
	result, err := a.engine().Undo(a.ctx, a, "all", nil)
	must.That(a.t, err == nil, "undo: %v", err)
	var lines []string
	for _, c := range result.Left {
		lines = append(lines, c.Cannot)
	}
	return strings.Join(lines, "\n")
}

// TestUndoOutlivesAccount: without the account undo goes on with kubelet's own identity, and names
// what only the account may do, with a kubectl line for it.
func TestUndoOutlivesAccount(t *testing.T) {
	for name, lose := range accountLosses() {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec)
			a.apply()
			lose(a)

			left := a.leftAfter()
			check.That(t, a.label("example.com/rack") == nil, "kubelet's own label stays")
			check.That(t, a.undone(), "the condition is %s", a.condition())
			for _, line := range []string{
				"kubectl taint node gpu-1 nvidia.com/gpu:NoSchedule-",
				"kubectl label node gpu-1 node-role.kubernetes.io/gpu-",
				"kubectl annotate node gpu-1 " + taintRecord + "-",
			} {
				check.Has(t, left, line, "undo leaves")
			}
		})
	}
}

// TestUndoAfterCutFirstApply: the account is lost after the condition became true and before the
// startup taint went: undo names the taint, which would keep pods off for ever. With the account
// undo takes it off.
func TestUndoAfterCutFirstApply(t *testing.T) {
	losses := accountLosses()
	losses["the account is there"] = func(*apiNode) {}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec)
			must.That(t, a.tainted("example.com/starting"), "kubelet did not register the node with the startup taint")
			a.sim.Admit(func(u kubesim.User, old, made kubesim.Object) string {
				if u.Name == "system:serviceaccount:gpuadm:gpuadm" && kubesimCondition(old) == "True" {
					return "not now"
				}
				return ""
			})
			_, err := a.engine().Apply(a.ctx, a)
			must.That(t, err != nil && a.tainted("example.com/starting"), "the apply was not cut: %v\n%s", err, a.shown())
			a.sim.Admit(nil)
			lose(a)

			left := a.leftAfter()
			const line = "kubectl taint node gpu-1 example.com/starting:NoSchedule-"
			gone := !a.tainted("example.com/starting")
			check.That(t, gone == (name == "the account is there"), "the startup taint is gone: %v\n%s", gone, a.shown())
			check.That(t, strings.Contains(left, line) == !gone, "undo leaves\n%s", left)
			check.That(t, !a.ready(), "the condition is %s", a.condition())
		})
	}
}

func kubesimCondition(n kubesim.Object) string {
	status, _ := n["status"].(kubesim.Object)
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		if o, _ := c.(kubesim.Object); o["type"] == GPUReady {
			text, _ := o["status"].(string)
			return text
		}
	}

	return ""
}

// TestUndoOfGuard: a guard that shut the node in a run that made nothing else of the Node is undone:
// the taint goes, or undo names it.
func TestUndoOfGuard(t *testing.T) {
	losses := accountLosses()
	losses["the account is there"] = func(*apiNode) {}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec)
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				n["spec"].(kubesim.Object)["taints"] = []any{}
			})
			a.stages = a.stages[:1]
			a.apply()
			must.That(t, a.tainted("example.com/starting"), "the guard did not shut the node")
			lose(a)

			left := a.leftAfter()
			gone := !a.tainted("example.com/starting")
			check.That(t, gone == (name == "the account is there"), "the startup taint is gone: %v", gone)
			const line = "kubectl taint node gpu-1 example.com/starting:NoSchedule-"
			check.That(t, strings.Contains(left, line) == !gone, "undo leaves\n%s", left)
			if gone {
				annotations, _ := a.sim.Node("gpu-1")["metadata"].(kubesim.Object)["annotations"].(kubesim.Object)
				check.That(t, annotations[taintRecord] == nil, "the record of the taint stays: %v", annotations)
			}
		})
	}
}

// TestUndoOfRegisteredTaint: kubelet has registered the node with the startup taint, and the first
// apply waits for the GPUs: nothing has changed the taint yet. Undo takes it off, or names it: it
// would keep pods off for ever.
func TestUndoOfRegisteredTaint(t *testing.T) {
	losses := accountLosses()
	losses["the account is there"] = func(*apiNode) {}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
			_, err := a.engine().Apply(a.ctx, a)
			must.That(t, err != nil && a.tainted("example.com/starting"), "the apply does not wait: %v\n%s", err, a.shown())
			t.Log(err)
			lose(a)

			left := a.leftAfter()
			gone := !a.tainted("example.com/starting")
			check.That(t, gone == (name == "the account is there"), "the startup taint is gone: %v\n%s", gone, a.shown())
			const line = "kubectl taint node gpu-1 example.com/starting:NoSchedule-"
			check.That(t, strings.Contains(left, line) == !gone, "undo leaves\n%s", left)
		})
	}
}

// TestRollbackKeepsStartupTaint: the stage fails after it has recorded the startup taint that kubelet
// registered. The roll-back lets no pod in.
func TestRollbackKeepsStartupTaint(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.sim.Admit(func(_ kubesim.User, _, made kubesim.Object) string {
		if kubesimCondition(made) == "True" {
			return "no condition"
		}
		return ""
	})
	_, err := a.engine().Apply(a.ctx, a)
	must.That(t, err != nil && strings.Contains(err.Error(), "no condition"), "apply: %v", err)
	check.That(t, a.tainted("example.com/starting"), "the roll-back took the startup taint off\n%s", a.shown())
	check.That(t, !a.ready(), "the condition is %s", a.condition())
}
