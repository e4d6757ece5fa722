// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Law 12: what the spec wants and could not be looked at is neither converged nor pending.

// TestStatusWithoutTheAPIServer: the labels of a Node cannot be read, so the node is not called
// converged.
func TestStatusWithoutTheAPIServer(t *testing.T) {
	// The client does not try these again, so the test waits for nothing.
	for _, status := range []int{401, 403, 501} {
		w := incident.Joined(t, true)
		w.Put("etc/gpuadm/node.toml", `format = 1
[node]
startup_taint = "none"
labels = { "example.com/pool" = "h100" }
`)
		n := w.Node()
		code, said := typedOn(t, n, "apply --allow all")
		must.That(t, code == 0, "apply: exit %d\n%s", code, said)

		w.Server.Fail(kubesim.Fault{On: "GET /api/v1/nodes", Status: status, Times: -1})
		for _, line := range []string{"status", "plan", "plan --exit-code", "apply"} {
			code, said := typedOn(t, n, line)
			check.Has(t, said, "annot read the state of", "%s:", line)
			check.Has(t, said, "node gpu-1", "%s:", line)
			isDeceived := strings.Contains(said, "Converged.") || strings.Contains(said, "Nothing to do")
			check.That(t, code == exitAgain && !isDeceived, "%d, %s: exit %d\n%s", status, line, code, said)
		}

		code, said = typedOn(t, n, "status -o json")
		check.That(t, code == exitAgain, "status -o json: exit %d", code)
		var answer struct {
			State   string
			Unknown int
			Changes []struct{ Unknown string }
		}
		must.OK(t, json.Unmarshal([]byte(said), &answer))
		isUnknown := answer.State == "unknown" && answer.Unknown > 0 && answer.Unknown == len(answer.Changes)
		check.That(t, isUnknown, "%s", said)
	}
}

// migAlone is a node.toml as docs/migrating.md writes it, on a machine with the driver's state.
func migAlone(t *testing.T, silent bool) *simhost.Node {
	t.Helper()
	w := incident.Joined(t, true)
	if silent {
		w.Silent("DRIVER_NOT_LOADED", "the kernel module nvidia is not loaded")
	}
	w.Put("etc/gpuadm/node.toml", `format = 1
[mig]
file = "/etc/gpuadm/mig.yaml"
layout = "off"
`)
	w.Put("etc/gpuadm/mig.yaml", `version: v1
mig-configs:
  "off":
  - {devices: all, mig-enabled: false}
`)
	return w.Node()
}

// TestMIGAloneHoldsKubelet: with [mig] alone kubelet does not start while no driver answers: what
// must hold is what the spec wants, whichever sections it has.
func TestMIGAloneHoldsKubelet(t *testing.T) {
	n := migAlone(t, true)
	for _, line := range []string{"apply", "gate", "status", "plan"} {
		code, said := typedOn(t, n, line)
		isTold := strings.Contains(said, "the driver does not answer: the kernel module nvidia is not loaded")
		check.That(t, code == exitAgain && isTold, "%s: exit %d\n%s", line, code, said)
	}

	n = migAlone(t, false)
	for _, line := range []string{"apply", "gate", "status", "plan"} {
		code, said := typedOn(t, n, line)
		check.That(t, code == 0, "with a driver: %s: exit %d\n%s", line, code, said)
	}
}

// TestBlindDoctor: a domain that was not checked is no health, and what does not apply to this
// machine is not blind.
func TestBlindDoctor(t *testing.T) {
	w := incident.Joined(t, true)
	n := w.Node()
	code, said := typedOn(t, n, "doctor")
	check.That(t, code == 0 && strings.HasPrefix(said, "No fault found, "), "exit %d\n%s", code, said)

	w.Server.Fail(kubesim.Fault{Status: 500, Times: -1})
	code, said = typedOn(t, n, "doctor")
	check.That(t, code == exitAgain, "exit %d\n%s", code, said)
	check.Has(t, said, "No fault found in what could be looked at", "doctor:")
	check.Has(t, said, "API server says 500", "doctor:")
	_, said = typedOn(t, n, "doctor -o json")
	check.Has(t, said, `"state":"unknown"`, "doctor -o json")
}
