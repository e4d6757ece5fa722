// SPDX-License-Identifier: Apache-2.0

package stages

import (
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

// builds is where DKMS builds them. Compilers write the place into modules, and the same modules are to be the same bytes.
const builds = "/var/lib/gpuadm-modules"

// share builds modules and puts their packages into the mirror's new folder.
func (m Mirror) share(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, s spec.Spec, f facts.Facts, names []string,
) (shared []packages.LockModules, err error) {
	if len(m.Shared.Kernels) == 0 {
		return nil, nil
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
			var one packages.LockModules
			one, err = m.modules(ctx, h, from, g, src, c.Flavour, kernel)
			shared = append(shared, one)
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
	if _, err := h.Stat("/usr/bin/rpmbuild"); err != nil && from.Name() == "dnf" {
		lacks = append(lacks, "rpm-build")
	}
	for _, member := range c.Members {
		tool, headers := member.Role == "dkms" || member.Role == "compiler", member.Role == "headers" && slices.Contains(m.Shared.Kernels, member.PerKernel)
		if tool && !installed[member.Name].Installed() || headers && !slices.Contains(kmod.WithHeaders(h), member.PerKernel) {
			lacks = append(lacks, member.Name)
			if headers && from.Name() == "dnf" { // it leads to the headers
				lacks = append(lacks, "kernel-core-"+member.PerKernel)
			}
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	install := map[string]string{"apt": "apt-get", "dnf": "dnf"}[from.Name()] + " install " + strings.Join(lacks, " ")
	return &trouble.Error{
		What: "cannot build modules here: " + strings.Join(lacks, ", ") + " is not installed",
		Try:  []string{install + ", in this machine or container, which is of the nodes' system; then run the same command again"},
	}
}

// of are the packages of modules that have a file.
func of(all []packages.LockModules, file string) []packages.LockModules {
	return slices.DeleteFunc(slices.Clone(all), func(o packages.LockModules) bool { return o.File != file })
}

// modules builds modules for a kernel and writes their package. That of the folder, of the same source, headers, builder and signer, is taken over.
func (m Mirror) modules(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, src packages.ModuleSource, flavour, kernel string,
) (one packages.LockModules, err error) {
	source, err := packages.Digest(h, path.Join(g.Into, src.File))
	if err != nil {
		return one, err
	}
	headers, err := facts.KernelSymbols(h, kernel)
	if err != nil {
		return one, err
	}
	dkms, err := h.Ask(ctx, "dkms", "--version")
	if err != nil {
		return one, err
	}
	config, _ := h.ReadFile("/lib/modules/" + kernel + "/build/.config") // of other builders' kernels, which have none, the compiler is not known
	one.SharedModules = facts.SharedModules{
		Package: facts.SharedPackage(flavour, kernel), Kernel: kernel, Version: packages.Own(src.Version), Flavour: flavour, Source: source.SHA256,
		Headers: headers, Signer: m.Shared.Signer,
		Builder: strings.TrimSpace(strings.Join([]string{m.For, strings.TrimSpace(string(dkms)), facts.CompilerIn(string(config))}, "; ")),
	}
	old, _ := packages.ReadLock(h, m.Dir) // an empty one where there is no mirror yet
	for _, file := range old.Files {
		for _, o := range of(old.Modules, file.Name) {
			is := o.SharedModules
			is.Vermagic = ""
			if is == one.SharedModules && file.In(h, m.Dir) {
				_, err := h.Do(ctx, "ln", "-f", "--", path.Join(m.Dir, o.File), path.Join(g.Into, o.File))
				return o, err
			}
		}
	}
	files, err := m.build(ctx, h, src, kernel)
	if err != nil {
		return one, err
	}
	defer h.Do(context.WithoutCancel(ctx), "rm", "-rf", "--", builds)
	if err := m.prove(h, &one.SharedModules, files); err != nil {
		return one, err
	}
	pack := packages.ModulePackage{Name: one.Package, Kernel: kernel, From: src, Root: g.Work + "/package-" + kernel}
	into := path.Join(pack.Root, "usr/lib/modules", kernel, facts.SharedFolder)
	for _, argv := range [][]string{{"mkdir", "-p", "--", into}, append([]string{"cp", "-t", into, "--"}, files...)} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return one, err
		}
	}
	made, err := from.Pack(ctx, h, g, pack)
	if err != nil {
		return one, err
	}
	one.File = path.Base(made)
	_, err = h.Do(ctx, "mv", "-fT", "--", made, path.Join(g.Into, one.File)) // a killed run may have left a link there
	return one, err
}

// build has DKMS build and sign, and returns the modules' files. The key is named to it as settings are that it reads after its own.
// Source: read_conf and prepare_signing in dkms.in of https://github.com/dkms-project/dkms (v3.0.10, v3.2.0), and dkms(8), --directive.
func (m Mirror) build(ctx context.Context, h host.Host, src packages.ModuleSource, kernel string) (files []string, err error) {
	name, version := strings.TrimSuffix(path.Base(src.Folder), "-"+packages.Own(src.Version)), packages.Own(src.Version)
	sources, tree := builds+"/source", builds+"/tree"
	for _, argv := range [][]string{
		{"rm", "-rf", "--", builds}, // of a run that was killed
		{"mkdir", "-p", "--", sources, tree},
		{"cp", "-rT", "--", src.Folder, sources + "/" + path.Base(src.Folder)},
	} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return nil, err
		}
	}
	m.Note("DKMS builds the modules of driver " + version + " for kernel " + kernel + ": that takes minutes")
	jobs := strconv.Itoa(kmod.BuildJobs(h))
	_, err = h.Do(ctx, "env", "OMP_NUM_THREADS="+jobs, "SOURCE_DATE_EPOCH="+packages.Built, "KBUILD_BUILD_TIMESTAMP=@"+packages.Built,
		"KBUILD_BUILD_USER=gpuadm", "KBUILD_BUILD_HOST=mirror", "dkms", "build", "-j", jobs, "-m", name, "-v", version, "-k", kernel,
		"--dkmstree", tree, "--sourcetree", sources, "--directive", "mok_signing_key="+m.Shared.Key, "--directive", "mok_certificate="+m.Shared.Certificate)
	if err != nil {
		log := path.Join(tree, name, version, "build/make.log")
		t := &trouble.Error{What: fmt.Sprintf("cannot build modules for kernel %s: %v", kernel, err), Err: err, Try: []string{"less " + log, "another version of the driver, if this one does not build for that kernel"}}
		if text, no := h.ReadFile(log); no == nil && ctx.Err() == nil {
			if first := kmod.FirstError(string(text)); first != "" {
				t.What, t.Because = fmt.Sprintf("cannot build modules for kernel %s: %s", kernel, first), []string{"the first error in DKMS's make.log"}
			}
		}
		return nil, t
	}
	of := path.Join(tree, name, version, kernel)
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
		driver, signer := strings.HasPrefix(path.Base(name), "nvidia."), "no key"
		if is.Signer != nil {
			signer = is.Signer.Name
		}
		if driver {
			one.Vermagic = is.Vermagic
		}
		if is.Kernel() != one.Kernel || driver && (is.Version != one.Version || is.Flavour() != one.Flavour) || is.Signer == nil || !is.Signer.Same(m.Shared.Signer) {
			return &trouble.Error{
				What:    fmt.Sprintf("cannot use module %s that DKMS has built: it is of driver %s, %s, for kernel %s, signed by %s", path.Base(name), is.Version, is.Flavour(), is.Kernel(), signer),
				Because: []string{fmt.Sprintf("driver %s, %s, for kernel %s, signed by %s, was to be built", one.Version, one.Flavour, one.Kernel, m.Shared.Signer.Name)},
				Try:     []string{"/etc/dkms/framework.conf and /etc/dkms/framework.conf.d, which may name another key or kernel"},
			}
		}
	}
	if one.Vermagic == "" {
		return fmt.Errorf("cannot use what DKMS built for kernel %s: it has no module nvidia", one.Kernel)
	}
	return nil
}
