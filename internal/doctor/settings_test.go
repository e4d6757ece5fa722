// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestDecidingFile: a comment decides nothing.
func TestDecidingFile(t *testing.T) {
	e := facts.Engine{
		Config: "/etc/crio/crio.conf",
		Files: []facts.File{
			{Path: "/etc/crio/crio.conf", Data: []byte("[crio.runtime]\ndefault_runtime = \"crun\"\n")},
			{Path: "/etc/crio/crio.conf.d/50-x.conf", Data: []byte("[crio.runtime]\n  # default_runtime = \"runc\"\n")},
		},
	}
	check.That(t, decidingFile(e, "default_runtime") == "/etc/crio/crio.conf", "%s", decidingFile(e, "default_runtime"))
	check.That(t, decidingFile(e, "cgroup_manager") == e.Config, "%s", decidingFile(e, "cgroup_manager"))
}
