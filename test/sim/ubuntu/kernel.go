// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/kmodule"
)

// modules are those that NVIDIA's dkms.conf builds.
var modules = []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"}

// kernels are those that have headers.
func (m *machine) kernels() []string {
	names, _ := m.ReadDir("/lib/modules")
	return slices.DeleteFunc(names, func(k string) bool {
		return !m.has("/lib/modules/" + k + "/build/Makefile")
	})
}

// dkms is dkms(8), as far as it adds, builds, installs and removes NVIDIA's modules.
func dkms(m *machine, args []string) error {
	command := args[0]
	if command == "autoinstall" {
		return autoinstall(m, args[1:])
	}

	options := map[string]string{}
	for i, a := range args {
		if strings.HasPrefix(a, "-") && i+1 < len(args) {
			options[a] = args[i+1]
		}
	}
	d := dkmsModule{
		m:       m,
		name:    options["-m"],
		version: options["-v"],
	}

	var err error
	switch command {
	case "add":
		return d.add()
	case "build":
		err = d.build(options["-k"])
	case "install":
		err = d.install(options["-k"])
	case "uninstall":
		err = d.uninstall(d.kernels(options["-k"], args))
	case "remove":
		err = d.remove(d.kernels(options["-k"], args))
	}
	if err != nil {
		return err
	}
	return m.depmod()
}

// dkmsModule is what dkms knows as NAME/VERSION: a driver's modules.
type dkmsModule struct {
	m             *machine
	name, version string
}

func (d dkmsModule) tree() string   { return "/var/lib/dkms/" + d.name + "/" + d.version }
func (d dkmsModule) source() string { return "/usr/src/" + d.name + "-" + d.version }

// link leads to the version that is installed for a kernel.
func (d dkmsModule) link(kernel string) string {
	return "/var/lib/dkms/" + d.name + "/kernel-" + kernel + "-x86_64"
}

// kernels are those that a command names.
func (d dkmsModule) kernels(kernel string, args []string) []string {
	if slices.Contains(args, "--all") {
		all, _ := d.m.ReadDir("/lib/modules")
		return all
	}
	return []string{kernel}
}

func (d dkmsModule) add() error {
	if d.m.has(d.tree()) {
		return d.m.refuse(3, "DKMS tree already contains: %s-%s", d.name, d.version)
	}
	if !d.m.has(d.source() + "/dkms.conf") {
		return d.m.refuse(2, "Could not find module source directory.")
	}
	return errors.Join(d.m.folders(d.tree()), d.m.Symlink(d.tree()+"/source", d.source()))
}

func (d dkmsModule) build(kernel string) error {
	if !d.m.has(d.tree()) {
		err := d.add()
		if err != nil {
			return err
		}
	}

	doNotBuild := strings.Fields(d.m.text("/simulated-net/nobuild"))
	if slices.Contains(doNotBuild, d.version) {
		return d.failBuild(kernel)
	}
	for _, module := range modules {
		err := d.m.put(d.tree()+"/"+kernel+"/x86_64/module/"+module+".ko", d.built(kernel))
		if err != nil {
			return err
		}
	}
	return nil
}

// built is a module as the compiler makes it.
func (d dkmsModule) built(kernel string) string {
	license := "NVIDIA"
	if strings.Contains(d.m.text(d.source()+"/lab.h"), "Dual MIT/GPL") {
		license = "Dual MIT/GPL"
	}
	return string(kmodule.Nvidia(d.version, license, kernel))
}

// failBuild is the end of a build whose source does not compile.
func (d dkmsModule) failBuild(kernel string) error {
	log := fmt.Sprintf("DKMS make.log for %s-%s for kernel %s (x86_64)\n", d.name, d.version, kernel)
	log += "nvidia.c:1:1: error: implicit declaration of function 'vma'\nmake: *** [Makefile:1: modules] Error 2\n"
	refused := d.m.refuse(10, "Bad return status for module build on kernel: %s (x86_64)", kernel)
	fmt.Fprintf(&d.m.err, "Consult %s/build/make.log for more information.\n", d.tree())
	return errors.Join(d.m.put(d.tree()+"/build/make.log", log), refused)
}

func (d dkmsModule) install(kernel string) error {
	err := d.build(kernel)
	if err != nil {
		return err
	}
	for _, module := range modules {
		err := d.m.put("/lib/modules/"+kernel+"/updates/dkms/"+module+".ko", d.built(kernel))
		if err != nil {
			return err
		}
	}

	link := d.link(kernel)
	_ = d.m.Remove(link)
	return d.m.Symlink(link, d.version+"/"+kernel+"/x86_64")
}

func (d dkmsModule) uninstall(kernels []string) error {
	if !d.m.has(d.tree()) {
		return d.m.refuse(3, "The module/version combo: %s-%s is not located in the DKMS tree.", d.name, d.version)
	}
	for _, kernel := range kernels {
		link := d.link(kernel)
		to, err := d.m.Readlink(link)
		isInstalled := err == nil && strings.HasPrefix(to, d.version+"/")
		if !isInstalled {
			continue
		}
		files := d.m.under("/lib/modules/" + kernel + "/updates/dkms")
		err = d.m.drop(append(files, link)...)
		if err != nil {
			return err
		}
	}
	return nil
}

