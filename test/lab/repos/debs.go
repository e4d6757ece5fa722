// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// BadDriver is the version of Debian 12 and RHEL 9 with a module package that fails when it is
// configured, unless the file LetPass is there.
const (
	BadDriver = "580.105.08"
	LetPass   = "/run/let-postinst-pass"
)

// Gone is the version that the repository Vanished no longer has; lags has no companions in
// Lagging.
const (
	Gone = "580.95.05"
	lags = "590.48.01"
)

// Toolkits are the versions of the container toolkit there are.
func Toolkits() []string { return []string{"1.18.0", "1.18.1"} }

// debLibs is where Debian has its libraries.
func debLibs() string {
	if runtime.GOARCH == "arm64" {
		return "/usr/lib/aarch64-linux-gnu/"
	}
	return "/usr/lib/x86_64-linux-gnu/"
}

// aptPackages returns the packages of an edition for apt.
func (in parts) aptPackages(e edition) ([]Package, error) {
	rows, err := e.rows()
	if err != nil {
		return nil, err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return r.name == name })
	}

	var list []Package
	for _, r := range rows {
		p := Package{
			Name:      r.name,
			Version:   r.version,
			Arch:      r.arch,
			Component: cmp.Or(r.component, e.component),
		}
		switch {
		case r.draws == "?": // transitional, to a package that no listing names
		case r.draws != "":
			p.Depends = []string{r.draws}
		case r.own:
			p.relate(r)
			err = in.aptRole(&p, upstream(r.version), has)
		default:
			p.relate(r)
			p.relateByRule(e, has)
			err = in.aptRole(&p, e.version, has)
			if e.bad && strings.Contains(p.Name, "dkms") {
				p.After = failing() + p.After
			}
		}

		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}

	return list, nil
}

// relate takes over the relations that listings state.
func (p *Package) relate(r row) {
	p.Depends = words(r.depends)
	p.PreDepends = words(r.preDepends)
	p.Provides = words(r.provides)
}

// relateByRule adds the relations that no listing states.
func (p *Package) relateByRule(e edition, has func(string) bool) {
	unlisted := len(p.Depends) == 0
	if strings.HasPrefix(e.of, "debian") {
		if unlisted {
			p.Depends = debianDepends(e, p.Name, has)
		}
		p.Instead, p.Conflicts = debianInstead(e, p.Name)
		return
	}

	_, source, _ := strings.Cut(e.of, " ")
	if unlisted || base(p.Name) == "libnvidia-compute" && source == "nvidia" {
		p.Depends = append(p.Depends, ubuntuDepends(e, p.Name, has)...)
	}
	p.Instead = instead(source, p.Name, has)
}

// words takes relations apart.
func words(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ", ")
}

// debianDepends says what a package of NVIDIA's for Debian needs; no listing does.
// Source: NVIDIA driver installation guide, chapter Debian; and the packages of Debian's archive,
// which they are like.
func debianDepends(e edition, name string, has func(string) bool) []string {
	var list []string
	same := func(names ...string) []string {
		for _, n := range names {
			if has(n) {
				list = append(list, n+" (= "+e.whole(n)+")")
			}
		}
		return list
	}

	switch {
	case strings.HasPrefix(name, "nvidia-open"):
		return same("nvidia-driver", "nvidia-kernel-open-dkms")
	case name == "nvidia-driver":
		return same("nvidia-driver-cuda", "nvidia-driver-libs")
	case name == "nvidia-driver-cuda":
		return same(
			"nvidia-kernel-support", "nvidia-modprobe", "nvidia-persistenced",
			"libcuda1", "libnvidia-ml1", "libnvidia-cfg1",
			"libnvidia-nvvm4", "libnvidia-ptxjitcompiler1", "libnvidia-gpucomp",
		)
	case strings.HasSuffix(name, "-dkms"):
		return append(same("firmware-nvidia-gsp", "nvidia-kernel-support"), "dkms")
	}

	return nil
}

