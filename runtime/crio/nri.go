// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"cmp"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// NRI is what CRI-O's files say of NRI: the last file that states a setting counts. CRI-O has it
// from 1.26 on, and it is on by default from 1.30 on.
// Sources: internal/config/nri/nri.go of https://github.com/cri-o/cri-o at v1.25.0, v1.26.0,
// v1.29.0 and v1.30.0; docs/crio.conf.5.md there.
func NRI(e facts.Engine) engine.NRI {
	settings := engine.NRI{Socket: "/var/run/nri/nri.sock"}
	if engine.IsBefore(e.Version, 1, 26) {
		settings.Off = fmt.Sprintf("CRI-O %s has no NRI: 1.26 is the first", e.Version)
		return settings
	}

	on := !engine.IsBefore(e.Version, 1, 30)
	for _, f := range e.Files {
		tree, err := toml.Values(f.Data)
		if err != nil {
			continue
		}
		table := toml.Sub(tree, "crio", "nri")
		settings.Socket = cmp.Or(toml.String(table, "nri_listen"), settings.Socket)
		if stated, isStated := table["enable_nri"].(bool); isStated {
			on = stated
		}
	}

	if !on {
		settings.Off = fmt.Sprintf("NRI is off in CRI-O %s: write enable_nri = true into [crio.nri] of a file in %s, and restart %s",
			e.Version, e.Folder, engine.UnitOf(e))
	}
	return settings
}
