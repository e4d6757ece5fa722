// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Modules is what is known of NVIDIA's kernel modules: that of the driver that is loaded, those on
// disk, and who may sign them.
type Modules struct {
	Version   string          `json:"version,omitempty"`   // of the module nvidia that is loaded
	Nouveau   []string        `json:"nouveau,omitempty"`   // PCI addresses of GPUs that nouveau holds
	Kernels   []KernelModules `json:"kernels,omitempty"`   // of each installed kernel, newest first
	Libraries []Library       `json:"libraries,omitempty"` // what programs load
	Trust     Trust           `json:"trust"`
	Cache     *ModuleCache    `json:"-"` // the modules' files, read
}

// KernelModules is what one installed kernel has.
type KernelModules struct {
	Kernel   string      `json:"kernel"`
	Headers  bool        `json:"headers"`            // modules can be built for it
	Compiler string      `json:"compiler,omitempty"` // that it was built with: gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0
	Nvidia   *ModuleFile `json:"nvidia,omitempty"`   // the module that modprobe would load
	Files    []string    `json:"files,omitempty"`    // all of the family
	Unlisted []string    `json:"unlisted,omitempty"` // on disk, but depmod(8) does not know of them
	Missing  []string    `json:"missing,omitempty"`  // firmware the module asks for and that is not there
	Problem  string      `json:"problem,omitempty"`  // why the module's file cannot be read

	Infiniband []string `json:"infiniband,omitempty"` // which of mlx5_ib and ib_umad it has, as modules or built in
	Extra      bool     `json:"extra,omitempty"`      // Ubuntu's package linux-modules-extra of this kernel is installed
}

