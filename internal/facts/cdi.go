// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"debug/buildinfo"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// ReadsCDI is the newest version of the CDI specification that the engine of pods reads, by the
// library that it was built with; "" where its build information does not say. Source:
// validVersions in specs-go/version.go of https://github.com/cncf-tags/container-device-interface.
func (f Facts) ReadsCDI(v host.View) string {
	i := slices.IndexFunc(f.Engines, f.Kubelet.Uses)
	if len(f.Engines) == 0 {
		return ""
	}
	info, err := buildinfo.Read(host.Part{View: v, Name: f.Engines[max(i, 0)].Binary})
	if err != nil {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "tags.cncf.io/container-device-interface/specs-go" {
			return upstream(m.Version)
		}
	}
	return ""
}
