// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
)

// The owner of a machine's driver, by signs on the machine.
const (
	GPUOperator = "NVIDIA's GPU Operator"
	OSTree      = "the ostree image that this system is"
	CIQDriver   = "CIQ's packages" // which Google's Rocky Linux images have
	OtherOwner  = "another owner"  // nothing more is known of it
)

// LoadsDriver returns the unit with which a platform's image is loading its driver; "" if none is.
func LoadsDriver(ctx context.Context, v host.View) (unit string, err error) {
	for _, p := range platform.All() {
		for _, name := range p.Driver.Loaders {
			u, err := v.Unit(ctx, name)
			isUnknown := err != nil && !errors.As(err, new(host.Later)) // else no systemd runs here
			switch {
			case isUnknown:
				return "", err
			case u.Active == "activating":
				return name, nil
			}
		}
	}
	return "", nil
}

// kind is the kind of node that the machine is, with the owners of its parts.
func (g *gathering) kind() platform.Node {
	return platform.NodeOf(g.cloud.Managed, platform.SystemOn(g.v).ID)
}

// driverOwner finds another owner of the driver, by signs on the machine. For distributions with a
// driver of their own the sign is os-release: owners in drivers/catalog/repositories.toml. takeOver
// (drivers/owner.go) says what an operator can do about an owner.
func (g *gathering) driverOwner(ctx context.Context, m Modules) *Owner {
	if !g.v.Live() {
		return g.loadedByImage() // what is in /run is this boot's
	}
	if sign := g.driverContainer(); sign != "" {
		return &Owner{Name: GPUOperator, Why: sign}
	}

	byPlatform := g.kind().Driver
	if file := g.first(byPlatform.Files...); file != "" {
		return &Owner{Name: byPlatform.Title, Why: file + " is there"}
	}

	// Made by ostree-prepare-root(1) at each boot; on such a system /usr is read-only, and packages
	// come with the image.
	const booted = "/run/ostree-booted"
	if g.exists(booted) {
		return &Owner{Name: OSTree, Why: booted + " is there"}
	}

	if image := g.loadedByImage(); image != nil {
		return image
	}
	return g.unpackaged(ctx, m)
}

// driverContainer returns the sign of the GPU Operator's driver container; "" if there is none.
//
// The container mounts its root for others to find, keeps a file with its process's number while
// it runs, and writes another file once the driver is ready. The operator's validator writes
// further files there, also where the driver is the machine's own.
// Source: nvidia-driver in https://github.com/NVIDIA/gpu-driver-container; validator in
// https://github.com/NVIDIA/gpu-operator.
func (g *gathering) driverContainer() string {
	const root = "/run/nvidia/driver"
	// On a node with pods the kernel has hundreds of mounts to print, so the folder is checked
	// first.
	mounts := ""
	if _, err := g.v.Stat(root); !missing(err) {
		mounts = string(g.read("/proc/self/mounts"))
	}
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[1] == root {
			return root + " is mounted, by its driver container"
		}
	}

	sign := g.first("/run/nvidia/nvidia-driver.pid", "/run/nvidia/validations/.driver-ctr-ready")
	if sign != "" {
		return "its driver container has written " + sign
	}
	return ""
}

// A driverPackager is a supplier of driver packages: how their names begin, and what the owner is
// called.
type driverPackager struct{ prefix, owner string }

// packagers returns the suppliers whose driver packages come from no source in drivers/catalog. An
// owner "" is either AKS or an unknown one. Google's images of Rocky Linux
// have CIQ's packages, whose modules load under Secure Boot; AKS installs Microsoft's packages on
// Azure Linux. Sources: https://docs.ciq.com/scn (nvidia-dc-driver580, kmod-nvidia-dc-open580) and
// package_installed_test.go of https://github.com/GoogleCloudPlatform/cloud-image-tests,
// test_suites/packagevalidation; DISTROS.md of
// https://github.com/NVIDIA/yum-packaging-precompiled-kmod (cuda-open-hwe) and azurelinux in
// https://github.com/NVIDIA/gpu-driver-container (cuda); xorg-x11-drv-nvidia.spec of
// https://github.com/rpmfusion/xorg-x11-drv-nvidia and nvidia-x11-drv.spec of
// https://github.com/elrepo/packages, with nvidia-driver.spec of
// https://github.com/negativo17/nvidia-driver, which conflicts with both. Evidence of 2026-11; out
// of date where dnf refuses to install a driver beside another's files.
func packagers() []driverPackager {
	return []driverPackager{
		{"nvidia-dc-", CIQDriver},
		{"cuda-", ""},
		{"xorg-x11-drv-nvidia", ""},
		{"nvidia-x11-drv", ""},
	}
}

// unpackaged finds a driver that is loaded and belongs to no package of a source that gpuadm knows:
// another program brought it. dpkg's lists of files are read, and rpm is asked. A driver of
// NVIDIA's installer has a log, and the stages know it. AKS's provisioning runs that installer,
// too, with its libraries in a folder of its own. Sources: Azure/aks-gpu at dde3239, install.sh
// (GPU_DEST=/usr/bin), and drivers/runfile.go.
func (g *gathering) unpackaged(ctx context.Context, m Modules) *Owner {
	const installerLog = "/var/lib/nvidia/log"
	version, _ := LoadedDriver(g.v)
	if version == "" {
		return nil
	}
	byPlatform := g.kind().Driver
	ranInstaller := byPlatform.Installer != "" && g.exists(byPlatform.Installer)
	if !ranInstaller && g.exists(installerLog) {
		return nil
	}

	rpm := noPackage
	lists := g.list(dpkgLists)
	if g.listsDriver(lists) {
		return nil
	}
	if len(lists) == 0 {
		rpm = g.rpmOf(ctx, m)
	}

	owner := &Owner{
		Name: OtherOwner,
		Why:  "driver " + version + " is loaded, and no package has its files",
	}
	if byPlatform.Unpackaged {
		owner.Name = byPlatform.Title
	}
	if rpm == noPackage {
		return owner
	}
	for _, packager := range packagers() {
		if strings.HasPrefix(rpm, packager.prefix) {
			owner.Name = cmp.Or(packager.owner, owner.Name)
			owner.Why = rpm + " is installed"
			return owner
		}
	}

	return nil
}

const dpkgLists = "/var/lib/dpkg/info"

// listsDriver says whether one of dpkg's lists of files has the driver's library.
func (g *gathering) listsDriver(lists []string) bool {
	for _, name := range lists {
		if !strings.Contains(name, "nvidia") || !strings.HasSuffix(name, ".list") {
			continue
		}
		if bytes.Contains(g.read(dpkgLists+"/"+name), []byte("/libnvidia-ml.so.")) {
			return true
		}
	}
	return false
}

const noPackage = "of no package"

// rpmOf returns the package that has the driver's library. gpuadm asks rpm once a boot, and first
// about rpm's own file: a broken database knows no package of that file either. "" if rpm cannot be
// asked. A library that is in none of the folders of packages is of no package.
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
	if !g.exists(file) {
		return ""
	}

	return g.remember(file, func() (string, error) {
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

// loadedByImage recognises a platform's image by the units that load its driver.
func (g *gathering) loadedByImage() *Owner {
	for _, p := range platform.All() {
		for _, name := range p.Driver.Loaders {
			file := "/etc/systemd/system/" + name
			if g.exists(file) {
				return &Owner{Name: p.Driver.Title, Why: file + " is there"}
			}
		}
	}
	return nil
}
