// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// A part of the driver that is missing is what the stage packages installs: the check of the stage modules must not refuse
// the plan that does. Here nvidia-utils was removed by hand, or persistenced was turned on.
func TestMissingPartIsRepaired(t *testing.T) {
	for _, m := range machines(t) {
		if m.name != "ubuntu24-h100" {
			continue
		}
		n := m.boot(t)
		const lib = "/usr/lib/x86_64-linux-gnu/"
		must.OK(t, n.Mkdir("/usr/lib/x86_64-linux-gnu", host.Attr{Mode: 0o755}))
		for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
			must.OK(t, n.WriteFile(lib+name+".580.95.05", nil, host.Attr{Mode: 0o644}))
			must.OK(t, n.Symlink(lib+name+".1", name+".580.95.05"))
		}
		p := plan(t, n, engine(t, "[driver]\nversion = \"580.95.05\"\nfabricmanager = \"off\"\n"))
		pending := 0
		for _, c := range p.Changes {
			if c.Kind == "package" {
				pending++
			}
		}
		for _, c := range p.Cannot() {
			if strings.Contains(c.Cannot, "was not found") {
				t.Errorf("%d packages are pending, and the apply is refused: %s", pending, c.Cannot)
			}
		}
		return
	}
	t.Fatal("no machine")
}
