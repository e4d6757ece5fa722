// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Modules has the facts about NVIDIA's kernel modules: the loaded ones, those on disk, and who may
// sign them.
type Modules struct {
	Version   string          `json:"version,omitempty"`   // of the module nvidia that is loaded
	Taken     []Taken         `json:"taken,omitempty"`     // GPUs that another driver of the kernel holds
	Kernels   []KernelModules `json:"kernels,omitempty"`   // of each installed kernel, newest first
	Libraries []Library       `json:"libraries,omitempty"` // what programs load
	Trust     Trust           `json:"trust"`
}

// Taken is a GPU that one of the kernel's own drivers holds, so that NVIDIA's does not get it.
type Taken struct {
	Address string `json:"address"` // on the PCI bus
	Module  string `json:"module"`  // nouveau, nova_core
}

func (t Taken) String() string { return t.Module + " holds " + t.Address }

// kernelsOwn returns the module of a PCI driver of the kernel's own that takes NVIDIA's GPUs; ""
// for another driver. vfio-pci takes a GPU only where an operator gives it to a virtual machine.
// Source: drivers/gpu/nova-core/nova_core.rs in the kernel's tree, name: "NovaCore".
func kernelsOwn(driver string) (module string) {
	switch driver {
	case "nouveau":
		return driver
	case "NovaCore":
		return "nova_core"
	}
	return ""
}

// KernelModules has the modules of one installed kernel.
type KernelModules struct {
	Kernel   string          `json:"kernel"`
	Headers  bool            `json:"headers"`            // modules can be built for it
	Compiler string          `json:"compiler,omitempty"` // its own: gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0
	Nvidia   *modinfo.Module `json:"nvidia,omitempty"`   // the module that modprobe would load
	Files    []string        `json:"files,omitempty"`    // all of the family
	Unlisted []string        `json:"unlisted,omitempty"` // on disk, but depmod(8) does not know of them
	Missing  []string        `json:"missing,omitempty"`  // firmware that the module asks for in vain
	Problem  string          `json:"problem,omitempty"`  // why the module's file cannot be read

	Infiniband []string `json:"infiniband,omitempty"` // which of mlx5_ib and ib_umad it has, as modules or built in
	Extra      bool     `json:"extra,omitempty"`      // Ubuntu's linux-modules-extra of it is installed
}

// Mismatch says how the loaded module and the libraries differ, which NVML calls "Driver/library
// version mismatch".
func (m Modules) Mismatch() string {
	for _, lib := range m.Libraries {
		if m.Version != "" && lib.Version != m.Version {
			return "the kernel module nvidia " + m.Version + " is loaded, and " + lib.Path + " is of " + lib.Version
		}
	}
	return ""
}

// Of returns what a kernel has.
func (m Modules) Of(kernel string) (KernelModules, bool) {
	i := slices.IndexFunc(m.Kernels, func(k KernelModules) bool { return k.Kernel == kernel })
	if i < 0 {
		return KernelModules{}, false
	}
	return m.Kernels[i], true
}

// Reload says which version a reload or reboot would bring, "" if it is the loaded one.
func (m Modules) Reload(running string) string {
	k, _ := m.Of(running)
	if m.Version == "" || k.Nvidia == nil || k.Nvidia.Version == m.Version {
		return ""
	}
	return k.Nvidia.Version
}

// modules finds out about NVIDIA's kernel modules. It runs no program, and does not ask the driver.
func (g *gathering) modules(kernels Kernel, gpus []PCI, arch string) Modules {
	m := Modules{
		Libraries: g.libraries(arch),
		Trust:     g.trust(),
	}
	if g.v.Live() {
		m.Version, _ = LoadedDriver(g.v)
	}

	for _, gpu := range gpus {
		if module := kernelsOwn(gpu.Driver); module != "" && gpu.Display() {
			m.Taken = append(m.Taken, Taken{Address: gpu.Address, Module: module})
		}
	}

	for _, kernel := range kernels.Installed {
		m.Kernels = append(m.Kernels, g.kernelModules(kernel))
	}
	return m
}

