// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/lab"
)

// rpmLibs is where a RHEL has its libraries.
const rpmLibs = "/usr/lib64/"

// rpmEditions are the editions of NVIDIA's repository for a distribution of dnf's. The versions of
// RHEL 9 are those that the lab's other tests use, and those that are listed. The whole of a branch
// is listed for 570 and 580 (RHEL 9), for 535 (RHEL 8), and for 595 (AL2023, Amazon's repository,
// which has NVIDIA's names); 590 has the names of 595, and 610 those of 580 less what it lists as
// absent.
func rpmEditions(distro string) []edition {
	const (
		names535 = "rhel8 nvidia 535.54.03"
		names570 = "rhel9 nvidia 570.124.06"
		names580 = "rhel9 nvidia 580.178.04"
		names595 = "amzn2023 amazon 595.91.07"
		names610 = "rhel9 nvidia 610.43.02"
		fabric   = "rhel9 nvidia 580"           // which companions there are from 580 on
		before   = "amzn2023 amazon 570.172.08" // and up to 570
		dnf      = "rhel8 nvidia 515.48.07"     // how kernel modules and nvidia-kmod-common hang together
		both     = "amzn2023 nvidia 580"        // both kernel modules
	)
	tag := rpmTag(distro)
	at := func(version, companion string, names ...string) edition {
		return edition{
			of:        distro + " nvidia",
			version:   version,
			epoch:     "3:",
			revision:  "-1" + tag,
			companion: companion,
			names:     append(names, both),
			relations: []string{dnf},
			bad:       distro == "rhel9" && version == BadDriver,
		}
	}

	of580 := func(version string) edition { return at(version, "-1", names580, fabric) }

	e535 := at("535.54.03", "-1", names535)
	e570 := at("570.172.08", "-1", names570, before)
	e570.without = []string{"cuda-drivers-570"}
	e590 := at("590.48.01", "-1", names595, fabric)
	e595 := at("595.71.05", "-1"+tag, names595, fabric)
	e610 := at("610.43.02", "-1"+tag, names610, names580, fabric)
	switch distro {
	case "rhel8":
		return []edition{e535, e570, of580("580.95.05"), e595, e610}
	case "rhel10": // 535 and 570 were never seen there
		return []edition{of580("580.82.07"), of580("580.95.05"), e590, e595, e610}
	case "amzn2023", "azl3": // 535 is older than both
		return []edition{e570, of580("580.95.05"), e595}
	}

	return []edition{
		at("535.183.01", "-1", names535),
		e570,
		of580("580.65.06"), of580("580.95.05"), of580(BadDriver), of580("580.178.04"),
		e590, e595, e610,
	}
}

// rpmTag is the end of a distribution's releases.
func rpmTag(distro string) string {
	version, isRHEL := strings.CutPrefix(distro, "rhel")
	if isRHEL {
		return ".el" + version
	}
	return "." + distro
}

// rpmPackages returns the packages of an edition for dnf.
func (in parts) rpmPackages(e edition) ([]Package, error) {
	rows, err := e.rows()
	if err != nil {
		return nil, err
	}
	for _, meta := range []string{"nvidia-open", "cuda-drivers"} {
		rows = append(rows, row{name: meta, version: e.whole(meta)})
	}
	has := func(name string) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return r.name == name })
	}

	var list []Package
	for _, r := range rows {
		if r.own {
			list = append(list, Package{
				Name:     r.name,
				Version:  r.version,
				Provides: []string{r.name + "(x86-64) = " + upstream(r.version)},
			})
			continue
		}

		p := Package{Name: r.name, Version: r.version, Arch: r.arch}
		p.Depends = append(words(r.depends), rpmDepends(e, r.name, has)...)
		p.Provides = words(r.provides)
		p.Conflicts, p.Obsoletes, p.Instead = rpmInstead(e, r.name)
		if r.name == "nvidia-driver-common" { // the spec file says so
			for _, name := range []string{"libnvidia-cfg", "libnvidia-gpucomp", "libnvidia-ml"} {
				p.Provides = append(p.Provides, name+" = "+e.whole(name))
			}
		}

		isPrecompiled := strings.HasPrefix(r.name, "kmod-nvidia-"+e.version)
		if isPrecompiled {
			p.Provides = []string{"nvidia-kmod = " + e.epoch + e.version}
			p.Stream = e.branch()
		}

		if err := in.rpmRole(&p, e.version); err != nil {
			return nil, err
		}
		if e.bad && strings.HasSuffix(p.Name, "-dkms") {
			p.After = failing() + p.After
		}
		list = append(list, p)
	}

	return once(list), nil
}

