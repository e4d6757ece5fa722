// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestDiffWithoutSpec: what gpuadm left is in its journal, so that status --diff needs no node.toml.
func TestDiffWithoutSpec(t *testing.T) {
	n := recordedNode(t, "debian12-containerd16")
	if code, out, errs := onNode(t, n, "status", "--diff"); code != 0 || !strings.Contains(out, "This machine has no node.toml") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
	must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
	plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[runtime]\nset_as_default = true\n")
	if code, out, errs := onNode(t, n, "apply"); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	plantFile(t, n, "/etc/containerd/config.toml", "version = 2\n")
	must.OK(t, n.Replace("/etc/gpuadm/node.toml", nil, func(*host.Entry) bool { return true }))
	if code, out, _ := onNode(t, n, "status", "--diff"); code != 3 || !strings.Contains(out, "config.toml") || !strings.Contains(out, "This machine has no node.toml") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
