// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Shared is what gpuadm mirror is to build once for all nodes: the driver's modules.
type Shared struct {
	Kernels          []string
	Key, Certificate string    // files, by which modules are signed
	Signer           facts.Key // whose the certificate is
}

// builds is where DKMS builds them. Compilers write the place into modules, and the same modules
// are to be the same bytes.
const builds = "/var/lib/gpuadm-modules"

// share builds modules and puts their packages into the mirror's new folder.
func (m Mirror) share(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, s spec.Spec, f facts.Facts, names []string,
) (map[string]facts.SharedModules, error) {
	shared := map[string]facts.SharedModules{}
	if len(m.Shared.Kernels) == 0 {
		return shared, nil
	}
	c, _, err := drivers.New().Choose(s, f)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(c.Members, func(m drivers.Member) bool { return m.Role == "module" && m.PerKernel == "" })
	if i < 0 {
		return nil, &trouble.Error{What: "cannot build modules: the spec asks for no driver that DKMS builds", Try: []string{`write source = "nvidia" and a version in [driver]`}}
	}
	if err := m.builder(ctx, h, from, c); err != nil {
		return nil, err
	}
	src, err := packages.SourceOf(ctx, h, from, g, names, c.Members[i].Name)
	for _, kernel := range m.Shared.Kernels {
		if err == nil {
			file, one := "", facts.SharedModules{Package: facts.SharedPackage(c.Flavour, kernel), Kernel: kernel, Version: packages.Own(src.Version), Flavour: c.Flavour}
			file, err = m.modules(ctx, h, from, g, src, &one)
			shared[file] = one
		}
	}
	return shared, err
}

