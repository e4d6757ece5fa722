// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Package is a package of either format before it is built. Relations to others are as the package
// manager writes them.
type Package struct {
	Name      string
	Version   string // whole: 580.95.05-0ubuntu1, 3:580.95.05-1.el9
	Arch      string // all, noarch; "" is this machine's
	Component string // of an archive that has components
	// PreDepends is for apt alone, Obsoletes for dnf alone.
	PreDepends, Depends, Provides, Conflicts, Obsoletes []string
	// Instead are names of each of which only one package can be there: another one that has it
	// goes when this one comes.
	Instead []string
	Files   map[string]File
	// Before, After and Gone are lines of shell that run before it is unpacked, when it is
	// configured, and before it is removed. What an upgrade does to the old version is not among
	// them.
	Before, After, Gone string
	// Stream is dnf's module stream that alone has it, with what is in no stream; "" is decided by
	// name and branch.
	Stream string
}

// upstream is a package's version without epoch and revision.
func upstream(version string) string { return split(version)[1] }

// split takes a version into epoch, upstream version and revision.
func split(version string) [3]string {
	epoch, rest, ok := strings.Cut(version, ":")
	if !ok {
		epoch, rest = "", version
	}
	i := strings.LastIndex(rest, "-")
	if i < 0 {
		return [3]string{epoch, rest, ""}
	}
	return [3]string{epoch, rest[:i], rest[i+1:]}
}

// File is a file of a package.
type File struct {
	Text string
	// From is a file of this machine, in the place of Text; Text is then put behind it.
	From string
	// Link is where a symbolic link leads.
	Link string
	Mode os.FileMode // 0 means 0644
}

// Switches is the folder of files that tell the scripts of packages what to do:
// SCRIPT.PACKAGE.fail, .wait, and .pid, which a waiting script leaves; SCRIPT is before, after or
// gone.
const Switches = "/run/gpuadm-lab"

// script puts the switches of every script of these packages before its own lines.
func script(p Package, name, body string) string {
	at := Switches + "/" + name + "." + p.Name
	return fmt.Sprintf(`if [ -e %[1]s.wait ]; then
	echo $$ > %[1]s.pid
	while [ -e %[1]s.wait ]; do sleep 0.1; done
	rm -f %[1]s.pid
fi
if [ -e %[1]s.fail ]; then
	echo "%[2]s of %[3]s %[4]s: told to fail" >&2
	exit 10
fi
%[5]s`, at, name, p.Name, upstream(p.Version), body)
}

// lay writes the package's files into a folder.
func (p Package) lay(root string) error {
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if err := p.Files[name].lay(filepath.Join(root, name)); err != nil {
			return fmt.Errorf("cannot lay out %s: %w", p.Name, err)
		}
	}
	return nil
}

func (f File) lay(place string) error {
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return os.Symlink(f.Link, place)
	}
	text := []byte(f.Text)
	if f.From != "" {
		program, err := os.ReadFile(f.From)
		if err != nil {
			return err
		}
		text = append(program, text...)
	}
	mode := f.Mode
	if mode == 0 {
		mode = 0o644
	}
	return os.WriteFile(place, text, mode)
}

// unit is a systemd unit that runs a program.
func unit(what, program string) File {
	return File{Text: "[Unit]\nDescription=" + what + "\n[Service]\nExecStart=" + program + "\nRestart=no\n[Install]\nWantedBy=multi-user.target\n"}
}

// branch is the first number of a driver's version.
func branch(version string) string {
	number, _, _ := strings.Cut(version, ".")
	return number
}

// decorated is what a name has beside the word that tells its role: branch, flavour, version,
// kernel.
var decorated = regexp.MustCompile(`(-\d{3})?(-server)?(-open)?(-\d{3}(\.\d+)+)?$`)

// base is the word in a name that tells the role, for Ubuntu's names: libnvidia-compute-580-server
// is libnvidia-compute.
func base(name string) string { return decorated.ReplaceAllString(name, "") }

// decoration is the branch and the flavour of Ubuntu's in a name: "-580-server" of
// nvidia-dkms-580-server-open.
func decoration(name string) string {
	return strings.TrimSuffix(decorated.FindString(name), "-open")
}

func isOpen(name string) bool { return strings.HasSuffix(name, "-open") }

// license of a module: all that tells NVIDIA's open ones from the others.
func license(open bool) string {
	if open {
		return "Dual MIT/GPL"
	}
	return "NVIDIA"
}

