// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"maps"
	"strings"
)

// add adds files to a package.
func (p *Package) add(files map[string]File) {
	if p.Files == nil {
		p.Files = map[string]File{}
	}
	maps.Copy(p.Files, files)
}

// addLibraries adds shared libraries of the driver, which ldconfig then links.
func (in parts) addLibraries(p *Package, dir, version string, names ...string) error {
	for _, name := range names {
		files, err := in.lib(dir, name+".so", soname(name), version)
		if err != nil {
			return err
		}
		p.add(files)
		p.After = "ldconfig"
	}
	return nil
}

// aptRole gives a package what it does: libraries, programs, daemons, the module's source. has
// tells of another name.
func (in parts) aptRole(p *Package, v string, has func(string) bool) error {
	if lib, ok := soleLibraries()[p.Name]; ok {
		return in.addLibraries(p, debLibs(), v, lib)
	}

	role := base(p.Name)
	switch role {
	case "libnvidia-compute":
		return in.computeRole(p, v, has)
	case "libnvidia-cfg1", "libnvidia-gpucomp":
		return in.addLibraries(p, debLibs(), v, strings.TrimSuffix(role, "1"))
	case "nvidia-utils", "nvidia-driver-cuda", "nvidia-smi":
		p.add(map[string]File{"/usr/bin/nvidia-smi": smi()})
	case "nvidia-modprobe":
		p.add(map[string]File{"/usr/bin/nvidia-modprobe": in.program("nvidia-modprobe:  version " + v)})
	case "nvidia-compute-utils":
		if !has("nvidia-persistenced") {
			in.persistenced(p, v)
		}
	case "nvidia-persistenced":
		in.persistenced(p, v)
	case "nvidia-kernel-common", "nvidia-kernel-support":
		p.add(map[string]File{"/usr/lib/modprobe.d/nvidia.conf": {Text: "blacklist nouveau\n"}})
	case "nvidia-firmware", "firmware-nvidia-gsp":
		p.add(firmware(v))
	case "nvidia-fabricmanager":
		p.add(in.fabricManager(v))
		p.After = "[ ! -d /run/systemd/system ] || systemctl daemon-reload"
		p.Gone = debStop("nvidia-fabricmanager")
	case "nvidia-imex", "imex":
		p.add(in.daemon("nvidia-imex", "IMEX version is: "+v))
		p.Gone = debStop("nvidia-imex")
	case "libnvidia-nscq", "libnvsdm":
		p.add(map[string]File{debLibs() + role + ".so." + v: {Text: v + "\n"}})
	case "nvlsm":
		p.add(map[string]File{"/usr/share/nvlsm/version": {Text: v + "\n"}})
	case "nvidia-kernel-source":
		p.add(moduleSource(v, license(isOpen(p.Name))))
	case "nvidia-dkms":
		p.After = debModule(p.Name, v)
		p.Gone = dkmsRemove(v)
	case "nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms", "nvidia-kernel-dkms":
		p.add(moduleSource(v, license(role != "nvidia-kernel-dkms")))
		p.After = debModule(p.Name, v)
		p.Gone = dkmsRemove(v)
	}

	pinned, isPin := strings.CutPrefix(p.Name, "nvidia-driver-pinning-")
	if isPin {
		p.add(map[string]File{"/etc/apt/preferences.d/" + p.Name: {
			Text: "Package: *nvidia* cuda-drivers* libcuda* \nPin: version " + pinned + "*\nPin-Priority: 1000\n",
		}})
	}

	return nil
}

// computeRole gives libnvidia-compute its libraries, and what other packages of its edition do not
// have.
func (in parts) computeRole(p *Package, v string, has func(string) bool) error {
	libs := []string{"libcuda", "libnvidia-ml", "libnvidia-nvvm", "libnvidia-ptxjitcompiler"}
	if !has("libnvidia-gpucomp" + decoration(p.Name)) {
		libs = append(libs, "libnvidia-gpucomp")
	}
	if !has("nvidia-utils" + decoration(p.Name)) {
		p.add(map[string]File{"/usr/bin/nvidia-smi": smi()})
	}
	return in.addLibraries(p, debLibs(), v, libs...)
}

