// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Build is one module version in DKMS's tree, for one kernel once it was built for it.
type Build struct {
	Name    string `json:"name"` // nvidia; nvidia-open, nvidia-current, nvidia-srv by other packagers
	Version string `json:"version"`
	Kernel  string `json:"kernel,omitempty"` // "" where it is only added
	Arch    string `json:"arch,omitempty"`   // x86_64, and amd64 where Debian's postinst ran in a chroot
	State   string `json:"state"`            // added, built, installed
}

// dkmsTree is where dkms(8) keeps what it knows.
const dkmsTree = "/var/lib/dkms"

// Builds reads the state of NVIDIA's modules from DKMS's tree, as dkms status does.
// Source: module_status and _is_module_installed in dkms of https://github.com/dell/dkms.
func Builds(v host.View) ([]Build, error) {
	g := &gathering{v: v}
	var found []Build
	for _, name := range g.list(dkmsTree) {
		if !strings.HasPrefix(name, "nvidia") {
			continue
		}
		for _, version := range g.list(path.Join(dkmsTree, name)) {
			dir := path.Join(dkmsTree, name, version)
			info, err := g.v.Lstat(dir)
			if err != nil || !info.Mode.IsDir() {
				continue // kernel-KERNEL-ARCH, which says what is installed
			}

			built := g.builtFor(name, version)
			if len(built) == 0 && g.linked(dir+"/source") {
				built = []Build{{Name: name, Version: version, State: "added"}}
			}
			found = append(found, built...)
		}
	}

	return found, g.err
}

// builtFor lists the kernels that a version is built for.
func (g *gathering) builtFor(name, version string) (found []Build) {
	dir := path.Join(dkmsTree, name, version)
	for _, kernel := range g.list(dir) {
		if kernel == "source" || kernel == "build" {
			continue
		}
		for _, arch := range g.list(path.Join(dir, kernel)) {
			built := path.Join(dir, kernel, arch)
			if !g.exists(built + "/module") {
				continue
			}

			b := Build{
				Name:    name,
				Version: version,
				Kernel:  kernel,
				Arch:    arch,
				State:   "built",
			}
			installed, err := g.v.Readlink(path.Join(dkmsTree, name, "kernel-"+kernel+"-"+arch))
			if err == nil && (installed == path.Join(version, kernel, arch) || installed == built) {
				b.State = "installed"
			}
			found = append(found, b)
		}
	}

	return found
}

// linked says whether there is a link of that name, whether it leads anywhere or not.
func (g *gathering) linked(name string) bool {
	_, err := g.v.Lstat(name)
	return err == nil
}
