// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
)

// The owner of a machine's driver, by signs on the machine.
const (
	GPUOperator = "NVIDIA's GPU Operator"
	OSTree      = "the ostree image that this system is"
	EKSImage    = "the EKS image"
	CIQDriver   = "CIQ's packages" // which Google's Rocky Linux images have
	OtherOwner  = "another owner"  // nothing more is known of it
)

// eksLoaders are the units by which EKS's accelerated images of Amazon Linux 2023 load their driver
// at each boot: from archives of DKMS, and since 2026-09 from prebuilt trees, which are laid over
// /usr. rpm names a proprietary package whichever modules are loaded.
// Source: https://github.com/awslabs/amazon-eks-ami, templates/al2023/runtime/gpu at 81fec2e8, and
// pulls 2783, 2792 and 2819.
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

// driverOwner says who else brings the driver, by signs on the machine. For distributions that
// bring one os-release is the sign: owners in drivers/catalog/repositories.toml. What an operator
// can do about an owner is in takeOver (drivers/owner.go).
func (g *gathering) driverOwner(ctx context.Context, m Modules) *Owner {
	if !g.v.Live() {
		return g.eksImage() // what is in /run is this boot's
	}
	// The driver container mounts its root for others to find, holds its process's file while it
	// runs, and says by another one that it is ready. The operator's validator has files beside it,
	// also where the driver is the machine's own.
	// Source: nvidia-driver in https://github.com/NVIDIA/gpu-driver-container; validator in
	// https://github.com/NVIDIA/gpu-operator.
	const container = "/run/nvidia/driver"
	if _, err := g.v.Stat(container); !missing(err) { // a node with pods has hundreds of mounts, for the kernel to print
		for line := range strings.Lines(g.attr("/proc/self/mounts")) {
			if f := strings.Fields(line); len(f) > 1 && f[1] == container {
				return &Owner{Name: GPUOperator, Why: container + " is mounted, by its driver container"}
			}
		}
	}
	if sign := g.first("/run/nvidia/nvidia-driver.pid", "/run/nvidia/validations/.driver-ctr-ready"); sign != "" {
		return &Owner{Name: GPUOperator, Why: "its driver container has written " + sign}
	}
	if by := platform.Of(g.cloud.Managed).Driver; g.first(by.Files...) != "" {
		return &Owner{Name: by.Title, Why: g.first(by.Files...) + " is there"}
	}
	// Made by ostree-prepare-root(1) at each boot; on such a system /usr is read-only, and packages
	// come with the image.
	if booted := "/run/ostree-booted"; g.exists(booted) {
		return &Owner{Name: OSTree, Why: booted + " is there"}
	}
	if image := g.eksImage(); image != nil {
		return image
	}
	return g.unpackaged(ctx, m)
}

// packagers are those whose packages of the driver are of no source in drivers/catalog, by how the
// names begin, and what the owner is called: "" is another one, or AKS. Google's images of Rocky
// Linux have CIQ's, of which Secure Boot takes the modules; AKS installs Microsoft's on Azure
// Linux. Sources: https://docs.ciq.com/scn (nvidia-dc-driver580, kmod-nvidia-dc-open580) and
// package_installed_test.go of https://github.com/GoogleCloudPlatform/cloud-image-tests,
// test_suites/packagevalidation; DISTROS.md of
// https://github.com/NVIDIA/yum-packaging-precompiled-kmod (cuda-open-hwe) and azurelinux in
// https://github.com/NVIDIA/gpu-driver-container (cuda); xorg-x11-drv-nvidia.spec of
// https://github.com/rpmfusion/xorg-x11-drv-nvidia and nvidia-x11-drv.spec of
// https://github.com/elrepo/packages, with nvidia-driver.spec of
// https://github.com/negativo17/nvidia-driver, which conflicts with both. Evidence of 2026-11; out
// of date where dnf refuses to install a driver beside another's files.
func packagers() [][2]string {
	return [][2]string{{"nvidia-dc-", CIQDriver}, {"cuda-", ""}, {"xorg-x11-drv-nvidia", ""}, {"nvidia-x11-drv", ""}}
}

// unpackaged finds a driver that is loaded and belongs to no package of a source that gpuadm knows:
// another program brought it. dpkg's lists of files are read, and rpm is asked. A driver of
// NVIDIA's installer has a log, and the stages know it. AKS's provisioning runs that installer,
// too, with its libraries in a folder of its own. Sources: Azure/aks-gpu at dde3239, install.sh
// (GPU_DEST=/usr/bin), and drivers/runfile.go.
func (g *gathering) unpackaged(ctx context.Context, m Modules) *Owner {
	const lists, installer = "/var/lib/dpkg/info", "/var/lib/nvidia/log"
	version, _ := LoadedDriver(g.v)
	by := platform.Of(g.cloud.Managed).Driver
	if version == "" || (by.Installer == "" || !g.exists(by.Installer)) && g.exists(installer) {
		return nil
	}
	names := g.list(lists)
	for _, name := range names {
		if strings.Contains(name, "nvidia") && strings.HasSuffix(name, ".list") && bytes.Contains(g.read(lists+"/"+name), []byte("/libnvidia-ml.so.")) {
			return nil
		}
	}
	rpm := noPackage
	if len(names) == 0 {
		rpm = g.rpmOf(ctx, m)
	}
	owner := &Owner{Name: OtherOwner, Why: "driver " + version + " is loaded, and no package has its files"}
	if by.Unpackaged {
		owner.Name = by.Title
	}
	packager := slices.IndexFunc(packagers(), func(p [2]string) bool { return strings.HasPrefix(rpm, p[0]) })
	switch {
	case packager >= 0:
		owner.Name, owner.Why = cmp.Or(packagers()[packager][1], owner.Name), rpm+" is installed"
	case rpm != noPackage:
		return nil
	}
	return owner
}

const noPackage = "of no package"

// rpmOf is the package that has the driver's library: rpm is asked once a boot, and of its own file
// first, since a database that does not answer knows no package of that either. "" if rpm cannot be
// asked. A library that lies in none of the folders in which packages have it is of no package.
// Source: rpm(8), "rpm -q --file" and EXIT STATUS.
func (g *gathering) rpmOf(ctx context.Context, m Modules) string {
	const rpm = "/usr/bin/rpm"
	switch {
	case !g.v.Runs() || !g.exists(rpm):
		return ""
	case len(m.Libraries) == 0:
		return noPackage
	}
	file := m.Libraries[0].Path
	info, err := g.v.Stat(file)
	if err != nil {
		return ""
	}

	return g.rememberVersion(file, info, func() (string, error) {
		if _, err := g.v.Ask(ctx, rpm, "-qf", rpm); err != nil {
			return "", err
		}
		out, err := g.v.Ask(ctx, rpm, "-qf", file)
		var failed *host.CommandError
		if errors.As(err, &failed) && failed.Code == 1 {
			return noPackage, nil
		}
		return strings.TrimSpace(string(out)), err
	})
}

// eksImage recognises EKS's images by their own units; NVIDIA's packages have no units of these
// names.
func (g *gathering) eksImage() *Owner {
	for _, name := range eksLoaders() {
		if at := "/etc/systemd/system/" + name; g.exists(at) {
			return &Owner{Name: EKSImage, Why: at + " is there"}
		}
	}
	return nil
}
