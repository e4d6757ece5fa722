// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// role returns which of the modules a file is: nvidia, nvidia-uvm, …; "" if none. Packagers name
// them nvidia.ko.xz, nvidia-current-open-uvm.ko, nvidia-tesla-470-drm.ko, nvidia-legacy-390xx.ko.
func role(file string) string {
	match := family().FindStringSubmatch(path.Base(file))
	if match == nil {
		return ""
	}
	return "nvidia" + match[1]
}

var family = pattern.Of(`^nvidia(?:-legacy-[a-z0-9]+|-tesla(?:-\d+)?|-current)?(?:-open)?(-uvm|-modeset|-drm|-peermem|-fs)?\.ko(?:\.xz|\.zst|\.gz)?$`)

// IsNvidia says whether a file is the module nvidia, whatever its packager calls it.
func IsNvidia(file string) bool { return role(file) == "nvidia" }

// NvidiaModule returns the file of the module nvidia that modprobe would load for a kernel, "" if
// there is none. If there are several, modules.dep has the one that depmod(8) has chosen;
// depmod.d(5) has the order of its search.
func NvidiaModule(v host.View, kernel string) (string, error) {
	return ModuleOf(v, kernel, "nvidia")
}

// ModuleOf is NvidiaModule for another one of the family: nvidia-peermem.
func ModuleOf(v host.View, kernel, of string) (string, error) {
	g := &gathering{v: v}
	for _, name := range g.listed("/lib/modules/" + kernel) {
		if role(name) == of {
			return name, g.err
		}
	}

	return "", g.err
}

// NvidiaModules returns the files of all the driver's modules that modprobe would load for a
// kernel.
func NvidiaModules(v host.View, kernel string) ([]string, error) {
	g := &gathering{v: v}
	return g.listed("/lib/modules/" + kernel), g.err
}

// InfinibandModules returns the modules that manage NVLink 5's switches: the InfiniBand half of the
// network card's driver, and the one through which programs send management datagrams.
// Sources: https://github.com/NVIDIA/gpu-operator/issues/2781;
// https://github.com/spectrocloud/CanvOS/pull/700.
func InfinibandModules() []string { return []string{"mlx5_ib", "ib_umad"} }

// HasInfiniband returns which of InfinibandModules a kernel has, on disk as depmod(8) knows them or
// built in.
func HasInfiniband(v host.View, kernel string) ([]string, error) {
	g := &gathering{v: v}
	dir := "/lib/modules/" + kernel
	return g.infiniband(dir, g.read(dir+"/modules.dep")), g.err
}

func (g *gathering) infiniband(dir string, dep []byte) (found []string) {
	builtin := g.read(dir + "/modules.builtin")
	for _, name := range InfinibandModules() {
		file := []byte("/" + name + ".ko")
		if bytes.Contains(dep, file) || bytes.Contains(builtin, file) {
			found = append(found, name)
		}
	}

	return found
}

// listed returns the files of the family in modules.dep, by their absolute paths.
func (g *gathering) listed(dir string) (names []string) {
	return listedIn(dir, g.read(dir+"/modules.dep"))
}

// listedIn is listed for the content of modules.dep.
func listedIn(dir string, dep []byte) (names []string) {
	for line := range bytes.Lines(dep) {
		if !bytes.Contains(line, []byte("nvidia")) { // all but a few of thousands
			continue
		}
		name, _, ok := strings.Cut(string(line), ":")
		if !ok || role(name) == "" {
			continue
		}
		if !path.IsAbs(name) {
			name = path.Join(dir, name)
		}
		names = append(names, name)
	}
	return names
}
