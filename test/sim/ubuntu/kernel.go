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
	said := map[string]string{}
	for i, a := range args {
		if strings.HasPrefix(a, "-") && i+1 < len(args) {
			said[a] = args[i+1]
		}
	}

	name, v, kernel := said["-m"], said["-v"], said["-k"]
	if args[0] == "autoinstall" {
		return autoinstall(m, args[1:])
	}
	tree := "/var/lib/dkms/" + name + "/" + v
	src := "/usr/src/" + name + "-" + v
	built := tree + "/" + kernel
	switch args[0] {
	case "add":
		if m.has(tree) {
			return m.refuse(3, "DKMS tree already contains: %s-%s", name, v)
		}
		if !m.has(src + "/dkms.conf") {
			return m.refuse(2, "Could not find module source directory.")
		}
		return errors.Join(m.folders(tree), m.Symlink(tree+"/source", src))
	case "build", "install":
		if !m.has(tree) {
			if err := dkms(m, []string{"add", "-m", name, "-v", v}); err != nil {
				return err
			}
		}

		if slices.Contains(strings.Fields(m.text("/simulated-net/nobuild")), v) {
			log := fmt.Sprintf("DKMS make.log for %s-%s for kernel %s (x86_64)\n", name, v, kernel)
			log += "nvidia.c:1:1: error: implicit declaration of function 'vma'\nmake: *** [Makefile:1: modules] Error 2\n"
			refused := m.refuse(10, "Bad return status for module build on kernel: %s (x86_64)", kernel)
			fmt.Fprintf(&m.err, "Consult %s/build/make.log for more information.\n", tree)
			return errors.Join(m.put(tree+"/build/make.log", log), refused)
		}

		license := "NVIDIA"
		if strings.Contains(m.text(src+"/lab.h"), "Dual MIT/GPL") {
			license = "Dual MIT/GPL"
		}
		for _, module := range modules {
			ko := string(kmodule.Nvidia(v, license, kernel))
			err := m.put(built+"/x86_64/module/"+module+".ko", ko)
			if err == nil && args[0] == "install" {
				err = m.put("/lib/modules/"+kernel+"/updates/dkms/"+module+".ko", ko)
			}
			if err != nil {
				return err
			}
		}

		if link := "/var/lib/dkms/" + name + "/kernel-" + kernel + "-x86_64"; args[0] == "install" {
			_ = m.Remove(link)
			if err := m.Symlink(link, v+"/"+kernel+"/x86_64"); err != nil {
				return err
			}
		}
	case "uninstall", "remove":
		if !m.has(tree) {
			return m.refuse(3, "The module/version combo: %s-%s is not located in the DKMS tree.", name, v)
		}
		kernels := []string{kernel}
		if slices.Contains(args, "--all") {
			kernels, _ = m.ReadDir("/lib/modules")
		}
		for _, k := range kernels {
			link := "/var/lib/dkms/" + name + "/kernel-" + k + "-x86_64"
			if to, err := m.Readlink(link); err == nil && strings.HasPrefix(to, v+"/") {
				if err := m.drop(append(m.under("/lib/modules/"+k+"/updates/dkms"), link)...); err != nil {
					return err
				}
			}

			if args[0] == "remove" {
				if err := m.drop(m.under(tree + "/" + k)...); err != nil {
					return err
				}
			}
		}

		if names, _ := m.ReadDir(tree); args[0] == "remove" && !slices.ContainsFunc(names, func(n string) bool { return n != "source" && n != "build" }) {
			if err := m.drop(append(m.under(tree+"/build"), tree+"/source")...); err != nil {
				return err
			}
		}
	}

	return m.depmod()
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
