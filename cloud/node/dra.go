// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NVIDIA's drivers for dynamic allocation, under whose names the devices are published.
// Source: https://github.com/NVIDIA/k8s-dra-driver-gpu.
const (
	draDriver     = "gpu.nvidia.com"
	domainsDriver = "compute-domain.nvidia.com"
)

// draRegistry is where drivers for dynamic allocation register with kubelet, by sockets that begin
// with the driver's name. Sources: k8s.io/dynamic-resource-allocation, kubeletplugin;
// kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/main.go.
const draRegistry = "plugins_registry"

// draRegistered returns the socket with which a driver has registered here, "" if it has not.
func draRegistered(v host.View, k facts.Kubelet, driver string) string {
	folder := path.Join(k.Folder(), draRegistry)
	names, _ := v.ReadDir(folder)
	for _, name := range names {
		if strings.HasPrefix(name, driver) {
			return path.Join(folder, name)
		}
	}

	return ""
}

// Allocators returns the sockets of the device plugin, of the DRA driver for GPUs and of its driver
// for ComputeDomains; "" if it does not run here.
func Allocators(ctx context.Context, v host.View, k facts.Kubelet) (plugin, dra, domains string) {
	return pluginSocket(ctx, v), draRegistered(v, k, draDriver), draRegistered(v, k, domainsDriver)
}

// draLacksCDI says why NVIDIA's DRA driver, if it has registered here, cannot give pods their
// devices by CDI. Before it registers, the driver itself checks the Kubernetes and the NVIDIA
// driver that it needs. Source: kubernetes-sigs/dra-driver-nvidia-gpu,
// site/content/docs/prerequisites.md.
func draLacksCDI(v host.View, f facts.Facts, lacksCDI LacksCDI) string {
	for _, driver := range []string{draDriver, domainsDriver} {
		if draRegistered(v, f.Kubelet, driver) == "" {
			continue
		}
		if why := lacksCDI(f); why != "" {
			const text = "the DRA driver %s has registered here, and gives pods their devices by CDI: %s"
			try := "cdi = true in [runtime], then " + trouble.Command("apply runtime") + "; or install a newer engine"
			return fmt.Sprintf(text, driver, why) + things.OrTry(try)
		}
	}
	return ""
}