// rpmDepends says what a package needs where no listing does. Sources: nvidia-driver.spec of
// negativo17/nvidia-driver on GitHub at 535.54.03, 570.133.07, 580.95.05 and 610.43.02,
// nvidia-persistenced.spec of negativo17/nvidia-persistenced, nvidia-kmod-common.spec of
// negativo17/nvidia-kmod-common, by the author of NVIDIA's. Left out is what is in no repository of
// NVIDIA's: OpenCL, X.
func rpmDepends(e edition, name string, has func(string) bool) []string {
	var list []string
	same := func(names ...string) []string {
		for _, n := range names {
			if has(n) {
				list = append(list, n+" = "+e.epoch+e.version)
			}
		}
		return list
	}

	b := e.branch()
	switch name {
	case "nvidia-open":
		return same("nvidia-driver", "nvidia-driver-cuda", "kmod-nvidia-open-dkms")
	case "cuda-drivers":
		return same("nvidia-driver", "nvidia-driver-cuda", "kmod-nvidia-latest-dkms")
	case "nvidia-driver":
		return same("nvidia-driver-libs", "nvidia-kmod-common")
	case "nvidia-driver-libs":
		return same("nvidia-driver-common", "libnvidia-gpucomp", "libnvidia-ml")
	case "nvidia-driver-cuda-libs":
		return same("nvidia-driver-common", "libnvidia-cfg", "libnvidia-gpucomp", "libnvidia-ml")
	case "nvidia-driver-cuda":
		return same("nvidia-driver-cuda-libs", "nvidia-driver-NVML", "nvidia-kmod-common", "nvidia-persistenced")
	case "nvidia-persistenced":
		if b >= "570" {
			list = []string{"libnvidia-cfg >= " + e.epoch + e.version}
		}
	case "nvidia-kmod-common":
		list = []string{"nvidia-modprobe"} // that it needs nvidia-kmod is listed
		if b >= "610" {                    // public file no. 60248965175, and README of the listings
			list = append(list, "(nvidia-driver-selinux if selinux-policy-targeted)")
		}
	case "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms":
		return same("nvidia-kmod-common")
	}

	if strings.HasPrefix(name, "kmod-nvidia-"+e.version) {
		return same("nvidia-kmod-common")
	}
	return list
}

// rpmInstead keeps kernel modules and companions of two eras from being beside each other.
// Obsoletes are those of the spec files.
func rpmInstead(e edition, name string) (conflicts, obsoletes, instead []string) {
	older := func(names ...string) (list []string) {
		for _, n := range names {
			list = append(list, n+" < "+e.whole(n))
		}
		return list
	}

	switch {
	case name == "kmod-nvidia-open-dkms":
		return []string{"kmod-nvidia-latest-dkms"}, nil, nil
	case name == "kmod-nvidia-latest-dkms":
		return []string{"kmod-nvidia-open-dkms"}, nil, nil
	case strings.HasPrefix(name, "kmod-nvidia-"+e.version): // by its spec file, not with the open ones
		return []string{"kmod-nvidia-latest-dkms"}, nil, nil
	case name == "nvidia-driver-common":
		return nil, older("libnvidia-cfg", "libnvidia-gpucomp", "libnvidia-ml"), nil
	case name == "libnvidia-ml":
		return nil, older("nvidia-driver-NVML"), nil
	case strings.HasSuffix(name, "-devel"):
		return nil, nil, nil
	case companions.MatchString(name):
		word := strings.TrimSuffix(name, "-"+e.branch())
		return nil, nil, []string{strings.Replace(word, "fabric-manager", "fabricmanager", 1) + "-any"}
	}

	return nil, nil, nil
}

