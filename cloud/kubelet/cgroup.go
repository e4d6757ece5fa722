// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
)

// askedDriver is the cgroup driver that a running engine says it uses, "" where none answers that: containerd can from 2.0 on.
// Kubelets from 1.34 on ask the same. RuntimeConfigResponse{linux (1): {cgroup_driver (1)}}, of k8s.io/cri-api, api.proto: SYSTEMD
// is 0, which is not Written, and CGROUPFS is 1.
func askedDriver(ctx context.Context, v host.View, endpoint string) string {
	answer, err := v.Call(ctx, strings.TrimPrefix(endpoint, "unix://"), "/runtime.v1.RuntimeService/RuntimeConfig", nil)
	if err != nil {
		return ""
	}
	driver := ""
	err = host.ProtoFields(answer, func(n int, linux []byte) error {
		if n != 1 {
			return nil
		}
		driver = "systemd"
		return host.ProtoAll(linux, func(field int, _ []byte, value uint64) error {
			if field == 1 && value != 0 {
				driver = "cgroupfs"
			}
			return nil
		})
	})
	if err != nil {
		return ""
	}
	return driver
}

// cgroupDriver is who makes the containers' cgroups, as the engine's configuration says: what is known without asking it.
// Kubelet must have the same.
func cgroupDriver(e facts.Engine) string {
	if e.Name == "crio" {
		for _, f := range e.Files {
			var c struct {
				Crio struct {
					Runtime struct {
						Manager string `toml:"cgroup_manager"`
					}
				}
			}
			if toml.Unmarshal(f.Data, &c) == nil && c.Crio.Runtime.Manager == "cgroupfs" {
				return "cgroupfs"
			}
		}
		return "systemd" // CRI-O's default
	}
	driver := "cgroupfs" // containerd's default
	for _, f := range e.Files {
		var t table
		if toml.Unmarshal(f.Data, &t) != nil {
			continue
		}
		// The first name is that of format 2 and before, the second that of format 3: containerd, docs/cri/config.md.
		for _, plugin := range []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"} {
			switch at(t, "plugins", plugin, "containerd", "runtimes", "runc", "options", "SystemdCgroup") {
			case true:
				driver = "systemd"
			case false:
				driver = "cgroupfs"
			}
		}
	}
	return driver
}

// at is what a table holds deep inside, nil if there is nothing.
func at(t any, keys ...string) any {
	for _, key := range keys {
		is, _ := t.(table)
		t = is[key]
	}
	return t
}