// Library is a user library of the driver.
type Library struct {
	Name    string `json:"name"` // libnvidia-ml.so, libcuda.so
	Version string `json:"version"`
	Path    string `json:"path"`
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

// ModuleCache remembers what module files say, and what versions programs say that they have, as
// long as their size and ctime stay: to unpack a module may take a second, and containerd --version
// takes 40 ms of processor time. nil remembers nothing.
type ModuleCache struct {
	mu       sync.Mutex
	seen     map[moduleKey]ModuleFile
	recalled bool // moduleRecord was read
	news     bool // it lacks something
}

// Read is ReadModule, which reads each file once.
func (c *ModuleCache) Read(v host.View, name string) (ModuleFile, error) {
	v = view.Machine(v) // a snapshot may have an older Stat than the content that is read now
	info, err := v.Stat(name)
	if err != nil {
		return ModuleFile{}, err
	}
	return c.once(v, moduleKey{name, info.Size, info.Ctime.UTC()}, func() (ModuleFile, error) { return ReadModule(v, name) })
}

// once reads what is not known of a file of this size and ctime.
func (c *ModuleCache) once(v host.View, key moduleKey, read func() (ModuleFile, error)) (ModuleFile, error) {
	if c == nil {
		return read()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if key.costly() {
		c.recall(v)
	}
	if m, ok := c.seen[key]; ok {
		return m, nil
	}
	m, err := read()
	if err == nil {
		c.keep(key, m)
	}
	return m, err
}

// Equal has comparisons of facts pass over what is remembered.
func (c *ModuleCache) Equal(*ModuleCache) bool { return true }

type moduleKey struct {
	Path  string    `json:"path"`
	Size  int64     `json:"size"`
	Ctime time.Time `json:"ctime"` // UTC
}

// costly says that a record is read faster than the file: not so of a module that is not packed, of
// which a few pages are read.
func (k moduleKey) costly() bool { return path.Ext(k.Path) != ".ko" }

// modules finds out about NVIDIA's kernel modules. Nothing is run, nothing asked of the driver.
func (l *look) modules(kernels Kernel, gpus []PCI, arch string, cache *ModuleCache) Modules {
	m := Modules{Libraries: l.libraries(arch), Trust: l.trust(), Cache: cache}
	if l.v.Live() {
		m.Version, _ = LoadedDriver(l.v)
	}
	for _, g := range gpus {
		if g.Display() && g.Driver == "nouveau" {
			m.Nouveau = append(m.Nouveau, g.Address)
		}
	}
	for _, k := range kernels.Installed {
		m.Kernels = append(m.Kernels, l.kernelModules(k, cache))
	}
	return m
}

// LoadedDriver returns version and flavour of the module nvidia that is loaded, "" if none is. The
// driver says in its own file which of the two it is; before R515 there was the proprietary one
// only.
func LoadedDriver(v host.View) (version, flavour string) {
	l := &look{v: v}
	version = l.attr("/sys/module/nvidia/version")
	switch said := l.attr("/proc/driver/nvidia/version"); {
	case version == "" || said == "":
	case strings.Contains(said, "Open Kernel Module"):
		flavour = "open"
	default:
		flavour = "proprietary"
	}
	return version, flavour
}

// role returns which of the modules a file is: nvidia, nvidia-uvm, …; "" if none. Packagers name
// them nvidia.ko.xz, nvidia-current-open-uvm.ko, nvidia-tesla-470-drm.ko, nvidia-legacy-390xx.ko.
func role(file string) string {
	is := family().FindStringSubmatch(path.Base(file))
	if is == nil {
		return ""
	}
	return "nvidia" + is[1]
}

var family = pattern.Of(`^nvidia(?:-legacy-[a-z0-9]+|-tesla(?:-\d+)?|-current)?(?:-open)?(-uvm|-modeset|-drm|-peermem|-fs)?\.ko(?:\.xz|\.zst|\.gz)?$`)

// NvidiaModule returns the file of the module nvidia that modprobe would load for a kernel, "" if
// there is none. What depmod(8) has chosen among several lies in modules.dep: its search order is
// depmod.d(5)'s.
func NvidiaModule(v host.View, kernel string) (string, error) { return ModuleOf(v, kernel, "nvidia") }

// ModuleOf is NvidiaModule for another one of the family: nvidia-peermem.
func ModuleOf(v host.View, kernel, of string) (string, error) {
	l := &look{v: v}
	for _, name := range l.listed("/lib/modules/" + kernel) {
		if role(name) == of {
			return name, l.err
		}
	}
	return "", l.err
}

// NvidiaModules returns the files of all the driver's modules that modprobe would load for a
// kernel.
func NvidiaModules(v host.View, kernel string) ([]string, error) {
	l := &look{v: v}
	return l.listed("/lib/modules/" + kernel), l.err
}

// InfinibandModules are the modules by which NVLink 5's switches are managed: the network card's
// InfiniBand half, and what programs send management datagrams through. Sources:
// https://github.com/NVIDIA/gpu-operator/issues/2781;
// https://github.com/spectrocloud/CanvOS/pull/700.
func InfinibandModules() []string { return []string{"mlx5_ib", "ib_umad"} }

// HasInfiniband returns which of InfinibandModules a kernel has, on disk as depmod(8) knows them or
// built in.
func HasInfiniband(v host.View, kernel string) ([]string, error) {
	l, dir := &look{v: v}, "/lib/modules/"+kernel
	return l.infiniband(dir, l.read(dir+"/modules.dep")), l.err
}

func (l *look) infiniband(dir string, dep []byte) (has []string) {
	builtin := l.read(dir + "/modules.builtin")
	for _, name := range InfinibandModules() {
		if file := []byte("/" + name + ".ko"); bytes.Contains(dep, file) || bytes.Contains(builtin, file) {
			has = append(has, name)
		}
	}
	return has
}

// listed returns the files of the family in modules.dep, by their absolute paths.
func (l *look) listed(dir string) (names []string) { return listedIn(dir, l.read(dir+"/modules.dep")) }

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

// kernelModules reads one kernel's modules.
func (l *look) kernelModules(kernel string, cache *ModuleCache) KernelModules {
	dir := "/lib/modules/" + kernel
	dep := l.read(dir + "/modules.dep")
	k := KernelModules{Kernel: kernel, Files: listedIn(dir, dep), Infiniband: l.infiniband(dir, dep)}
	k.Extra = l.has("/var/lib/dpkg/info/linux-modules-extra-" + kernel + ".md5sums") // goes when the package is removed; its list may stay
	k.Headers = l.has(dir + "/build/Makefile")
	k.Compiler = l.compiler(dir, kernel)
	for _, sub := range []string{"updates", "updates/dkms", SharedFolder, "extra", "extra/nvidia", "weak-updates", "kernel/drivers/video", "kernel/drivers/video/nvidia"} {
		for _, name := range l.names(path.Join(dir, sub)) {
			name = path.Join(dir, sub, name)
			if role(name) != "" && !slices.Contains(k.Files, name) {
				k.Unlisted = append(k.Unlisted, name)
			}
		}
	}
	for _, name := range k.Files {
		if role(name) != "nvidia" {
			continue
		}
		m, err := cache.Read(l.v, name)
		if err != nil {
			k.Problem = err.Error()
			break
		}
		k.Nvidia = &m
		for _, fw := range m.Firmware {
			if l.first("/lib/firmware/"+fw, "/lib/firmware/updates/"+fw, "/lib/firmware/"+fw+".zst", "/lib/firmware/"+fw+".xz") == "" {
				k.Missing = append(k.Missing, fw)
			}
		}
		break
	}
	return k
}

// compiler returns what a kernel was built with, from its own configuration: the running kernel's
// /proc/version is about another. Modules are to be built with the same compiler.
func (l *look) compiler(dir, kernel string) string {
	for _, name := range []string{dir + "/build/.config", "/boot/config-" + kernel, dir + "/config"} {
		if text := CompilerIn(string(l.read(name))); text != "" {
			return text
		}
	}
	return ""
}

// CompilerIn is the compiler that a kernel's configuration names; "" where it names none.
func CompilerIn(config string) string {
	_, after, ok := strings.Cut(config, "\nCONFIG_CC_VERSION_TEXT=\"")
	if text, _, ends := strings.Cut(after, "\"\n"); ok && ends {
		return text
	}
	return ""
}

// libraries finds which version of the user libraries programs load: the file that the library's
// link leads to.
func (l *look) libraries(arch string) (found []Library) {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
	for _, lib := range []string{"libnvidia-ml.so", "libcuda.so"} {
		for _, dir := range []string{"/usr/lib/" + triplet, "/usr/lib64", "/usr/lib", "/usr/lib/" + triplet + "/nvidia/current"} {
			file, err := l.v.Resolve(path.Join(dir, lib+".1"))
			version, ok := strings.CutPrefix(path.Base(file), lib+".")
			if err != nil || !ok || !strings.Contains(version, ".") || !l.has(file) {
				continue
			}
			found = append(found, Library{lib, version, file})
			break
		}
	}
	return found
}
