// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"runtime"
	"strings"
)

// Drivers are the versions of the driver there are, the oldest first: two of a branch, one whose module package does not
// configure (see BadDriver), and an older and a newer branch.
func Drivers() []string {
	return []string{"570.172.08", "580.65.06", "580.95.05", BadDriver, "590.48.01"}
}

// BadDriver is the version whose module package fails when it is configured, unless the file LetPass is there.
const (
	BadDriver = "580.105.08"
	LetPass   = "/run/let-postinst-pass"
)

// Gone is the version that the repository Vanished has no more.
const Gone = "580.95.05"

// Toolkits are the versions of the container toolkit there are.
func Toolkits() []string { return []string{"1.18.0", "1.18.1"} }

// debLibs is where Debian has its libraries.
func debLibs() string {
	return "/usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu/"
}

// debDriver are the packages of one driver, named as in NVIDIA's repositories for Debian 12 and 13: the metapackages
// nvidia-open and cuda-drivers, what computing alone needs, and what must have the driver's very version.
// Source: NVIDIA driver installation guide, chapter Debian.
func (in parts) debDriver(v string) ([]Package, error) {
	var list []Package
	add := func(p Package) { p.Version = v; list = append(list, p) }
	libs := []struct{ name, so, link string }{
		{"libcuda1", "libcuda.so", "libcuda.so.1"},
		{"libnvidia-ml1", "libnvidia-ml.so", "libnvidia-ml.so.1"},
		{"libnvidia-cfg1", "libnvidia-cfg.so", "libnvidia-cfg.so.1"},
		{"libnvidia-nvvm4", "libnvidia-nvvm.so", "libnvidia-nvvm.so.4"},
		{"libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so", "libnvidia-ptxjitcompiler.so.1"},
		{"libnvidia-gpucomp", "libnvidia-gpucomp.so", ""},
	}
	cuda := []string{"nvidia-kernel-support", "nvidia-modprobe", "nvidia-persistenced"}
	for _, lib := range libs {
		files, err := in.lib(debLibs(), lib.so, lib.link, v)
		if err != nil {
			return nil, err
		}
		add(Package{Name: lib.name, Files: files, After: "ldconfig"})
		cuda = append(cuda, lib.name)
	}
	add(Package{Name: "nvidia-open", Same: []string{"nvidia-driver", "nvidia-kernel-open-dkms"}})
	add(Package{Name: "cuda-drivers", Same: []string{"nvidia-driver", "nvidia-kernel-dkms"}})
	add(Package{Name: "nvidia-driver", Same: []string{"nvidia-driver-cuda", "nvidia-driver-libs"}})
	add(Package{Name: "nvidia-driver-libs"})
	add(Package{Name: "nvidia-driver-cuda", Same: cuda, Files: map[string]File{"/usr/bin/nvidia-smi": smi()}})
	add(Package{Name: "nvidia-modprobe", Files: map[string]File{"/usr/bin/nvidia-modprobe": in.program("nvidia-modprobe:  version " + v)}})
	add(Package{Name: "nvidia-kernel-support", Files: map[string]File{"/usr/lib/modprobe.d/nvidia.conf": {Text: "blacklist nouveau\n"}}})
	add(Package{Name: "firmware-nvidia-gsp", Files: firmware(v)})
	add(Package{
		Name: "nvidia-persistenced", Files: in.daemon("nvidia-persistenced", "nvidia-persistenced:  version "+v),
		After: debStart("nvidia-persistenced"), Gone: debStop("nvidia-persistenced"),
	})
	for name, license := range map[string]string{"nvidia-kernel-open-dkms": "Dual MIT/GPL", "nvidia-kernel-dkms": "NVIDIA"} {
		other := map[string]string{"nvidia-kernel-open-dkms": "nvidia-kernel-dkms", "nvidia-kernel-dkms": "nvidia-kernel-open-dkms"}[name]
		add(Package{
			Name: name, Same: []string{"firmware-nvidia-gsp", "nvidia-kernel-support"}, Any: []string{"dkms"}, Conflicts: []string{other},
			Files: moduleSource(v, license), After: failing(v) + debModule(name, v), Gone: dkmsRemove(v),
		})
	}
	add(Package{Name: "nvidia-driver-pinning-" + v, Files: map[string]File{
		"/etc/apt/preferences.d/nvidia-driver-pinning-" + v: {Text: "Package: *nvidia* cuda-drivers* libcuda* \nPin: version " + v + "-1\nPin-Priority: 1000\n"},
	}})
	return append(list, in.debCompanions(v)...), nil
}