// debianInstead keeps one flavour of the modules away from the other, and companions of two eras,
// which have the same files.
func debianInstead(e edition, name string) (instead, conflicts []string) {
	switch name {
	case "nvidia-kernel-dkms":
		return nil, []string{"nvidia-kernel-open-dkms"}
	case "nvidia-kernel-open-dkms":
		return nil, []string{"nvidia-kernel-dkms"}
	}

	if companions.MatchString(name) {
		return []string{strings.TrimSuffix(name, "-"+e.branch()) + "-any"}, nil
	}
	return nil, nil
}

// debOthers are what has a version of its own and no listing, or what Debian's own archive has.
func debOthers() []Package {
	return []Package{
		{Name: "nvlsm", Version: "2025.06.11-1", Files: map[string]File{"/usr/share/nvlsm/version": {Text: "2025.06.11\n"}}},
		{Name: "infiniband-diags", Version: "44.0-1"},
		// These are here for hosts without headers, where Debian's own cannot build anything
		// either.
		{Name: "dkms", Version: "0.lab-1"},
		{Name: "gcc", Version: "0.lab-1"},
		{Name: "make", Version: "0.lab-1"},
	}
}

// debToolkit are the packages of one container toolkit, as in NVIDIA's repository
// libnvidia-container.
func (in parts) debToolkit(v string) []Package {
	version := v + "-1"
	same := func(names ...string) (list []string) {
		for _, name := range names {
			list = append(list, name+" (= "+version+")")
		}
		return list
	}

	library := debLibs() + "libnvidia-container.so." + v
	cli := in.program("cli-version: " + v)
	hook := in.program("NVIDIA Container Runtime Hook version " + v)
	return []Package{
		{
			Name:    "libnvidia-container1",
			Version: version,
			Files:   map[string]File{library: {Text: v + "\n"}},
		},
		{
			Name:    "libnvidia-container-tools",
			Version: version,
			Depends: same("libnvidia-container1"),
			Files:   map[string]File{"/usr/bin/nvidia-container-cli": cli},
		},
		{
			Name:    "nvidia-container-toolkit-base",
			Version: version,
			Files:   in.toolkit(v),
		},
		{
			Name:    "nvidia-container-toolkit",
			Version: version,
			Depends: same("nvidia-container-toolkit-base", "libnvidia-container-tools"),
			Files:   map[string]File{"/usr/bin/nvidia-container-runtime-hook": hook},
		},
	}
}

// failing is what BadDriver does when it is configured.
func failing() string {
	return "if [ ! -e " + LetPass + " ]; then\n" +
		"\techo 'Error! Bad return status for module build' >&2\n" +
		"\texit 10\n" +
		"fi\n"
}

// debModule has dkms build the module as the packages of Debian do: by dkms's own script, which
// builds for the kernels that have headers, and for none without an error if there are no headers.
// Source: dh_dkms(1), /usr/lib/dkms/common.postinst
func debModule(name, v string) string {
	const common = "/usr/lib/dkms/common.postinst"
	return "if [ -x " + common + " ]; then\n" +
		"\t" + common + " nvidia " + v + " /usr/share/" + name + " '' \"$2\"\n" +
		"fi\n"
}

// dkmsRemove has dkms forget the module before the package's sources go.
func dkmsRemove(v string) string {
	hasModule := "command -v dkms >/dev/null && [ -d /var/lib/dkms/nvidia/" + v + " ]"
	return "if " + hasModule + "; then dkms remove -m nvidia -v " + v + " --all; fi\n"
}

// debStart enables and starts a unit as packages of Debian do, which policy-rc.d can forbid:
// dh_installsystemd(1).
func debStart(unit string) string {
	return "deb-systemd-helper enable " + unit + ".service >/dev/null\n" +
		"if [ -d /run/systemd/system ]; then\n" +
		"\tsystemctl daemon-reload\n" +
		"\tdeb-systemd-invoke restart " + unit + ".service >/dev/null\n" +
		"fi\n"
}