// remove uninstalls and drops what was built; with the last kernel the version leaves the tree.
func (d dkmsModule) remove(kernels []string) error {
	err := d.uninstall(kernels)
	if err != nil {
		return err
	}
	for _, kernel := range kernels {
		err := d.m.drop(d.m.under(d.tree() + "/" + kernel)...)
		if err != nil {
			return err
		}
	}

	isKernel := func(name string) bool { return name != "source" && name != "build" }
	names, _ := d.m.ReadDir(d.tree())
	if slices.ContainsFunc(names, isKernel) {
		return nil
	}
	return d.m.drop(append(d.m.under(d.tree()+"/build"), d.tree()+"/source")...)
}

// autoinstall builds what the tree has for the running kernel, which must have headers: dkms(8).
func autoinstall(m *machine, options []string) error {
	kernel := strings.TrimSpace(m.text("/proc/sys/kernel/osrelease"))
	if !m.has("/lib/modules/" + kernel + "/build/Makefile") {
		return m.refuse(1, "Your kernel headers for kernel %s cannot be found at /lib/modules/%s/build.", kernel, kernel)
	}
	versions, _ := m.ReadDir("/var/lib/dkms/nvidia")
	for _, v := range versions {
		if !m.has("/var/lib/dkms/nvidia/" + v + "/source") {
			continue
		}
		argv := []string{"install", "-m", "nvidia", "-v", v, "-k", kernel}
		if err := dkms(m, append(argv, options...)); err != nil {
			return err
		}
	}

	return nil
}

// refuse says why, and ends the program as dkms ends: TestDKMS compares the codes.
func (m *machine) refuse(code int, format string, values ...any) error {
	fmt.Fprintf(&m.err, "Error! "+format+"\n", values...)
	return failure(code)
}

// depmod is depmod(8), --all.
func depmod(m *machine, _ []string) error { return m.depmod() }

// depmod lists the modules of every kernel.
func (m *machine) depmod() error {
	names, _ := m.ReadDir("/lib/modules")
	for _, k := range names {
		dir := "/lib/modules/" + k
		if !m.has(dir + "/modules.dep") {
			continue
		}
		var text string
		for line := range strings.Lines(m.text(dir + "/modules.dep")) {
			if !strings.HasPrefix(line, "updates/") {
				text += line
			}
		}

		for _, file := range m.under(dir + "/updates") {
			text += strings.TrimPrefix(file, dir+"/") + ":\n"
		}
		if err := m.put(dir+"/modules.dep", text); err != nil {
			return err
		}
	}

	return nil
}

var moduleVersion = regexp.MustCompile("version=([0-9.]+)\x00")

// modprobe loads a module of the running kernel, once; nvidia takes the GPUs.
func modprobe(m *machine, args []string) error {
	name := strings.ReplaceAll(args[len(args)-1], "_", "-")
	if args[0] == "-r" {
		return rmmod(m, []string{name})
	}
	kernel := strings.TrimSpace(m.text("/proc/sys/kernel/osrelease"))
	ko := cmp.Or(m.text("/lib/modules/"+kernel+"/updates/dkms/"+name+".ko"), m.text("/lib/modules/"+kernel+"/updates/gpuadm/"+name+".ko"))
	if ko == "" && m.has("/lib/modules/"+kernel+"/updates/dkms/"+name+".ko") { // its content was not recorded
		ko = m.text("/lib/modules/" + kernel + "/updates/dkms/nvidia.ko")
	}
	if ko == "" {
		fmt.Fprintf(&m.err, "modprobe: FATAL: Module %s not found in directory /lib/modules/%s\n", name, kernel)
		return failure(1)
	}
	dir := "/sys/module/" + strings.ReplaceAll(name, "-", "_")
	if m.has(dir) {
		return nil
	}
	v := moduleVersion.FindStringSubmatch(ko)[1]
	if err := errors.Join(m.put(dir+"/refcnt", "0\n"), m.put(dir+"/version", v+"\n")); err != nil || name != "nvidia" {
		return err
	}
	flavour := "Kernel Module"
	if strings.Contains(ko, "Dual MIT/GPL") {
		flavour = "Open Kernel Module"
	}
	if err := m.put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX "+flavour+" for x86_64  "+v+"\n"); err != nil {
		return err
	}
	return m.bind("DRIVER=nvidia\n")
}

func rmmod(m *machine, args []string) error {
	name := strings.ReplaceAll(args[0], "-", "_")
	if err := m.drop(m.under("/sys/module/" + name)...); err != nil || name != "nvidia" {
		return err
	}
	return errors.Join(m.Remove("/proc/driver/nvidia/version"), m.bind(""))
}

// bind says which driver the GPUs have.
func (m *machine) bind(driver string) error {
	gpus, _ := m.ReadDir("/sys/bus/pci/devices")
	for _, gpu := range gpus {
		name := "/sys/bus/pci/devices/" + gpu + "/uevent"
		if text := m.text(name); strings.Contains(text, "PCI_ID=10DE:") {
			if err := m.WriteFile(name, []byte(driver+strings.TrimPrefix(text, "DRIVER=nvidia\n")), host.Attr{Mode: 0o644}); err != nil {
				return err
			}
		}
	}

	return nil
}

// initramfs writes the image again: update-initramfs(8).
func initramfs(m *machine, args []string) error {
	return m.WriteFile("/boot/initrd.img-"+args[len(args)-1], nil, host.Attr{Mode: 0o644})
}
