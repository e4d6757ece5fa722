// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestGateLine: each attempt of kubelet logs one line, which names the command that says more.
func TestGateLine(t *testing.T) {
	err := gateLine(&trouble.Error{
		What:    "cannot let kubelet start",
		Because: []string{"no GPU answers", "and more"},
		Try:     []string{"lspci"},
	})

	told, ok := err.(*trouble.Error)
	must.That(t, ok, "%T", err)
	want := "cannot let kubelet start: no GPU answers; " + trouble.Command("status") + " says how to fix it"
	check.Equal(t, told.What, want, "the line")
	check.That(t, len(told.Because)+len(told.Try) == 0, "more lines: %+v", told)
}

// TestRebootNeeded: where the rest takes effect only after a reboot, the gate is closed, and status,
// plan --exit-code and the gate say so. A plan alone ends well.
func TestRebootNeeded(t *testing.T) {
	const why = "kernel 6.5.0 runs and is not installed"
	later := converge.Line{
		Change: converge.Change{Stage: "modules", Why: why},
		Reason: converge.Reason{Deferred: "until kernel 6.8.0 is booted", When: host.AfterReboot},
	}
	p := converge.Plan{
		State:    converge.EndsReboot,
		Stages:   []converge.StagePlan{{Name: "modules", Converged: 3, Changes: 1}},
		Changes:  []converge.Line{later},
		Deferred: 1,
	}
	s := converge.Status{Plan: p}

	code, isExit := exitOf(p.State).(exit)
	check.That(t, isExit && code == exitReboot, "exit code %v", code)
	check.Says(t, new(common).statusEnd(s), "A reboot is needed: "+why, "sudo reboot")

	var out strings.Builder
	c := &common{env: envOn(nil, &out)}
	c.planText(p)
	check.Says(t, out.String(), "A reboot is needed: "+why)

	shut := closed(&agent.Closed{Status: s})
	check.Equal(t, shut.What, "cannot let kubelet start: a reboot is needed", "the gate:")
	check.List(t, shut.Because, []string{why}, "the gate's cause:")
}

// TestWaitingText: status prints once what each change waits for, and what to do if it does not
// happen.
func TestWaitingText(t *testing.T) {
	plugin := converge.Line{Reason: converge.Reason{
		Waits: "not yet: the node offers 0 of 8",
		Try:   []string{"add tolerations"},
	}}
	other := converge.Line{Reason: converge.Reason{Waits: "x", Because: []string{"y"}}}

	var text strings.Builder
	waitingText(&text, []converge.Line{{}, plugin, plugin, other})

	const want = `not yet: the node offers 0 of 8
  try      add tolerations

x
  because  y

`
	check.Equal(t, text.String(), want, "the text")
}

// TestDiffWithoutSpec: what gpuadm left is in its journal, so that status --diff needs no
// node.toml.
func TestDiffWithoutSpec(t *testing.T) {
	const noSpec = "This machine has no node.toml"
	n := recordedNode(t, "debian12-containerd16")
	code, out, errs := onNode(t, n, "status", "--diff")
	check.That(t, code == 0, "exit code %d: %s%s", code, out, errs)
	check.Has(t, out, noSpec, "status")

	plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
	must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
	plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[runtime]\nset_as_default = true\n")
	code, out, errs = onNode(t, n, "apply")
	must.That(t, code == 0, "exit code %d: %s%s", code, out, errs)

	plantFile(t, n, "/etc/containerd/config.toml", "version = 2\n")
	must.OK(t, n.Replace("/etc/gpuadm/node.toml", nil, func(*host.Entry) bool { return true }))
	code, out, _ = onNode(t, n, "status", "--diff")
	check.That(t, code == 3, "exit code %d", code)
	check.Has(t, out, "config.toml", "status")
	check.Has(t, out, noSpec, "status")
}

// TestDiffOfUnreadable: status --diff of a machine without node.toml does not end well where it
// could not read what gpuadm has made.
func TestDiffOfUnreadable(t *testing.T) {
	n := recordedNode(t, "debian12-containerd16")
	plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
	must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
	plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[runtime]\nset_as_default = true\n")
	w := watch(n)
	code, said := w.said(t, "apply")
	must.That(t, code == 0, "exit code %d: %s", code, said)
	must.OK(t, n.Replace("/etc/gpuadm/node.toml", nil, func(*host.Entry) bool { return true }))

	clear(w.used)
	code, said = w.said(t, "status --diff")
	must.That(t, code == 0, "exit code %d: %s", code, said)
	tested := 0
	for r := range w.used {
		code, said := w.without(r, syscall.EIO).said(t, "status --diff")
		if strings.Contains(said, "Cannot read the state of") {
			tested++
			check.That(t, code == exitAgain, "%s: exit code %d: %s", r, code, said)

			code, said = w.without(r, syscall.EIO).said(t, "status --diff --since 2999-01-01")
			check.That(t, code == exitAgain, "%s, of late runs: exit code %d: %s", r, code, said)
			check.Has(t, said, "Cannot read the state of", "status of late runs")
		}
	}
	check.That(t, tested > 0, "each state could be read")
}