// LoadedDriver returns version and flavour of the loaded module nvidia, "" if it is not loaded. The
// driver's own file names the flavour; before R515 only the proprietary one existed.
func LoadedDriver(v host.View) (version, flavour string) {
	g := &gathering{v: v}
	version = g.attr("/sys/module/nvidia/version")
	banner := g.attr("/proc/driver/nvidia/version")
	switch {
	case version == "" || banner == "":
		return version, ""
	case strings.Contains(banner, "Open Kernel Module"):
		return version, "open"
	}

	return version, "proprietary"
}

// kernelModules reads one kernel's modules.
func (g *gathering) kernelModules(kernel string) KernelModules {
	dir := "/lib/modules/" + kernel
	dep := g.read(dir + "/modules.dep")
	k := KernelModules{
		Kernel:     kernel,
		Files:      listedIn(dir, dep),
		Infiniband: g.infiniband(dir, dep),
		Headers:    g.exists(dir + "/build/Makefile"),
		Compiler:   g.compiler(dir, kernel),
	}
	// Unlike the package's list of files, this one goes when the package is removed.
	k.Extra = g.exists("/var/lib/dpkg/info/linux-modules-extra-" + kernel + ".md5sums")
	k.Unlisted = g.unlisted(dir, k.Files)

	i := slices.IndexFunc(k.Files, func(name string) bool { return role(name) == "nvidia" })
	if i < 0 {
		return k
	}
	m, err := modinfo.ReadOnce(g.memory(), g.v, k.Files[i])
	if err != nil {
		k.Problem = err.Error()
		return k
	}
	k.Nvidia = &m
	for _, name := range m.Firmware {
		if !g.hasFirmware(name) {
			k.Missing = append(k.Missing, name)
		}
	}

	return k
}

// hasFirmware says whether the kernel finds a file of firmware.
// Source: Documentation/driver-api/firmware/fw_search_path.rst in the kernel's tree.
func (g *gathering) hasFirmware(name string) bool {
	const folder = "/lib/firmware/"
	found := g.first(
		folder+name, folder+"updates/"+name,
		folder+name+".zst", folder+name+".xz",
	)
	return found != ""
}

// unlisted finds the modules on disk that modules.dep does not list.
func (g *gathering) unlisted(dir string, listed []string) (found []string) {
	for _, folder := range []string{"updates", "extra", "weak-updates", "kernel/drivers/video"} {
		for _, file := range g.walk(path.Join(dir, folder), 0) {
			if role(file) != "" && !slices.Contains(listed, file) {
				found = append(found, file)
			}
		}
	}
	return found
}

// compiler returns the compiler of a kernel, from the kernel's own configuration: /proc/version is
// about the running kernel. Modules must be built with the same compiler.
func (g *gathering) compiler(dir, kernel string) string {
	for _, name := range []string{dir + "/build/.config", "/boot/config-" + kernel, dir + "/config"} {
		if text := CompilerIn(string(g.read(name))); text != "" {
			return text
		}
	}
	return ""
}

// FlavourIn is open or proprietary, by the licence in a source of the driver's modules; "" if it
// says none: kernel-open/nvidia/nv.c and kernel/nvidia/nv.c of NVIDIA's installer do.
func FlavourIn(source string) string {
	m := licence().FindStringSubmatch(source)
	if m == nil {
		return ""
	}
	return modinfo.Module{License: m[1]}.Flavour()
}

var licence = pattern.Of(`MODULE_LICENSE\("([^"]+)"\)`)

// CompilerIn returns the compiler that a kernel's configuration names; "" if it names none.
func CompilerIn(config string) string {
	_, after, _ := strings.Cut(config, "\nCONFIG_CC_VERSION_TEXT=\"")
	text, _, complete := strings.Cut(after, "\"\n")
	if !complete {
		return ""
	}
	return text
}

// SharedFolder is where a package of shared modules, which gpuadm mirror has built, has
// its modules, below the kernel's folder. depmod prefers the folder updates to the
// kernel's own modules.
const SharedFolder = "updates/gpuadm"

// IsShared says whether a module's file is from the package of shared modules.
func IsShared(file string) bool { return strings.Contains(file, "/"+SharedFolder+"/") }