// aptRole gives a package what it does: libraries, programs, daemons, the module's source. has
// tells of another name.
func (in parts) aptRole(p *Package, v string, has func(string) bool) error {
	add := func(files map[string]File) {
		if p.Files == nil {
			p.Files = map[string]File{}
		}
		maps.Copy(p.Files, files)
	}
	libraries := func(names ...string) error {
		p.After = "ldconfig"
		for _, name := range names {
			files, err := in.lib(debLibs(), name+".so", soname(name), v)
			if err != nil {
				return err
			}
			add(files)
		}
		return nil
	}
	role := base(p.Name)
	if lib, ok := soleLibraries()[p.Name]; ok {
		return libraries(lib)
	}
	switch role {
	case "libnvidia-compute":
		libs := []string{"libcuda", "libnvidia-ml", "libnvidia-nvvm", "libnvidia-ptxjitcompiler"}
		if !has("libnvidia-gpucomp" + decoration(p.Name)) {
			libs = append(libs, "libnvidia-gpucomp")
		}
		if !has("nvidia-utils" + decoration(p.Name)) {
			add(map[string]File{"/usr/bin/nvidia-smi": smi()})
		}
		return libraries(libs...)
	case "libnvidia-cfg1", "libnvidia-gpucomp":
		return libraries(strings.TrimSuffix(role, "1"))
	case "nvidia-utils", "nvidia-driver-cuda", "nvidia-smi":
		add(map[string]File{"/usr/bin/nvidia-smi": smi()})
	case "nvidia-modprobe":
		add(map[string]File{"/usr/bin/nvidia-modprobe": in.program("nvidia-modprobe:  version " + v)})
	case "nvidia-compute-utils":
		if !has("nvidia-persistenced") {
			in.persistenced(p, v)
		}
	case "nvidia-persistenced":
		in.persistenced(p, v)
	case "nvidia-kernel-common", "nvidia-kernel-support":
		add(map[string]File{"/usr/lib/modprobe.d/nvidia.conf": {Text: "blacklist nouveau\n"}})
	case "nvidia-firmware", "firmware-nvidia-gsp":
		add(firmware(v))
	case "nvidia-fabricmanager":
		add(in.daemon("nv-fabricmanager", "Fabric Manager version is : "+v, "nvidia-fabricmanager"))
		p.After, p.Gone = "[ ! -d /run/systemd/system ] || systemctl daemon-reload", debStop("nvidia-fabricmanager")
	case "nvidia-imex", "imex":
		add(in.daemon("nvidia-imex", "IMEX version is: "+v))
		p.Gone = debStop("nvidia-imex")
	case "libnvidia-nscq", "libnvsdm":
		add(map[string]File{debLibs() + role + ".so." + v: {Text: v + "\n"}})
	case "nvlsm":
		add(map[string]File{"/usr/share/nvlsm/version": {Text: v + "\n"}})
	case "nvidia-kernel-source":
		add(moduleSource(v, license(isOpen(p.Name))))
	case "nvidia-dkms":
		p.After, p.Gone = debModule(p.Name, v), dkmsRemove(v)
	case "nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms", "nvidia-kernel-dkms":
		add(moduleSource(v, license(role != "nvidia-kernel-dkms")))
		p.After, p.Gone = debModule(p.Name, v), dkmsRemove(v)
	}
	if strings.HasPrefix(p.Name, "nvidia-driver-pinning-") {
		at := strings.TrimPrefix(p.Name, "nvidia-driver-pinning-")
		add(map[string]File{"/etc/apt/preferences.d/" + p.Name: {
			Text: "Package: *nvidia* cuda-drivers* libcuda* \nPin: version " + at + "*\nPin-Priority: 1000\n",
		}})
	}
	return nil
}

// soleLibraries are Debian's packages of one library each.
func soleLibraries() map[string]string {
	return map[string]string{
		"libcuda1": "libcuda", "libnvidia-ml1": "libnvidia-ml", "libnvidia-cfg1": "libnvidia-cfg", "libnvidia-nvvm4": "libnvidia-nvvm",
		"libnvidia-ptxjitcompiler1": "libnvidia-ptxjitcompiler", "libnvidia-gpucomp": "libnvidia-gpucomp",
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
	p.Files = in.daemon("nvidia-persistenced", "nvidia-persistenced:  version "+v)
	p.After, p.Gone = debStart("nvidia-persistenced"), debStop("nvidia-persistenced")
}

// rpmRole is aptRole for dnf's packages.
func (in parts) rpmRole(p *Package, v string) error {
	name := strings.TrimSuffix(p.Name, "-"+branch(v))
	for _, lib := range rpmLibraries()[name] {
		files, err := in.lib(rpmLibs, lib+".so", soname(lib), v)
		if err != nil {
			return err
		}
		if p.Files == nil {
			p.Files = map[string]File{}
		}
		maps.Copy(p.Files, files)
		p.After = "ldconfig"
	}
	switch {
	case name == "nvidia-driver-cuda":
		p.Files = map[string]File{"/usr/bin/nvidia-smi": smi()}
	case name == "nvidia-modprobe":
		p.Files = map[string]File{"/usr/bin/nvidia-modprobe": in.program("nvidia-modprobe:  version " + v)}
	case name == "nvidia-persistenced":
		p.Files = in.daemon(name, name+":  version "+v)
		p.After, p.Gone = rpmStart(name), rpmStop(name)
	case name == "nvidia-kmod-common":
		p.Files = firmware(v)
		p.Files["/usr/lib/modprobe.d/nvidia.conf"] = File{Text: "blacklist nouveau\n"}
	case name == "nvidia-fabricmanager", name == "nvidia-fabric-manager":
		p.Files = in.daemon("nv-fabricmanager", "Fabric Manager version is : "+v, "nvidia-fabricmanager")
		p.After, p.Gone = rpmStart("nvidia-fabricmanager"), rpmStop("nvidia-fabricmanager")
	case name == "nvidia-imex":
		p.Files = in.daemon(name, "IMEX version is: "+v)
		p.After, p.Gone = rpmStart(name), rpmStop(name)
	case name == "libnvidia-nscq", name == "libnvsdm":
		p.Files = map[string]File{rpmLibs + name + ".so." + v: {Text: v + "\n"}}
	case name == "nvlsm":
		p.Files = map[string]File{"/usr/share/nvlsm/version": {Text: v + "\n"}}
	case slices.Contains([]string{"kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"}, name):
		p.Files = moduleSource(v, license(name == "kmod-nvidia-open-dkms"))
		p.After, p.Gone = rpmModule(v), dkmsRemove(v)
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
