// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// Whether CDI is on goes by the engine, its version and its file; enable_cdi came with containerd
// 1.7, is off there, and on from 2.0.
func TestInjected(t *testing.T) {
	const (
		v2  = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = "
		v3  = "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = "
		off = "CDI is off in /etc/containerd/config.toml"
	)
	for _, x := range []struct{ engine, version, config, says string }{
		{"containerd", "1.6.36", "", "containerd 1.6.36 has no CDI"},
		{"containerd", "1.7.24", "", off},
		{"containerd", "1.7.24", v2 + "true\n", ""},
		{"containerd", "1.7.24", v2 + "false\n", off},
		{"containerd", "2.1.5", "", ""},
		{"containerd", "2.1.5", v3 + "true\n", ""},
		{"containerd", "2.1.5", v3 + "false\n", off},
		{"containerd", "2.4.2", "version = 3\n", ""},
		{"containerd", "1.7.24", "version = ", "cannot be read"},
		{"crio", "1.26.3", "", "CRI-O 1.26.3 has no CDI by default"},
		{"crio", "1.34.0", "", ""},
		{"docker", "28.3.0", "", "docker is not what kubelet runs containers with"},
	} {
		e := facts.Engine{
			Name:    x.engine,
			Version: x.version,
			Config:  "/etc/containerd/config.toml",
			Files:   []facts.File{{Path: "/etc/containerd/config.toml", Data: []byte(x.config)}},
		}
		if x.config == "" {
			e.Files[0].Data = nil
		}
		s := specs.Of(t, "[runtime]\ninject = \"cdi\"\n")
		list, err := wants(s, facts.Facts{Live: true, Engines: []facts.Engine{e}})
		must.That(t, err == nil && len(list) == 1 && list[0].Ref().Kind == "check" && list[0].Releases, "%s %s: %v, %v", x.engine, x.version, list, err)
		problem, err := list[0].Look(t.Context(), nil)
		check.That(t, err == nil && (problem == "ok") == (x.says == "") && strings.Contains(string(problem), x.says),
			"%s %s with %q: %q, %v; want %q", x.engine, x.version, x.config, problem, err, x.says)
	}
}
