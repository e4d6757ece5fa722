// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestPluginStaysAway: the message names a device plugin that is kept away by the very taint that waits for it, with the YAML to
// add.
func TestPluginStaysAway(t *testing.T) {
	toleration := "tolerations: [{key: theirs.example/busy, operator: Exists, effect: NoSchedule}, {key: example.com/starting, operator: Exists, effect: NoSchedule}, {key: theirs.example/late, operator: Exists, effect: NoExecute}"
	for name, c := range map[string]struct {
		set       func(*apiNode)
		says, try string
	}{
		"none runs": {func(*apiNode) {}, "no device plugin runs here: the node has the taint", toleration},
		"one runs": {func(a *apiNode) {
			a.sim.AddPod(kubesim.Object{"metadata": kubesim.Object{"name": "nvidia-device-plugin-x1", "namespace": "kube-system"}, "spec": kubesim.Object{"nodeName": "gpu-1"}})
		}, "the node offers 0 of 2 nvidia.com/gpu", "kubectl -n kube-system logs nvidia-device-plugin-x1"},
		"no right to see pods": {func(a *apiNode) { a.sim.Fail(kubesim.Fault{On: "GET /api/v1/pods", Times: -1, Status: 403}) }, "a device plugin that does not tolerate the taint theirs.example/busy=y:NoSchedule, example.com/starting:NoSchedule", toleration},
		"no taint": {func(a *apiNode) {
			a.spec = strings.Replace(a.spec, `startup_taint = "example.com/starting:NoSchedule"`, `startup_taint = "none"`, 1)
			a.spec = strings.Replace(a.spec, `taints = ["nvidia.com/gpu=present:NoSchedule"]`, "", 1)
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				n["spec"].(kubesim.Object)["taints"] = []any{kubesim.Object{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}}
			})
		}, "the node offers 0 of 2 nvidia.com/gpu", "kubectl get pods -A"},
	} {
		a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
		c.set(a)
		offers(a, a.BootID(), "nvidia.com/gpu", "0")
		_, err := a.engine().Apply(a.ctx, a)
		told := (*trouble.Error)(nil)
		if !trouble.Passes(err) || !errors.As(err, &told) || !strings.Contains(err.Error(), c.says) || !strings.Contains(strings.Join(told.Try, "\n"), c.try) {
			t.Errorf("%s: %v %+v", name, err, told)
		}
		if name == "no taint" && strings.Contains(err.Error(), "taint") {
			t.Errorf("the message names a taint that keeps no plugin away: %v", err)
		}
	}
}
