// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The requirements of NVIDIA's DRA driver for a node. Its pages differ. Sources: kubernetes-sigs/dra-driver-nvidia-gpu,
// site/content/docs/prerequisites.md (GPUs: Kubernetes 1.34.2, driver 565; ComputeDomains: Kubernetes 1.32, driver 570.158.01; CDI); NVIDIA/cloud-native-docs,
// gpu-operator/dra-intro-install.rst (Kubernetes 1.34.2, driver 580).
const (
	draKubernetes     = "1.34.2"
	domainsKubernetes = "1.32.0"
	draNVIDIA         = "565"
	domainsNVIDIA     = "570.158.01"
	operatorNVIDIA    = "580"
	domainsDriver     = "compute-domain.nvidia.com"
	draPage           = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-intro-install.html"
)

// draRegistry is where drivers for dynamic allocation register with kubelet, by sockets that begin with the driver's name. Sources:
// k8s.io/dynamic-resource-allocation, kubeletplugin; kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/main.go.
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

// Allocators returns the sockets of the device plugin, of the DRA driver for GPUs and of its driver for ComputeDomains; "" if it does not run here.
func Allocators(ctx context.Context, v host.View, k facts.Kubelet) (plugin, dra, domains string) {
	return pluginSocket(ctx, v), draRegistered(v, k, draDriver), draRegistered(v, k, domainsDriver)
}

// draReady says what this node lacks for NVIDIA's DRA driver, if that has registered here.
func draReady(v host.View, f facts.Facts, lacksCDI LacksCDI) string {
	gpus, domains := draRegistered(v, f.Kubelet, draDriver) != "", draRegistered(v, f.Kubelet, domainsDriver) != ""
	if !gpus && !domains {
		return ""
	}
	kubernetes, nvidia, what := draKubernetes, draNVIDIA, draDriver
	if !gpus {
		kubernetes, what = domainsKubernetes, domainsDriver
	}
	why := ""
	if domains {
		nvidia, why = domainsNVIDIA, "for ComputeDomains; "
	}
	asks := fmt.Sprintf("(%sthe GPU Operator's page asks for %s)", why, operatorNVIDIA)
	if f.DriverOwner != nil && f.DriverOwner.Name == facts.GPUOperator {
		nvidia = operatorNVIDIA
		asks = fmt.Sprintf("under the GPU Operator (the DRA driver's own page asks for %s, and %s for ComputeDomains)", draNVIDIA, domainsNVIDIA)
	}
	registered := "the DRA driver " + what + " has registered here"
	switch {
	case older(f.Kubelet.Version, kubernetes):
		return fmt.Sprintf("%s, and kubelet %s is older than %s, which it needs", registered, f.Kubelet.Version, kubernetes) +
			things.OrTry("upgrade Kubernetes; "+draPage)
	case older(f.Driver.Version, nvidia):
		return fmt.Sprintf("%s, and the NVIDIA driver %s is older than %s, which it needs %s", registered, f.Driver.Version, nvidia, asks) +
			things.OrTry("a newer version in [driver]; "+draPage)
	}
	if why := lacksCDI(f); why != "" {
		return fmt.Sprintf("%s, and gives pods their devices by CDI: %s", registered, why) +
			things.OrTry("cdi = true in [runtime], then "+trouble.Command("apply runtime")+"; or install a newer engine")
	}
	return ""
}

// older compares versions without distributions' suffixes. A version that it cannot read is not older.
func older(is, needed string) bool {
	a, err := version.NewVersion(is)
	b, err2 := version.NewVersion(needed)
	return err == nil && err2 == nil && a.Core().LessThan(b)
}
