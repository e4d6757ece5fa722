// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/hashicorp/go-version"
	"github.com/pelletier/go-toml/v2"

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
const draRegistry = "/var/lib/kubelet/plugins_registry"

// draRegistered returns the socket with which a driver has registered here, "" if it has not.
func draRegistered(v host.View, driver string) string {
	names, _ := v.ReadDir(draRegistry)
	for _, name := range names {
		if strings.HasPrefix(name, driver) {
			return path.Join(draRegistry, name)
		}
	}
	return ""
}

// Allocators returns the sockets of the device plugin, of the DRA driver for GPUs and of that for ComputeDomains; "" for one that does not run here.
func Allocators(ctx context.Context, v host.View) (plugin, dra, domains string) {
	return pluginSocket(ctx, v), draRegistered(v, draDriver), draRegistered(v, domainsDriver)
}

// draReady says what this node lacks for NVIDIA's DRA driver, if that has registered here.
func draReady(v host.View, f facts.Facts) string {
	gpus, domains := draRegistered(v, draDriver) != "", draRegistered(v, domainsDriver) != ""
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
	if why := draEngine(f); why != "" {
		return fmt.Sprintf("%s, and gives pods their devices by CDI: %s", registered, why)
	}
	return ""
}

// older compares versions without distributions' suffixes. A version that it cannot read is not older.
func older(is, needed string) bool {
	a, err := version.NewVersion(is)
	b, err2 := version.NewVersion(needed)
	return err == nil && err2 == nil && a.Core().LessThan(b)
}

// draEngine says why kubelet's engine cannot give devices by CDI. Sources: the prerequisites above (on by default in containerd 2.0 and
// CRI-O 1.27); containerd, docs/cri/config.md (enable_cdi from 1.7) and RELEASES.md; cri-o, docs/crio.conf.5.md (cdi_spec_dirs, from 1.23).
func draEngine(f facts.Facts) string {
	for _, e := range f.Engines {
		oldest := map[string]string{"containerd": "1.7.0", "crio": "1.23.0"}[e.Name]
		another := f.Kubelet.Endpoint != "" && e.Socket != "" && strings.TrimPrefix(f.Kubelet.Endpoint, "unix://") != e.Socket
		if oldest == "" || e.Version == "" || another {
			continue
		}
		if older(e.Version, oldest) {
			return fmt.Sprintf("%s %s has no CDI, which came with %s", e.Name, e.Version, oldest) + things.OrTry("install a newer "+e.Name)
		}
		if e.Name == "containerd" && older(e.Version, "2.4.0") && !cdiOn(e) { // from 2.4 on it cannot be off
			return "it is not enabled in " + e.Config + things.OrTry("cdi = true in [runtime], then "+trouble.Command("apply runtime"))
		}
	}
	return ""
}

// cdiOn says whether containerd enables CDI: by the last of its files that states it, else from 2.0 on.
func cdiOn(e facts.Engine) bool {
	on := !older(e.Version, "2.0.0")
	type cri struct {
		EnableCDI *bool `toml:"enable_cdi"`
	}
	for _, file := range e.Files {
		var c struct {
			Plugins struct {
				One   cri `toml:"cri"`
				Two   cri `toml:"io.containerd.grpc.v1.cri"`
				Three cri `toml:"io.containerd.cri.v1.runtime"`
			} `toml:"plugins"`
		}
		if toml.Unmarshal(file.Data, &c) != nil {
			continue // the stage runtime says what is wrong with it
		}
		for _, p := range []cri{c.Plugins.One, c.Plugins.Two, c.Plugins.Three} {
			if p.EnableCDI != nil {
				on = *p.EnableCDI
			}
		}
	}
	return on
}
