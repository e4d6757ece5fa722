// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"

	"github.com/pelletier/go-toml/v2"
)

func (g *gathering) crio(ctx context.Context) *Engine {
	e := &Engine{Name: "crio"}
	argv := g.unitAndBinary(ctx, e, []string{"crio.service"}, []string{
		"/usr/bin/crio", "/usr/local/bin/crio", "/usr/libexec/crio/crio",
	})
	g.filesAndSocket(ctx, e, argv)

	noFiles := e.Files[0].Data == nil && len(e.Files) == 1
	if e.onlyConfig() && noFiles {
		return nil
	}

	if g.exists("/etc/machine-config-daemon") {
		// OpenShift's operator renders the node's files and reverts what others changed.
		e.Owner = "machine-config-operator"
		e.Why = "/etc/machine-config-daemon"
	}

	return e
}

// crioSocket returns the socket that CRI-O's files name; the last file wins. "" if none names one.
func crioSocket(files []File) (socket string) {
	for _, f := range files {
		var config struct {
			Crio struct {
				API struct {
					Listen string `toml:"listen"`
				} `toml:"api"`
			} `toml:"crio"`
		}
		err := toml.Unmarshal(f.Data, &config)
		if err == nil && config.Crio.API.Listen != "" {
			socket = config.Crio.API.Listen
		}
	}
	return socket
}
