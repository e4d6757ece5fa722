// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// System is an operating system that its maker provides as a whole: its files come from settings
// or from the image at each boot. It is known by its ID in os-release, on any cloud. An empty field
// means that the system is like any other.
type System struct {
	ID       string
	Title    string
	Driver   Driver
	Toolkit  string // who brings NVIDIA's Container Toolkit
	Kubelet  string // who writes kubelet's files, where no platform does
	MIG      MIG
	Plugin   Plugin
	Engine   Engine // of a machine whose platform does not write the configuration
	Config   string // the configuration of kubelet's containerd, if it is not the usual file
	Programs string // a folder that keeps files over a reboot and has programs that run
	Limit    string // what gpuadm cannot do there, for plan and for a page
}

// SystemOf returns the system with an ID, the zero System if there is none.
func SystemOf(id string) System {
	for _, s := range Systems() {
		if s.ID == id && id != "" {
			return s
		}
	}
	return System{}
}

// SystemOn returns the machine's system.
func SystemOn(v host.View) System { return SystemOf(systemID(v)) }

// systemID returns ID in os-release, "" if it cannot be read. Source: os-release(5).
func systemID(v host.View) string {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := v.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if id, ok := strings.CutPrefix(strings.TrimSpace(line), "ID="); ok {
				return strings.Trim(id, `"'`)
			}
		}

		return ""
	}
	return ""
}