func (in parts) fabricManager(v string) map[string]File {
	return in.daemonOfUnit("nvidia-fabricmanager", "nv-fabricmanager", "Fabric Manager version is : "+v)
}

// soleLibraries are Debian's packages of one library each.
func soleLibraries() map[string]string {
	return map[string]string{
		"libcuda1":                  "libcuda",
		"libnvidia-ml1":             "libnvidia-ml",
		"libnvidia-cfg1":            "libnvidia-cfg",
		"libnvidia-nvvm4":           "libnvidia-nvvm",
		"libnvidia-ptxjitcompiler1": "libnvidia-ptxjitcompiler",
		"libnvidia-gpucomp":         "libnvidia-gpucomp",
	}
}

// soname is the name that programs ask for; "" where they ask for the file of one version.
func soname(lib string) string {
	switch lib {
	case "libnvidia-gpucomp":
		return ""
	case "libnvidia-nvvm":
		return lib + ".so.4"
	}
	return lib + ".so.1"
}

func (in parts) persistenced(p *Package, v string) {
	p.add(in.daemon("nvidia-persistenced", "nvidia-persistenced:  version "+v))
	p.After = debStart("nvidia-persistenced")
	p.Gone = debStop("nvidia-persistenced")
}

// rpmRole is aptRole for dnf's packages.
func (in parts) rpmRole(p *Package, v string) error {
	name := strings.TrimSuffix(p.Name, "-"+branch(v))
	if err := in.addLibraries(p, rpmLibs, v, rpmLibraries()[name]...); err != nil {
		return err
	}

	switch name {
	case "nvidia-driver-cuda":
		p.Files = map[string]File{"/usr/bin/nvidia-smi": smi()}
	case "nvidia-modprobe":
		p.Files = map[string]File{"/usr/bin/nvidia-modprobe": in.program("nvidia-modprobe:  version " + v)}
	case "nvidia-persistenced":
		p.Files = in.daemon(name, name+":  version "+v)
		p.After = rpmStart(name)
		p.Gone = rpmStop(name)
	case "nvidia-kmod-common":
		p.Files = firmware(v)
		p.Files["/usr/lib/modprobe.d/nvidia.conf"] = File{Text: "blacklist nouveau\n"}
	case "nvidia-fabricmanager", "nvidia-fabric-manager":
		p.Files = in.fabricManager(v)
		p.After = rpmStart("nvidia-fabricmanager")
		p.Gone = rpmStop("nvidia-fabricmanager")
	case "nvidia-imex":
		p.Files = in.daemon(name, "IMEX version is: "+v)
		p.After = rpmStart(name)
		p.Gone = rpmStop(name)
	case "libnvidia-nscq", "libnvsdm":
		p.Files = map[string]File{rpmLibs + name + ".so." + v: {Text: v + "\n"}}
	case "nvlsm":
		p.Files = map[string]File{"/usr/share/nvlsm/version": {Text: v + "\n"}}
	case "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms":
		p.Files = moduleSource(v, license(name == "kmod-nvidia-open-dkms"))
		p.After = rpmModule(v)
		p.Gone = dkmsRemove(v)
	}

	return nil
}

// rpmLibraries are the libraries in NVIDIA's RPM packages: nvidia-driver.spec of
// negativo17/nvidia-driver on GitHub at 535.54.03, 570.133.07, 580.95.05 and 610.43.02, by the
// author of NVIDIA's.
func rpmLibraries() map[string][]string {
	return map[string][]string{
		"nvidia-driver-cuda-libs": {"libcuda"},
		"nvidia-driver-NVML":      {"libnvidia-ml"},
		"libnvidia-ml":            {"libnvidia-ml"},
		"libnvidia-cfg":           {"libnvidia-cfg"},
		"libnvidia-gpucomp":       {"libnvidia-gpucomp"},
		"nvidia-driver-common":    {"libnvidia-cfg", "libnvidia-gpucomp", "libnvidia-ml"},
	}
}
