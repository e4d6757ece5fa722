// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"debug/buildinfo"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// ReadsCDI returns the newest version of the CDI specification that the pods' engine reads, by the
// library that it was built with; "" if its build information does not name one.
// Source: validVersions in specs-go/version.go of
// https://github.com/cncf-tags/container-device-interface.
func (f Facts) ReadsCDI(v host.View) string {
	if len(f.Engines) == 0 {
		return ""
	}
	i := max(slices.IndexFunc(f.Engines, f.Kubelet.Uses), 0)

	info, err := buildinfo.Read(host.Part{View: v, Name: f.Engines[i].Binary})
	if err != nil {
		return ""
	}
	for _, module := range info.Deps {
		if module.Path == "tags.cncf.io/container-device-interface/specs-go" {
			return upstream(module.Version)
		}
	}

	return ""
}
