// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// EngineOf returns the container engine that kubelet will use: containerd, which [runtime]
// configures, if both are installed.
func EngineOf(f facts.Facts) (facts.Engine, error) {
	for _, name := range []string{"containerd", "crio"} {
		for _, e := range f.Engines {
			if e.Name == name {
				return e, nil
			}
		}
	}

	return facts.Engine{}, &trouble.Error{
		What: "cannot join: no container engine that kubelet can use is installed",
		Try:  []string{"install containerd (or CRI-O); kubelet has not been able to use Docker since 1.24"},
	}
}

// endpoint is the engine's socket, as a kubelet's configuration names it.
func endpoint(e facts.Engine) string {
	socket := e.Socket
	switch {
	case socket == "" && e.Name == "crio":
		socket = "/run/crio/crio.sock"
	case socket == "":
		socket = "/run/containerd/containerd.sock"
	}

	return "unix://" + strings.TrimPrefix(socket, "unix://")
}

// engineUnit is the engine's unit.
func engineUnit(e facts.Engine) string {
	switch {
	case e.Unit != "":
		return e.Unit
	case e.Name == "crio":
		return "crio.service"
	}
	return "containerd.service"
}

// cgroupDriver returns the cgroup driver in the engine's configuration. Kubelet must use the same;
// kubelets from 1.34 on ask the engine itself:
// https://kubernetes.io/docs/setup/production-environment/container-runtimes/#cgroup-drivers.
func cgroupDriver(e facts.Engine) string {
	if e.Name == "crio" {
		return crioCgroupDriver(e)
	}

	driver := "cgroupfs" // containerd's default
	for _, file := range e.Files {
		var config table
		if toml.Unmarshal(file.Data, &config) != nil {
			continue
		}
		// The first name is that of format 2 and before, the second that of format 3: containerd,
		// docs/cri/config.md.
		for _, plugin := range []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"} {
			options := valueAt(config, "plugins", plugin, "containerd", "runtimes", "runc", "options")
			switch valueAt(options, "SystemdCgroup") {
			case true:
				driver = "systemd"
			case false:
				driver = "cgroupfs"
			}
		}
	}

	return driver
}

// crioCgroupDriver returns the cgroup driver in CRI-O's configuration: the last file that names one
// wins. Source: crio.conf.d(5), "Configuration precedence".
func crioCgroupDriver(e facts.Engine) string {
	driver := "systemd" // CRI-O's default
	for _, file := range e.Files {
		var config struct {
			Crio struct {
				Runtime struct {
					CgroupManager string `toml:"cgroup_manager"`
				}
			}
		}
		err := toml.Unmarshal(file.Data, &config)
		if err == nil && config.Crio.Runtime.CgroupManager != "" {
			driver = config.Crio.Runtime.CgroupManager
		}
	}

	return driver
}

// valueAt returns a value in nested tables, nil if there is none.
func valueAt(value any, keys ...string) any {
	for _, key := range keys {
		inner, _ := value.(table)
		value = inner[key]
	}
	return value
}
