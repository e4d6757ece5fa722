// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"

	"github.com/pelletier/go-toml/v2"
)

func (g *gathering) crio(ctx context.Context) *Engine {
	e := &Engine{Name: "crio"}
	argv := g.start(ctx, e, []string{"crio.service"}, []string{"/usr/bin/crio", "/usr/local/bin/crio", "/usr/libexec/crio/crio"})
	g.started(ctx, e, argv)
	if bare(*e) == 1 && e.Files[0].Data == nil && len(e.Files) == 1 {
		return nil
	}
	if g.exists("/etc/machine-config-daemon") {
		// OpenShift's operator renders the node's files and reverts what others changed.
		e.Owner, e.Why = "machine-config-operator", "/etc/machine-config-daemon"
	}
	return e
}

func crioSocket(files []File) (socket string) {
	for _, f := range files {
		var c struct {
			Crio struct {
				API struct {
					Listen string `toml:"listen"`
				} `toml:"api"`
			} `toml:"crio"`
		}
		if toml.Unmarshal(f.Data, &c) == nil && c.Crio.API.Listen != "" {
			socket = c.Crio.API.Listen
		}
	}
	return socket
}
