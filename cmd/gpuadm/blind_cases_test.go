// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
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

		w.Server.Fail(kubesim.Fault{
			On:     "GET /api/v1/nodes",
			Status: status,
			Times:  -1,
		})
		for _, line := range []string{"status", "plan", "plan --exit-code", "apply"} {
			code, said := typedOn(t, n, line)
			check.Has(t, said, "annot read the state of", "%s:", line)
			check.Has(t, said, "Node gpu-1", "%s:", line)
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

// TestVerdictThatCouldNotBeHad: where the engine's own program does not start, or does not end in
// time, it is not known whether the engine takes an edit: nothing is touched, and each command ends
// with 75.
func TestVerdictThatCouldNotBeHad(t *testing.T) {
	tested := 0
	for name := range recorded(t) {
		n := recordedNode(t, name)
		plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
		must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
		plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[runtime]\nset_as_default = true\n")
		w := watch(n)
		if code, said := w.said(t, "plan"); code != 0 || strings.Contains(said, "Nothing to do.") {
			continue
		}
		for r := range w.used {
			if !r.isVerdict() {
				continue
			}
			tested++
			for _, cause := range []error{context.DeadlineExceeded, syscall.EACCES} {
				for _, line := range []string{"plan", "status", "apply --allow all"} {
					m := w.without(r, cause)
					before := m.State()
					code, said := m.said(t, line)
					check.That(t, code == exitAgain, "%s: %s: %v: %s: exit %d\n%s", name, r, cause, line, code, said)
					check.Says(t, said, "could not be judged")
					check.Equal(t, m.State(), before, "%s: ", line)
				}
			}
		}
	}

	check.That(t, tested > 0, "no engine's program was asked")
}

// isVerdict says whether a reader has an engine's program judge the machine's own files.
func (r reader) isVerdict() bool {
	isAsked := strings.HasPrefix(string(r), "ask ")
	return isAsked && (strings.HasSuffix(string(r), " config dump") || strings.Contains(string(r), "--validate") ||
		strings.HasSuffix(string(r), "crio config"))
}

// TestNamedFileThatCannotBeRead: a file that the spec names and that could not be read is unknown,
// with its place in the spec, and nothing is touched.
func TestNamedFileThatCannotBeRead(t *testing.T) {
	const key = "/etc/keys/driver.asc"
	n := must.Get(simhost.New(demoNode))(t)
	ubuntu.Install(n)
	spec := string(must.Get(n.ReadFile("/etc/gpuadm/node.toml"))(t))
	named := regexp.MustCompile(`(?m)^key *= .*$`).ReplaceAllString(spec, "key = \""+key+"\"")
	plantFile(t, n, "/etc/gpuadm/node.toml", named)
	plantFile(t, n, key, "-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
	w := watch(n)
	for _, cause := range []error{syscall.EACCES, syscall.EIO} {
		for _, line := range []string{"plan", "status", "apply --allow all"} {
			m := w.without("read "+key, cause)
			before := m.State()
			code, said := m.said(t, line)
			check.That(t, code == exitAgain, "%v: %s: exit %d\n%s", cause, line, code, said)
			check.Says(t, said, key, "node.toml:")
			check.Equal(t, m.State(), before, "%s: ", line)
		}
	}
}

// TestMIGWithADriverContainer: the GPU Operator's driver container starts after kubelet. Where the
// machine has no driver of its own and node.toml asks for none, the closed gate names the key that
// lets kubelet start before the driver; with the key it does, and the partitions stay unknown until
// the driver answers.
func TestMIGWithADriverContainer(t *testing.T) {
	const advice = `gate = "open" in [join]`
	for _, driver := range []string{"", "[driver]\nowner = \"other\"\n"} {
		n := migAlone(t, true)
		spec := string(must.Get(n.ReadFile("/etc/gpuadm/node.toml"))(t)) + driver
		plantFile(t, n, "/etc/gpuadm/node.toml", spec)
		_, said := typedOn(t, n, "gate")
		check.That(t, !strings.Contains(said, advice), "a driver is installed, and its module not loaded:\n%s", said)

		n = withoutLibrary(t, spec)
		for _, line := range []string{"apply", "gate", "status"} {
			code, said := typedOn(t, n, line)
			check.That(t, code == exitAgain, "%s: exit %d\n%s", line, code, said)
			check.Has(t, said, advice, "%s:", line)
		}

		plantFile(t, n, "/etc/gpuadm/node.toml", spec+"[join]\ngate = \"open\"\n")
		code, said := typedOn(t, n, "gate")
		check.That(t, code == 0, "gate: exit %d\n%s", code, said)
		for _, line := range []string{"apply", "status"} {
			code, said := typedOn(t, n, line)
			check.That(t, code == exitAgain && !strings.Contains(said, advice), "%s: exit %d\n%s", line, code, said)
		}
	}
}

// withoutLibrary is a machine with MIG in its spec and no driver of its own.
func withoutLibrary(t *testing.T, spec string) *simhost.Node {
	t.Helper()
	w := incident.Joined(t, true)
	w.Silent("LIBRARY_NOT_FOUND", "neither its library libnvidia-ml.so.1 nor the kernel module nvidia is there")
	w.Put("etc/gpuadm/node.toml", spec)
	w.Put("etc/gpuadm/mig.yaml", "version: v1\nmig-configs:\n  \"off\":\n  - {devices: all, mig-enabled: false}\n")
	return w.Node()
}