// builder refuses a machine that lacks what builds modules: mirror installs nothing.
func (m Mirror) builder(ctx context.Context, h host.Host, from packages.Gatherer, c drivers.Choice) error {
	installed, err := from.Installed(ctx, h)
	if err != nil {
		return err
	}
	var lacks []string
	rpm := from.Name() == "dnf"
	if _, err := h.Stat("/usr/bin/rpmbuild"); rpm && err != nil {
		lacks = append(lacks, "rpm-build")
	}
	for _, member := range c.Members {
		switch {
		case (member.Role == "dkms" || member.Role == "compiler") && !installed[member.Name].Installed():
			lacks = append(lacks, member.Name)
		case member.Role == "headers" && slices.Contains(m.Shared.Kernels, member.PerKernel) && !slices.Contains(kmod.WithHeaders(h), member.PerKernel):
			lacks = append(lacks, member.Name)
			if rpm { // it leads to the headers
				lacks = append(lacks, "kernel-core-"+member.PerKernel)
			}
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return &trouble.Error{
		What: "cannot build modules here: " + strings.Join(lacks, ", ") + " is not installed",
		Try:  []string{map[bool]string{true: "dnf", false: "apt-get"}[rpm] + " install " + strings.Join(lacks, " ") + ", in this machine or container, which is of the nodes' system; then run the same command again"},
	}
}

// modules builds modules for a kernel and writes their package. That of the folder, of the same
// source, headers, builder and signer, is taken over.
func (m Mirror) modules(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, src packages.ModuleSource, one *facts.SharedModules,
) (file string, err error) {
	source, err := packages.Digest(h, path.Join(g.Into, src.File))
	if err != nil {
		return "", err
	}
	if one.Headers, err = facts.KernelSymbols(h, one.Kernel); err != nil {
		return "", err
	}
	dkms, err := h.Ask(ctx, "dkms", "--version")
	if err != nil {
		return "", err
	}
	config, _ := h.ReadFile("/lib/modules/" + one.Kernel + "/build/.config") // of other builders' kernels, which have none, the compiler is not known
	one.Source, one.Signer = source.SHA256, m.Shared.Signer
	one.Builder = strings.TrimSpace(strings.Join([]string{m.For, strings.TrimSpace(string(dkms)), facts.CompilerIn(string(config))}, "; "))
	old, _ := packages.ReadLock(h, m.Dir) // an empty one where there is no mirror yet
	for _, file := range old.Files {
		is, want := old.Modules[file.Name], *one
		if want.Vermagic = is.Vermagic; is == want && file.In(h, m.Dir) {
			*one = is
			_, err := h.Do(ctx, "ln", "-f", "--", path.Join(m.Dir, file.Name), path.Join(g.Into, file.Name))
			return file.Name, err
		}
	}
	files, err := m.build(ctx, h, src, one.Kernel)
	if err != nil {
		return "", err
	}
	defer h.Do(context.WithoutCancel(ctx), "rm", "-rf", "--", builds)
	if err := m.prove(h, one, files); err != nil {
		return "", err
	}
	pack := packages.ModulePackage{Name: one.Package, Kernel: one.Kernel, From: src, Root: g.Work + "/package-" + one.Kernel}
	into := path.Join(pack.Root, "usr/lib/modules", one.Kernel, facts.SharedFolder)
	if _, err := h.Do(ctx, append([]string{"install", "-D", "-m", "644", "-t", into, "--"}, files...)...); err != nil {
		return "", err
	}
	made, err := from.Pack(ctx, h, g, pack)
	if err != nil {
		return "", err
	}
	_, err = h.Do(ctx, "mv", "-fT", "--", made, path.Join(g.Into, path.Base(made))) // a killed run may have left a link there
	return path.Base(made), err
}

// build has DKMS build and sign, and returns the modules' files. The key is named to it as settings
// are that it reads after its own.
// Source: read_conf and prepare_signing in dkms.in of https://github.com/dkms-project/dkms
// (v3.0.10, v3.2.0), and dkms(8), --directive.
func (m Mirror) build(ctx context.Context, h host.Host, src packages.ModuleSource, kernel string) (files []string, err error) {
	name, version := strings.TrimSuffix(path.Base(src.Folder), "-"+packages.Own(src.Version)), packages.Own(src.Version)
	for _, argv := range [][]string{{"rm", "-rf", "--", builds}, {"mkdir", "-p", "--", builds}} { // the first is of a run that was killed
		if _, err := h.Do(ctx, argv...); err != nil {
			return nil, err
		}
	}
	m.Note("DKMS builds the modules of driver " + version + " for kernel " + kernel + ": that takes minutes")
	jobs := strconv.Itoa(kmod.BuildJobs(h))
	_, err = h.Do(ctx, "env", "OMP_NUM_THREADS="+jobs, "SOURCE_DATE_EPOCH="+packages.Built, "KBUILD_BUILD_TIMESTAMP=@"+packages.Built,
		"KBUILD_BUILD_USER=gpuadm", "KBUILD_BUILD_HOST=mirror", "dkms", "build", "-j", jobs, "-m", name, "-v", version, "-k", kernel, "--dkmstree", builds,
		"--sourcetree", path.Dir(src.Folder), "--directive", "mok_signing_key="+m.Shared.Key, "--directive", "mok_certificate="+m.Shared.Certificate)
	if err != nil {
		return nil, kmod.NotBuilt(h, builds, name, version, kernel, err)
	}
	of := path.Join(builds, name, version, kernel)
	for _, arch := range packages.ListOf(h, of) {
		for _, file := range packages.ListOf(h, path.Join(of, arch, "module")) {
			if strings.Contains(file, ".ko") { // DKMS 3.2 has Module.symvers there, too
				files = append(files, path.Join(of, arch, "module", file))
			}
		}
	}
	return files, nil
}

// prove refuses modules that are not what was to be built.
func (m Mirror) prove(h host.View, one *facts.SharedModules, files []string) error {
	for _, name := range files {
		is, err := facts.ReadModule(h, name)
		if err != nil {
			return err
		}
		driver := strings.HasPrefix(path.Base(name), "nvidia.")
		if driver {
			one.Vermagic = is.Vermagic
		}
		if is.Kernel() != one.Kernel || driver && (is.Version != one.Version || is.Flavour() != one.Flavour) || is.Signer == nil || !is.Signer.Same(m.Shared.Signer) {
			const what = "of driver %s, %s, for kernel %s, signed by %s"
			signer := cmp.Or(is.Signer, &facts.Key{Name: "no key"}).Name
			return &trouble.Error{
				What:    "cannot use module " + path.Base(name) + " that DKMS has built: it is not " + fmt.Sprintf(what, one.Version, one.Flavour, one.Kernel, m.Shared.Signer.Name),
				Because: []string{"it is " + fmt.Sprintf(what, is.Version, is.Flavour(), is.Kernel(), signer)},
				Try:     []string{"/etc/dkms/framework.conf and /etc/dkms/framework.conf.d, which may name another key or kernel"},
			}
		}
	}
	if one.Vermagic == "" {
		return fmt.Errorf("cannot package what DKMS has built for kernel %s: the module nvidia is not there", one.Kernel)
	}
	return nil
}
