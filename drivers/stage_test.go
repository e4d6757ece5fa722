// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/must"
)

// The newest version of a branch that a repository had may be older than the GPU.
func TestBranchTooOldForTheGPU(t *testing.T) {
	f := facts.Facts{
		Live: true, Arch: "amd64", OS: facts.OS{ID: "debian", Version: "12"},
		Kernel: facts.Kernel{Running: "6.1.0-41-amd64", Installed: []string{"6.1.0-41-amd64"}},
		GPUs:   []facts.PCI{{Address: "0000:17:00.0", Vendor: "10de", Device: "2901", Class: "030200"}},
	}
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[driver]\nversion = \"570\"\n")}))(t)
	for version, refused := range map[string]bool{"570.124.06": true, "570.133.20": false} {
		f.Modules = &facts.Modules{Libraries: []facts.Library{{Name: "libnvidia-ml.so", Version: version}}}
		_, err := New().Modules(new(packages.Reading)).Wants(s, f)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "570.133.20 or newer") {
			t.Errorf("driver %s for a B200: %v", version, err)
		}
	}
}