// debCompanions are what must have the driver's version and is in packages of its own. Up to 570 their names end in the
// branch: NVIDIA's repositories for Debian.
func (in parts) debCompanions(v string) []Package {
	suffix := ""
	if branch(v) < "580" {
		suffix = "-" + branch(v)
	}
	list := []Package{
		{
			Name: "nvidia-fabricmanager" + suffix, Version: v,
			Files: in.daemon("nv-fabricmanager", "Fabric Manager version is : "+v, "nvidia-fabricmanager"),
			After: "[ ! -d /run/systemd/system ] || systemctl daemon-reload", Gone: debStop("nvidia-fabricmanager"),
		},
		{Name: "libnvidia-nscq" + suffix, Version: v, Files: map[string]File{debLibs() + "libnvidia-nscq.so." + v: {Text: v + "\n"}}},
		{Name: "libnvsdm" + suffix, Version: v, Files: map[string]File{debLibs() + "libnvsdm.so." + v: {Text: v + "\n"}}},
		{Name: "nvidia-imex" + suffix, Version: v, Files: in.daemon("nvidia-imex", "IMEX version is: "+v), Gone: debStop("nvidia-imex")},
	}
	for i, p := range list { // those of two eras have the same files
		list[i].Instead = strings.TrimSuffix(p.Name, suffix) + "-any"
	}
	return list
}

// debOthers are what has a version of its own.
func debOthers() []Package {
	return []Package{
		{Name: "nvlsm", Version: "2025.06.11", Files: map[string]File{"/usr/share/nvlsm/version": {Text: "2025.06.11\n"}}},
		{Name: "infiniband-diags", Version: "44.0"},
		// These are here for hosts without headers, where Debian's own cannot build anything either.
		{Name: "dkms", Version: "0.lab"},
		{Name: "gcc", Version: "0.lab"},
		{Name: "make", Version: "0.lab"},
	}
}

// debToolkit are the packages of one container toolkit, as in NVIDIA's repository libnvidia-container.
func (in parts) debToolkit(v string) []Package {
	return []Package{
		{Name: "libnvidia-container1", Version: v, Files: map[string]File{debLibs() + "libnvidia-container.so." + v: {Text: v + "\n"}}},
		{
			Name: "libnvidia-container-tools", Version: v, Same: []string{"libnvidia-container1"},
			Files: map[string]File{"/usr/bin/nvidia-container-cli": in.program("cli-version: " + v)},
		},
		{Name: "nvidia-container-toolkit-base", Version: v, Files: in.toolkit(v)},
		{
			Name: "nvidia-container-toolkit", Version: v, Same: []string{"nvidia-container-toolkit-base", "libnvidia-container-tools"},
			Files: map[string]File{"/usr/bin/nvidia-container-runtime-hook": in.program("NVIDIA Container Runtime Hook version " + v)},
		},
	}
}

// failing is what BadDriver does when it is configured.
func failing(version string) string {
	if version != BadDriver {
		return ""
	}
	return "if [ ! -e " + LetPass + " ]; then\n\techo 'Error! Bad return status for module build' >&2\n\texit 10\nfi\n"
}

// debModule has dkms build the module as the packages of Debian do: by dkms's own script, which builds for the kernels
// that have headers, and for none without an error if there are no headers.
// Source: dh_dkms(1), /usr/lib/dkms/common.postinst
func debModule(name, v string) string {
	return "if [ -x /usr/lib/dkms/common.postinst ]; then\n\t/usr/lib/dkms/common.postinst nvidia " + v + " /usr/share/" + name + " '' \"$2\"\nfi\n"
}

// dkmsRemove is before the sources go.
func dkmsRemove(v string) string {
	return "if command -v dkms >/dev/null && [ -d /var/lib/dkms/nvidia/" + v + " ]; then dkms remove -m nvidia -v " + v + " --all; fi\n"
}

// debStart enables and starts a unit as packages of Debian do, which policy-rc.d can forbid: dh_installsystemd(1).
func debStart(unit string) string {
	return "deb-systemd-helper enable " + unit + ".service >/dev/null\nif [ -d /run/systemd/system ]; then\n\tsystemctl daemon-reload\n\tdeb-systemd-invoke restart " +
		unit + ".service >/dev/null\nfi\n"
}

func debStop(unit string) string {
	return "if [ -d /run/systemd/system ]; then deb-systemd-invoke stop " + unit + ".service >/dev/null || true; fi\n"
}
