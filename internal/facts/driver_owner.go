// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// The owner of a machine's driver, by signs on the machine.
const (
	GPUOperator = "NVIDIA's GPU Operator"
	AKSDriver   = "AKS" // whose images can carry a driver
	OSTree      = "the ostree image that this system is"
	EKSImage    = "the EKS image"
)

// eksLoaders are the units by which EKS's accelerated images of Amazon Linux 2023 load their driver at each boot: from archives of DKMS,
// and since 2026-09 from prebuilt trees, which are laid over /usr. rpm names a proprietary package whichever modules are loaded.
// Source: https://github.com/awslabs/amazon-eks-ami, templates/al2023/runtime/gpu at 81fec2e8, and pulls 2783, 2792 and 2819.
func eksLoaders() []string { return []string{"nvidia-kmod-load.service", "nvidia-setup.service"} }

// LoadsDriver names the unit that loads the driver of EKS's image just now; "" if none does.
func LoadsDriver(ctx context.Context, v host.View) string {
	for _, name := range eksLoaders() {
		if u, err := v.Unit(ctx, name); err == nil && u.Active == "activating" {
			return name
		}
	}
	return ""
}

// DriverOwner is another owner of the driver.
type DriverOwner struct {
	Name string `json:"name"` // GPUOperator, AKSDriver, OSTree, EKSImage
	Why  string `json:"why"`  // by which sign
}

// driverOwner says who else brings the driver. What an os-release says is for who knows the distributions.
func (l *look) driverOwner() *DriverOwner {
	if !l.v.Live() {
		return l.eksImage() // what is in /run is this boot's
	}
	// The driver container mounts its root for others to find, holds its process's file while it runs, and says by another
	// one that it is ready. The operator's validator has files beside it, also where the driver is the machine's own.
	// Source: nvidia-driver in https://github.com/NVIDIA/gpu-driver-container; validator in https://github.com/NVIDIA/gpu-operator.
	const container = "/run/nvidia/driver"
	if _, err := l.v.Stat(container); !missing(err) { // a node with pods has hundreds of mounts, for the kernel to print
		for line := range strings.Lines(l.attr("/proc/self/mounts")) {
			if f := strings.Fields(line); len(f) > 1 && f[1] == container {
				return &DriverOwner{GPUOperator, container + " is mounted, by its driver container"}
			}
		}
	}
	for _, sign := range []string{"/run/nvidia/nvidia-driver.pid", "/run/nvidia/validations/.driver-ctr-ready"} {
		if l.has(sign) {
			return &DriverOwner{GPUOperator, "its driver container has written " + sign}
		}
	}
	// The driver that is built into AKS's Ubuntu images. Its provisioning uses it, or removes it by path at its end; where that was
	// incomplete the marker stays, and the next provisioning removes it then.
	// Sources: Azure/AgentBaker at 06836ee2, parts/linux/cloud-init/artifacts/ubuntu/cse_install_ubuntu.sh: cleanUpPrebakedGPUDriver,
	// and vhdbuilder/packer/install-dependencies.sh, which builds it.
	if sign := "/opt/azure/aks-gpu/dkms-marker"; l.cloud.Managed == "aks" && l.has(sign) {
		return &DriverOwner{AKSDriver, sign + " is there"}
	}
	// Made by ostree-prepare-root(1) at each boot; on such a system /usr is read-only, and packages come with the image.
	if booted := "/run/ostree-booted"; l.has(booted) {
		return &DriverOwner{OSTree, booted + " is there"}
	}
	return l.eksImage()
}

// eksImage goes by the images' own units; NVIDIA's packages have none of these names.
func (l *look) eksImage() *DriverOwner {
	for _, name := range eksLoaders() {
		if at := "/etc/systemd/system/" + name; l.has(at) {
			return &DriverOwner{EKSImage, at + " is there"}
		}
	}
	return nil
}