// rpmOthers are what has a version of its own.
func rpmOthers() []Package {
	return []Package{
		{Name: "nvlsm", Version: "2025.06.11-1", Files: map[string]File{"/usr/share/nvlsm/version": {Text: "2025.06.11\n"}}},
		{Name: "infiniband-diags", Version: "48.0-1"},
		{Name: "nvidia-driver-selinux", Version: "0.1-2", Arch: "noarch"},
	}
}

// rpmToolkit are the packages of one container toolkit.
func (in parts) rpmToolkit(v string) []Package {
	same := func(names ...string) (list []string) {
		for _, name := range names {
			list = append(list, name+" = "+v+"-1")
		}
		return list
	}
	return []Package{
		{Name: "libnvidia-container1", Version: v + "-1", Files: map[string]File{rpmLibs + "libnvidia-container.so." + v: {Text: v + "\n"}}},
		{
			Name: "libnvidia-container-tools", Version: v + "-1", Depends: same("libnvidia-container1"),
			Files: map[string]File{"/usr/bin/nvidia-container-cli": in.program("cli-version: " + v)},
		},
		{Name: "nvidia-container-toolkit-base", Version: v + "-1", Files: in.toolkit(v)},
		{
			Name: "nvidia-container-toolkit", Version: v + "-1", Depends: same("nvidia-container-toolkit-base", "libnvidia-container-tools"),
			Files: map[string]File{"/usr/bin/nvidia-container-runtime-hook": in.program("NVIDIA Container Runtime Hook version " + v)},
		},
	}
}

// rpmGroups are the packages of a distribution's repositories, in groups that one spec file can
// make: of one version and release, with no file in two licenses.
func (in parts) rpmGroups(distro string) ([][]Package, error) {
	var groups [][]Package
	for _, p := range rpmOthers() {
		groups = append(groups, []Package{p})
	}
	for _, v := range Toolkits() {
		groups = append(groups, in.rpmToolkit(v))
	}
	made := map[string]bool{}
	for _, e := range rpmEditions(distro) {
		list, err := in.rpmPackages(e)
		if err != nil {
			return nil, err
		}
		parts := map[string][]Package{}
		for _, p := range list {
			if made[p.Name+p.Version] || slices.Contains([]string{"nvlsm", "nvidia-driver-selinux"}, p.Name) {
				continue
			}
			made[p.Name+p.Version] = true
			key := split(p.Version)[1] + "-" + split(p.Version)[2]
			if p.Name == "kmod-nvidia-latest-dkms" || strings.HasPrefix(p.Name, "kmod-nvidia-"+e.version) {
				key += p.Name
			}
			if p.Name == "nvidia-fabric-manager" || companions.MatchString(p.Name) {
				key += "companions"
			}
			parts[key] = append(parts[key], p)
		}

		for _, group := range parts {
			groups = append(groups, group)
		}
	}

	return groups, nil
}

// rpmModule has dkms build the module as NVIDIA's spec file does: for the running kernel, and
// whatever comes of it.
func rpmModule(v string) string {
	return "if command -v dkms >/dev/null; then\n" +
		"\tdkms add -m nvidia -v " + v + " -q || :\n" +
		"\tdkms build -m nvidia -v " + v + " -q || :\n" +
		"\tdkms install -m nvidia -v " + v + " -q --force || :\n" +
		"fi\n"
}

// rpmStart is what RPM packages do for a unit: nothing but an upgrade restarts it, and a preset,
// which RHEL has none of for NVIDIA's, would enable it. Source: systemd's macros.systemd
func rpmStart(unit string) string {
	return "if [ -d /run/systemd/system ]; then\n" +
		"\tsystemctl daemon-reload || :\n" +
		"\tif [ \"$1\" -ge 2 ]; then systemctl try-restart " + unit + ".service || :; fi\n" +
		"fi\n"
}

