// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestUndoNamesWhatAnEarlierRunLeft: a handler that another process changed stays when the spec drops it, and the undo of a later
// day still says so.
func TestUndoNamesWhatAnEarlierRunLeft(t *testing.T) {
	for _, m := range machines(t) {
		if m.name != "debian12-containerd16" {
			continue
		}
		n := m.boot(t)
		apply(t, n, engine(t, specs["default"]))
		const file = "/etc/containerd/config.toml"
		text := must.Get(n.ReadFile(file))(t)
		changed := strings.Replace(string(text), `BinaryName = "/usr/bin/nvidia-container-runtime"`, `BinaryName = "/opt/theirs"`, 1)
		if changed == string(text) {
			t.Fatalf("no handler in\n%s", text)
		}
		must.OK(t, n.WriteFile(file, []byte(changed), host.Attr{Mode: 0o644}))
		apply(t, n, engine(t, specs["other"]))
		res := undo(t, n, engine(t, specs["other"]), "all")
		if !slices.ContainsFunc(res.Left, func(c converge.Change) bool { return strings.Contains(c.Cannot, "runtimes.nvidia is there") }) {
			t.Errorf("left is %+v", res.Left)
		}
		if now, _ := n.ReadFile(file); !strings.Contains(string(now), "/opt/theirs") || strings.Contains(string(now), "nvidia-two") {
			t.Errorf("after undo:\n%s", now)
		}
		return
	}
	t.Fatal("the machine is not recorded")
}
