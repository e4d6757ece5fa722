// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestGateLine: each attempt of kubelet logs one line, which names the command that says more.
func TestGateLine(t *testing.T) {
	err := gateLine(&trouble.Error{What: "cannot let kubelet start", Because: []string{"no GPU answers", "and more"}, Try: []string{"lspci"}})
	want := "cannot let kubelet start: no GPU answers; " + trouble.Command("status") + " says how to fix it"
	told, ok := err.(*trouble.Error)
	check.That(t, ok && told.What == want && len(told.Because)+len(told.Try) <= 0, "%+v", err)
}

// TestWaitingText: status prints once what each change waits for, and what to do if it does not
// happen.
func TestWaitingText(t *testing.T) {
	var b strings.Builder
	plugin := converge.Line{Reason: converge.Reason{Waits: "not yet: the node offers 0 of 8", Try: []string{"add tolerations"}}}
	waitingText(&b, []converge.Line{{}, plugin, plugin, {Reason: converge.Reason{Waits: "x", Because: []string{"y"}}}})
	check.That(t, b.String() == "not yet: the node offers 0 of 8\n  try      add tolerations\n\nx\n  because  y\n\n", "%s", b.String())
}

// TestDiffWithoutSpec: what gpuadm left is in its journal, so that status --diff needs no
// node.toml.
func TestDiffWithoutSpec(t *testing.T) {
	n := recordedNode(t, "debian12-containerd16")
	code, out, errs := onNode(t, n, "status", "--diff")
	check.That(t, code == 0 && strings.Contains(out, "This machine has no node.toml"), "exit code %d: %s%s", code, out, errs)
	plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
	must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
	plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[runtime]\nset_as_default = true\n")
	code, out, errs = onNode(t, n, "apply")
	must.That(t, code == 0, "exit code %d: %s%s", code, out, errs)
	plantFile(t, n, "/etc/containerd/config.toml", "version = 2\n")
	must.OK(t, n.Replace("/etc/gpuadm/node.toml", nil, func(*host.Entry) bool { return true }))
	code, out, _ = onNode(t, n, "status", "--diff")
	check.That(t, code == 3 && strings.Contains(out, "config.toml") && strings.Contains(out, "This machine has no node.toml"), "exit code %d:\n%s", code, out)
}