func rpmStop(unit string) string {
	disable := "systemctl disable --now " + unit + ".service >/dev/null 2>&1 || :"
	return "if [ \"$1\" -eq 0 ] && [ -d /run/systemd/system ]; then " + disable + "; fi\n"
}

// Release is what NVIDIA's RPM packages have behind the driver's version; those of the toolkit and
// companions have "1".
const (
	rpmRelease   = "1.el9"
	plainRelease = "1"
	rpmEpoch     = "3"
)

// RPMVersion is a driver's version as its packages for RHEL write it.
func RPMVersion(version string) string {
	return rpmEpoch + ":" + version + "-" + rpmRelease
}

// section returns the part of a spec file about one package.
func (p Package) section() string {
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }

	line("%%package -n %s", p.Name)
	line("Summary: is NVIDIA's %s in tests", p.Name)
	line("AutoReqProv: no")
	if epoch := split(p.Version)[0]; epoch != "" {
		line("Epoch: %s", epoch)
	}
	if p.Arch == "noarch" {
		line("BuildArch: noarch")
	}
	for _, f := range []struct {
		field string
		names []string
	}{
		{"Requires", p.Depends},
		{"Provides", p.Provides},
		{"Conflicts", p.Conflicts},
		{"Obsoletes", p.Obsoletes},
	} {
		for _, name := range f.names {
			line("%s: %s", f.field, name)
		}
	}

	for _, name := range p.Instead {
		line("Provides: %s", name)
		line("Conflicts: %s", name)
	}

	line("%%description -n %s\nIs NVIDIA's in tests.", p.Name)
	for _, s := range []struct{ scriptlet, when, body string }{
		{"pre", "before", p.Before},
		{"post", "after", p.After},
		{"preun", "gone", p.Gone},
	} {
		line("%%%s -n %s\n%s", s.scriptlet, p.Name, script(p, s.when, s.body))
	}

	line("%%files -n %s", p.Name)
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if strings.HasPrefix(name, "/etc/") {
			line("%%config(noreplace) %s", name)
		} else {
			line("%s", name)
		}
	}

	return text.String()
}

// buildRPMs builds packages of one version and release into the folder /rpms of a chroot.
func buildRPMs(ctx context.Context, c lab.Chroot, list []Package) error {
	first := list[0]
	parts := split(first.Version)
	version, release := parts[1], parts[2]
	name := "lab-" + first.Name + "-" + version
	tree := "/build/" + name
	if err := os.MkdirAll(filepath.Join(c.Root, tree), 0o755); err != nil {
		return fmt.Errorf("cannot make a folder for %s: %w", name, err)
	}

	spec := "Name: " + name + "\n" +
		"Version: " + version + "\n" +
		"Release: " + release + "\n" +
		"Summary: makes the others\n" +
		"License: Apache-2.0\n" +
		// Unchanged: programs end in what they say.
		"%global debug_package %{nil}\n" +
		"%global __os_install_post %{nil}\n" +
		"%description\nMakes the others.\n" +
		"%install\nmkdir -p %{buildroot} && cp -a " + tree + "/. %{buildroot}/\n"
	for _, p := range list {
		// Packages that replace each other have the same files.
		if err := p.lay(filepath.Join(c.Root, tree)); err != nil {
			return err
		}
		spec += p.section()
	}

	if err := (File{Text: spec}).lay(filepath.Join(c.Root, tree+".spec")); err != nil {
		return fmt.Errorf("cannot write the spec file of %s: %w", name, err)
	}

	_, err := c.Run(ctx, nil, "rpmbuild", "--quiet", "-bb",
		"--define=_topdir /build/top-"+name,
		"--define=_rpmdir /rpms",
		"--define=_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
		"--define=_build_id_links none",
		"--define=_binary_payload w1.gzdio",
		tree+".spec")
	return err
}
