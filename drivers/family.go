// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// ofBranch matches the packages of kernel modules that Ubuntu builds for a branch and a kernel;
// their version is the kernel's.
var ofBranch = pattern.Of(`^linux-(?:modules|objects|signatures)-nvidia-([0-9]{3})-`)

// Family returns the packages that must have the driver's version: its parts, whichever package
// depends on them.
func (c Choice) Family() *packages.Family {
	if c.Source == SourceNone || c.Source == SourceRunfile {
		return nil
	}
	f := &packages.Family{
		Group:  "driver",
		Names:  []string{"*nvidia*", "libcuda*", "libnv*", "cuda-drivers*", "nvlink5*", "imex", facts.SharedPackage("*", "*")},
		Branch: ofBranch, Apart: c.Apart, Extras: c.Extras,
	}
	// NVIDIA's and Ubuntu's packages of one branch have the same names up to 580, and from 590 on
	// the same files without a Conflicts (test/listings: ubuntu2204 nvidia 595.71.05, ubuntu2604
	// nvidia 610.43.02). Each is kept out by what its Release file says: Label "NVIDIA CUDA"
	// (cuda-ubuntu2204.pin in NVIDIA's repository;
	// https://docs.nvidia.com/cuda/cuda-installation-guide-linux) and Origin "Ubuntu"
	// (http://archive.ubuntu.com/ubuntu/dists/noble/Release; https://wiki.ubuntu.com/PinningHowto).
	switch {
	case c.Source == SourceNVIDIA && strings.HasPrefix(c.Repo.Distro, "ubuntu"):
		f.Exclude = "release o=Ubuntu"
	case c.Source == SourceUbuntu, c.Source == SourceDebian:
		f.Exclude = "release l=NVIDIA CUDA"
	}
	// Fewer globs cost less: apt matches each with the name of every package that it knows, at each
	// command that asks for a candidate.
	f.Excluded = strings.Fields("cuda-drivers* firmware-nvidia* libcuda1 libcudadebugger1 libnvcuvid1 libnvidia-[adfgn]* libnvidia-c[fo][gm]* libnvidia-e[nx]* " +
		"nvidia-[dhiku]* nvidia-compute-utils* nvidia-f[ai]* nvidia-open nvidia-open-* nvidia-per* " +
		"linux-modules-nvidia-[0-9]* linux-objects-nvidia-[0-9]* linux-signatures-nvidia-[0-9]* xserver-xorg-video-nvidia*")
	return f
}

// Systems lists the operating systems in the catalog by os-release's ID and VERSION_ID:
// ubuntu-24.04, rocky-9. A system that has its own driver, or whose every version is supported, is
// listed by its ID alone.
func (c Catalog) Systems() []string {
	var all []string
	for _, r := range c.Repositories {
		for _, id := range r.IDs {
			if r.Version != "*" {
				id += "-" + r.Version
			}
			all = append(all, id)
		}
	}
	for _, o := range c.Owners {
		all = append(all, o.IDs...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Knows says whether a system is among Systems, or a minor release of one: rhel-9.6. If not, like
// lists the systems of that name, or all.
func (c Catalog) Knows(system string) (known bool, like []string) {
	all := c.Systems()
	id, version, _ := strings.Cut(system, "-")
	if slices.Contains(all, system) || slices.ContainsFunc(c.Repositories, func(r repositoryRow) bool { return r.offers(id, version) }) {
		return true, nil
	}
	for _, name := range all {
		if strings.HasPrefix(name, id+"-") {
			like = append(like, name)
		}
	}
	if len(like) == 0 {
		like = all
	}
	return false, like
}
