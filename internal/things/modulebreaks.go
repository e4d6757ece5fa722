// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Breaks names the processes that use the GPUs, and, where no partitions are made after the module is loaded again, the GPUs that
// have partitions: a driver that is unloaded forgets all MIG instances, and GPUs newer than Ampere their mode.
// Source: MIG user guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/.
func (m module) Breaks(ctx context.Context, v host.View, found, _ converge.State) (what []string, clients map[string][]string, err error) {
	what = []string{"stop-clients"}
	if m.remade || !reloads(found) {
		return what, nil, nil
	}
	if lost := partitioned(ctx, v); len(lost) > 0 {
		what, clients = append(what, "lose-partitions"), map[string][]string{"lose-partitions": lost}
	}
	return what, clients, nil
}

// partitioned counts the MIG instances of each GPU that has some. The loaded module shows them as capabilities, which serves where
// the driver's library cannot be asked: packages may have replaced it already.
// Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
func partitioned(ctx context.Context, v host.View) (list []string) {
	count := func(gpu string, n int) {
		switch n {
		case 0:
		case 1:
			list = append(list, "GPU "+gpu+": 1 MIG instance")
		default:
			list = append(list, fmt.Sprintf("GPU %s: %d MIG instances", gpu, n))
		}
	}
	if d, err := v.Driver(ctx); err == nil {
		for _, g := range d.GPUs {
			count(g.Address, len(g.Instances))
		}
		return list
	}
	const capabilities = "/proc/driver/nvidia/capabilities"
	gpus, _ := v.ReadDir(capabilities) // none where no driver is loaded
	for _, gpu := range gpus {
		n := 0
		parts, _ := v.ReadDir(path.Join(capabilities, gpu, "mig"))
		for _, name := range parts {
			if strings.HasPrefix(name, "gi") {
				n++
			}
		}
		count(strings.TrimPrefix(gpu, "gpu"), n)
	}
	return list
}