func debStop(unit string) string {
	stop := "deb-systemd-invoke stop " + unit + ".service >/dev/null || true"
	return "if [ -d /run/systemd/system ]; then " + stop + "; fi\n"
}

func (p Package) arch() string { return cmp.Or(p.Arch, runtime.GOARCH) }

// file is the name of its file.
func (p Package) file() string {
	version := strings.ReplaceAll(p.Version, ":", "%3a")
	return fmt.Sprintf("%s_%s_%s.deb", p.Name, version, p.arch())
}

func (p Package) control() string {
	section := "libs"
	if p.Component != "" && p.Component != "main" {
		section = p.Component + "/libs"
	}

	var text strings.Builder
	fmt.Fprintf(&text, "Package: %s\n", p.Name)
	fmt.Fprintf(&text, "Version: %s\n", p.Version)
	fmt.Fprintf(&text, "Architecture: %s\n", p.arch())
	fmt.Fprintf(&text, "Section: %s\n", section)
	fmt.Fprintf(&text, "Maintainer: lab <lab@example.invalid>\n")
	for _, f := range []struct {
		field string
		names []string
	}{
		{"Pre-Depends", p.PreDepends},
		{"Depends", p.Depends},
		{"Provides", slices.Concat(p.Provides, p.Instead)},
		{"Conflicts", slices.Concat(p.Conflicts, p.Instead)},
		{"Replaces", p.Instead},
	} {
		if len(f.names) > 0 {
			fmt.Fprintf(&text, "%s: %s\n", f.field, strings.Join(f.names, ", "))
		}
	}

	fmt.Fprintf(&text, "Description: is NVIDIA's %s in tests\n", p.Name)
	return text.String()
}

// scripts returns the maintainer scripts. They do nothing for other words than those that dpkg
// calls them with for an installation, an upgrade or a removal: deb-postinst(5) and its like.
func (p Package) scripts() map[string]string {
	when := func(words, name, body string) string {
		onlyFor := "case \"$1\" in " + words + ") ;; *) exit 0 ;; esac\n"
		return "#!/bin/sh\nset -e\n" + onlyFor + script(p, name, body)
	}
	return map[string]string{
		"preinst":  when("install|upgrade", "before", p.Before),
		"postinst": when("configure", "after", p.After),
		"prerm":    when("remove|upgrade", "gone", p.Gone),
	}
}

// buildDebs builds packages into a folder.
func buildDebs(ctx context.Context, list []Package, scratch, into string) error {
	errs := make(chan error, len(list))
	work := make(chan Package)
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			for p := range work {
				errs <- buildDeb(ctx, p, scratch, into)
			}
		})
	}

	for _, p := range list {
		work <- p
	}
	close(work)
	workers.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}

	return nil
}

func buildDeb(ctx context.Context, p Package, scratch, into string) error {
	file := p.file()
	root := filepath.Join(scratch, file+".d")
	if err := p.lay(root); err != nil {
		return err
	}
	for name, f := range p.controlFiles() {
		if err := f.lay(filepath.Join(root, "DEBIAN", name)); err != nil {
			return fmt.Errorf("cannot write the %s of %s: %w", name, p.Name, err)
		}
	}

	_, err := command(ctx, "", "dpkg-deb",
		"--root-owner-group", "-Zgzip", "-z1",
		"--build", root, filepath.Join(into, file))
	if err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// controlFiles returns the files of the folder DEBIAN.
func (p Package) controlFiles() map[string]File {
	files := map[string]File{"control": {Text: p.control()}}
	for name, text := range p.scripts() {
		files[name] = File{Text: text, Mode: 0o755}
	}

	var conffiles string
	for name := range p.Files {
		if strings.HasPrefix(name, "/etc/") {
			conffiles += name + "\n"
		}
	}

	if conffiles != "" {
		files["conffiles"] = File{Text: conffiles}
	}
	return files
}
