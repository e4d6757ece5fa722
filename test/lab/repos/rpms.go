// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

// rpmLibs is where a RHEL has its libraries.
const rpmLibs = "/usr/lib64/"

// rpmDriver are the packages of one driver, named as in NVIDIA's repositories for RHEL 8 and 9.
// Source: NVIDIA driver installation guide, chapter Red Hat Enterprise Linux.
func (in parts) rpmDriver(v string) ([]Package, error) {
	var list []Package
	add := func(p Package) { p.Version = v; list = append(list, p) }
	cuda := []string{"nvidia-kmod-common", "nvidia-modprobe", "nvidia-persistenced"}
	for _, lib := range []struct{ name, so, link string }{
		{"nvidia-driver-cuda-libs", "libcuda.so", "libcuda.so.1"},
		{"libnvidia-ml", "libnvidia-ml.so", "libnvidia-ml.so.1"},
		{"libnvidia-cfg", "libnvidia-cfg.so", "libnvidia-cfg.so.1"},
		{"libnvidia-gpucomp", "libnvidia-gpucomp.so", ""},
	} {
		files, err := in.lib(rpmLibs, lib.so, lib.link, v)
		if err != nil {
			return nil, err
		}
		add(Package{Name: lib.name, Files: files, After: "ldconfig"})
		cuda = append(cuda, lib.name)
	}
	add(Package{Name: "nvidia-open", Same: []string{"nvidia-driver", "kmod-nvidia-open-dkms"}})
	add(Package{Name: "cuda-drivers", Same: []string{"nvidia-driver", "kmod-nvidia-latest-dkms"}})
	add(Package{Name: "nvidia-driver", Same: []string{"nvidia-driver-cuda", "nvidia-driver-libs"}})
	add(Package{Name: "nvidia-driver-libs"})
	add(Package{Name: "nvidia-driver-cuda", Same: append(cuda, "nvidia-kmod"), Files: map[string]File{"/usr/bin/nvidia-smi": smi()}})
	add(Package{Name: "nvidia-modprobe", Files: map[string]File{"/usr/bin/nvidia-modprobe": in.program("nvidia-modprobe:  version " + v)}})
	common := firmware(v)
	common["/usr/lib/modprobe.d/nvidia.conf"] = File{Text: "blacklist nouveau\n"}
	add(Package{Name: "nvidia-kmod-common", Files: common})
	add(Package{
		Name: "nvidia-persistenced", Files: in.daemon("nvidia-persistenced", "nvidia-persistenced:  version "+v),
		After: rpmStart("nvidia-persistenced"), Gone: rpmStop("nvidia-persistenced"),
	})
	for name, license := range map[string]string{"kmod-nvidia-open-dkms": "Dual MIT/GPL", "kmod-nvidia-latest-dkms": "NVIDIA"} {
		other := map[string]string{"kmod-nvidia-open-dkms": "kmod-nvidia-latest-dkms", "kmod-nvidia-latest-dkms": "kmod-nvidia-open-dkms"}[name]
		add(Package{
			Name: name, Same: []string{"nvidia-kmod-common"}, Any: []string{"dkms"}, Provides: []string{"nvidia-kmod"}, Conflicts: []string{other},
			Files: moduleSource(v, license), After: failing(v) + rpmModule(v), Gone: dkmsRemove(v),
		})
	}
	return list, nil
}

// rpmCompanions are what must have the driver's version, and is in packages of its own.
func (in parts) rpmCompanions(v string) []Package {
	suffix, fabric := "", "nvidia-fabricmanager"
	if branch(v) < "580" {
		suffix, fabric = "-"+branch(v), "nvidia-fabric-manager"
	}
	file := func(name string) map[string]File {
		return map[string]File{rpmLibs + name + ".so." + v: {Text: v + "\n"}}
	}
	return []Package{
		{
			Name: fabric, Version: v, Plain: true, Instead: "nvidia-fabricmanager-any",
			Files: in.daemon("nv-fabricmanager", "Fabric Manager version is : "+v, "nvidia-fabricmanager"),
			After: rpmStart("nvidia-fabricmanager"), Gone: rpmStop("nvidia-fabricmanager"),
		},
		{Name: "libnvidia-nscq" + suffix, Version: v, Plain: true, Instead: "libnvidia-nscq-any", Files: file("libnvidia-nscq")},
		{Name: "libnvsdm" + suffix, Version: v, Plain: true, Instead: "libnvsdm-any", Files: file("libnvsdm")},
		{
			Name: "nvidia-imex" + suffix, Version: v, Plain: true, Instead: "nvidia-imex-any",
			Files: in.daemon("nvidia-imex", "IMEX version is: "+v), After: rpmStart("nvidia-imex"), Gone: rpmStop("nvidia-imex"),
		},
	}
}

// rpmOthers are what has a version of its own.
func rpmOthers() []Package {
	return []Package{
		{Name: "nvlsm", Version: "2025.06.11", Plain: true, Files: map[string]File{"/usr/share/nvlsm/version": {Text: "2025.06.11\n"}}},
		{Name: "infiniband-diags", Version: "48.0", Plain: true},
	}
}

// rpmToolkit are the packages of one container toolkit.
func (in parts) rpmToolkit(v string) []Package {
	return []Package{
		{Name: "libnvidia-container1", Version: v, Plain: true, Files: map[string]File{rpmLibs + "libnvidia-container.so." + v: {Text: v + "\n"}}},
		{
			Name: "libnvidia-container-tools", Version: v, Plain: true, Same: []string{"libnvidia-container1"},
			Files: map[string]File{"/usr/bin/nvidia-container-cli": in.program("cli-version: " + v)},
		},
		{Name: "nvidia-container-toolkit-base", Version: v, Plain: true, Files: in.toolkit(v)},
		{
			Name: "nvidia-container-toolkit", Version: v, Plain: true, Same: []string{"nvidia-container-toolkit-base", "libnvidia-container-tools"},
			Files: map[string]File{"/usr/bin/nvidia-container-runtime-hook": in.program("NVIDIA Container Runtime Hook version " + v)},
		},
	}
}

// rpmModule has dkms build the module as NVIDIA's spec file does: for the running kernel, and whatever comes of it.
func rpmModule(v string) string {
	return "if command -v dkms >/dev/null; then\n\tdkms add -m nvidia -v " + v + " -q || :\n\tdkms build -m nvidia -v " + v +
		" -q || :\n\tdkms install -m nvidia -v " + v + " -q --force || :\nfi\n"
}

// rpmStart is what RPM packages do for a unit: nothing but an upgrade restarts it, and a preset, which RHEL has none of
// for NVIDIA's, would enable it. Source: systemd's macros.systemd
func rpmStart(unit string) string {
	return "if [ -d /run/systemd/system ]; then\n\tsystemctl daemon-reload || :\n\tif [ \"$1\" -ge 2 ]; then systemctl try-restart " +
		unit + ".service || :; fi\nfi\n"
}

func rpmStop(unit string) string {
	return "if [ \"$1\" -eq 0 ] && [ -d /run/systemd/system ]; then systemctl disable --now " + unit + ".service >/dev/null 2>&1 || :; fi\n"
}
