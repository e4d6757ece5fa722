// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"

	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Pattern returns the driver's version as packages.State writes it: 580.95.05, or 580.* for a
// branch.
func (c Choice) Pattern() string {
	if c.Version != "" {
		return c.Version
	}
	return c.Branch + ".*"
}

// Packages are the desired states of the driver's packages. Those in lockstep have the driver's
// version and are held; the others may have any version.
func (c Choice) Packages() map[string]packages.State {
	want := c.lockstep()
	for _, m := range c.Members {
		if !m.Lockstep {
			want[m.Name] = packages.State{Version: m.Name + "=*"}
		}
	}

	return want
}

// lockstep are the packages that must have the driver's version.
func (c Choice) lockstep() map[string]packages.State {
	want := map[string]packages.State{}
	for _, m := range c.Members {
		if m.Lockstep {
			want[m.Name] = packages.State{Version: "driver=" + c.Pattern(), Held: true}
		}
	}

	return want
}

// Headers maps the kernels that modules are built for to the packages of their headers.
func (c Choice) Headers() map[string]string {
	headers := map[string]string{}
	for _, m := range c.Members {
		if m.Role == "headers" {
			headers[m.PerKernel] = m.Name
		}
	}

	return headers
}

// Brings maps the packages asked for to the kernel modules that they install, by the catalog.
func (c Choice) Brings() map[string][]string {
	brings := map[string][]string{}
	for _, m := range c.Members {
		switch m.Role {
		case "module":
			brings[m.Name] = []string{"nvidia"}
		case "gds":
			brings[m.Name] = []string{modules.Storage}
		}
	}

	return brings
}

// packageOf returns the choice's package with a role, "" if it has none.
func (c Choice) packageOf(role string) string {
	for _, m := range c.Members {
		if m.Role == role {
			return m.Name
		}
	}
	return ""
}

// Repositories returns the repositories that the driver needs and the distribution has not set up.
// A repository without a URL only pins, for apt, the version and the source that is excluded.
func (c Choice) Repositories() []packages.Repository {
	if c.Source == SourceRunfile || c.Source == SourceNone {
		return nil
	}

	return []packages.Repository{{
		ID:          "driver",
		About:       "NVIDIA's driver packages for " + c.Repo.Distro,
		URL:         c.Repo.URL,
		Key:         c.Repo.KeyURL,
		Fingerprint: c.Repo.Fingerprint,
		Signed:      packages.SignedAs(c.Repo.Signed, packages.SignedBoth),
		Pins:        c.Family().Pins(c.Pattern()),
	}}
}

// ofBranch matches the packages of kernel modules that Ubuntu builds for a branch and a kernel;
// their version is the kernel's.
var ofBranch = pattern.Of(`^linux-(?:modules|objects|signatures)-nvidia-([0-9]{3})-`)

// Family returns the packages that must have the driver's version: its parts, whichever package
// depends on them.
func (c Choice) Family() *packages.Family {
	if c.Source == SourceNone || c.Source == SourceRunfile {
		return nil
	}

	return &packages.Family{
		Group: "driver",
		Names: []string{
			"*nvidia*", "libcuda*", "libnv*", "cuda-drivers*", "nvlink5*", "imex",
			packages.SharedPackage("*", "*"),
		},
		Branch:     ofBranch,
		OwnVersion: c.OwnVersion,
		Extras:     c.Extras,
		Rivals:     c.rivals(),
		Exclude:    c.excludedSource(),
		Excluded:   excludedNames(),
	}
}

// rivals are the packages with another kind of kernel modules than the choice's, as NVIDIA and
// Amazon name them for dnf. dnf itself would keep both kinds installed: NVIDIA's precompiled
// modules, which are proprietary, conflict only with kmod-nvidia-latest-dkms, and not with the open
// modules that DKMS builds (kmod-nvidia.spec of
// https://github.com/NVIDIA/yum-packaging-precompiled-kmod).
func (c Choice) rivals() []string {
	switch {
	case c.Stream == "":
		return nil
	case c.Precompiled && !c.Shared:
		return []string{"kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"}
	}
	return []string{"kmod-nvidia-[0-9]*"}
}

// excludedSource is the pin of the source whose packages apt must not take, "" for none. NVIDIA's
// and Ubuntu's packages of one branch cannot be mixed: up to 580 they have the same names, and from
// 590 on the same files without a Conflicts (test/listings: ubuntu2204 nvidia 595.71.05, ubuntu2604
// nvidia 610.43.02). The pin matches what the source's Release file says: Label "NVIDIA CUDA"
// (cuda-ubuntu2204.pin in NVIDIA's repository;
// https://docs.nvidia.com/cuda/cuda-installation-guide-linux), Origin "Ubuntu"
// (http://archive.ubuntu.com/ubuntu/dists/noble/Release; https://wiki.ubuntu.com/PinningHowto).
func (c Choice) excludedSource() string {
	switch c.Source {
	case SourceNVIDIA:
		if strings.HasPrefix(c.Repo.Distro, "ubuntu") {
			return "release o=Ubuntu"
		}
	case SourceUbuntu, SourceDebian:
		return "release l=NVIDIA CUDA"
	}
	return ""
}

// excludedNames are the globs of the packages that the pin keeps out. There are few of them,
// because at each command that asks for a candidate apt matches every glob with every package
// name it knows.
func excludedNames() []string {
	return []string{
		"cuda-drivers*", "firmware-nvidia*",
		"libcuda1", "libcudadebugger1", "libnvcuvid1",
		"libnvidia-[adfgn]*", "libnvidia-c[fo][gm]*", "libnvidia-e[nx]*",
		"nvidia-[dhiku]*", "nvidia-compute-utils*", "nvidia-f[ai]*",
		"nvidia-open", "nvidia-open-*", "nvidia-per*",
		"linux-modules-nvidia-[0-9]*", "linux-objects-nvidia-[0-9]*", "linux-signatures-nvidia-[0-9]*",
		"xserver-xorg-video-nvidia*",
	}
}
