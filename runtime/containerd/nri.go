// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// nriPlugin is the plugin that offers NRI: off by default in 1.7, and on from 2.0 on. Seen in
// `containerd config default` of 1.6.20, 1.7.24, 2.1.9 and 2.4.2; docs/NRI.md of
// https://github.com/containerd/containerd at v1.7.0 and v2.0.0.
const nriPlugin = "io.containerd.nri.v1.nri"

// NRI is what containerd's files say of NRI.
func NRI(e facts.Engine) engine.NRI {
	settings := engine.NRI{Socket: "/var/run/nri/nri.sock"}
	if engine.IsBefore(e.Version, 1, 7) {
		settings.Off = fmt.Sprintf("containerd %s has no NRI for it: 1.7 is the first", e.Version)
		return settings
	}
	c, err := readEngine(e)
	if err != nil {
		settings.Off = "containerd's configuration cannot be read: " + err.Error()
		return settings
	}

	plugins, _, _ := c.reader.mergeAll(c.files)
	plugin := toml.Sub(plugins, nriPlugin)
	settings.Socket = cmp.Or(toml.String(plugin, "socket_path"), settings.Socket)
	_, value := toml.Field(plugin, "disable")
	stated, isStated := value.(bool)
	_, closed := toml.Field(plugin, "disable_connections")

	off := isStated && stated || !isStated && engine.IsBefore(e.Version, 2, 0)
	switch {
	case off:
		settings.Off = fmt.Sprintf("NRI is off in containerd %s: write disable = false into [plugins.%q] of %s, and restart %s",
			e.Version, nriPlugin, e.Config, engine.UnitOf(e))
	case closed == true:
		settings.Off = fmt.Sprintf("containerd takes no NRI plugins: take disable_connections out of [plugins.%q] in %s, and restart %s",
			nriPlugin, e.Config, engine.UnitOf(e))
	}

	return settings
}
