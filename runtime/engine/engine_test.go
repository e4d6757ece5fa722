// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestShows: the command names the engine's own program, also where that is not found, and reads
// the files that the engine reads.
func TestShows(t *testing.T) {
	for _, x := range []struct {
		engine facts.Engine
		want   string
	}{
		{
			facts.Engine{Name: "containerd", Config: "/etc/containerd/config.toml"},
			"sudo containerd --config /etc/containerd/config.toml config dump",
		},
		{
			facts.Engine{Name: "docker", Config: "/etc/docker/daemon.json"},
			"sudo dockerd --validate --config-file /etc/docker/daemon.json",
		},
		{
			facts.Engine{Name: "crio", Binary: "/usr/bin/crio"},
			"sudo /usr/bin/crio config",
		},
		{
			facts.Engine{Name: "crio", Args: []string{"/usr/bin/crio", "--config-dir", "/etc/my crio.d"}},
			"sudo crio --config-dir '/etc/my crio.d' config",
		},
	} {
		check.Equal(t, Shows(x.engine), x.want, "command")
	}
}
