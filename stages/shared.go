// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"encoding/json"
	"errors"
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

// share builds modules and puts their packages into the mirror's folder, and lists all packages of modules there. What the folder had
// before, of the same source, headers and signer, is taken over.
func (m Mirror) share(
	ctx context.Context, h host.Host, from packages.Gatherer, s spec.Spec, f facts.Facts, names []string,
) (all []string, shared []packages.LockModules, err error) {
	old, _ := packages.ReadLock(h, m.Dir) // an empty one where there is no mirror yet
	for _, o := range old.Modules {       // that --keep has kept
		if slices.Contains(names, o.File) {
			shared = append(shared, o)
		}
	}
	if len(m.Shared.Kernels) == 0 {
		return names, shared, nil
	}
	g := packages.Gathering{Work: path.Join(m.beside("new"), mirrorWork), Into: m.beside("new"), Before: m.Dir, Note: m.Note}
	c, asked, err := drivers.New().Choose(s, f)
	if err != nil || !asked {
		return nil, nil, errors.Join(err, errors.New("cannot build modules: the spec asks for no driver"))
	}
	i := slices.IndexFunc(c.Members, func(m drivers.Member) bool { return m.Role == "module" && m.PerKernel == "" })
	if i < 0 {
		return nil, nil, &trouble.Error{What: "cannot build modules: the spec's driver has none that DKMS builds", Try: []string{`write source = "nvidia" in [driver]`}}
	}
	if err := m.builder(ctx, h, from, c); err != nil {
		return nil, nil, err
	}
	src, err := from.Source(ctx, h, g, names, c.Members[i].Name, c.Pattern())
	if err != nil {
		return nil, nil, err
	}
	if src.Folder == "" {
		return nil, nil, fmt.Errorf("cannot build modules: package %s has no source for DKMS", src.Name)
	}
	var own []string
	for _, kernel := range m.Shared.Kernels {
		one, err := m.modules(ctx, h, from, g, old, src, c.Flavour, kernel)
		if err != nil {
			return nil, nil, err
		}
		shared = slices.DeleteFunc(shared, func(o packages.LockModules) bool { return o.File == one.File })
		shared, own = append(shared, one), append(own, one.File)
	}
	all, err = from.Index(ctx, h, g, names, own)
	return all, shared, err
}

// builder refuses a machine that lacks what builds modules: mirror installs nothing.
func (m Mirror) builder(ctx context.Context, h host.Host, from packages.Gatherer, c drivers.Choice) error {
	packager := from.(packages.Packager)
	installed, err := packager.Installed(ctx, h)
	var lacks []string
	for _, member := range c.Members {
		tool, headers := member.Role == "dkms" || member.Role == "compiler", member.Role == "headers" && slices.Contains(m.Shared.Kernels, member.PerKernel)
		if tool && !installed[member.Name].Installed() || headers && !slices.Contains(kmod.WithHeaders(h), member.PerKernel) {
			lacks = append(lacks, member.Name)
			if headers && packager.Name() == "dnf" { // it leads to the headers
				lacks = append(lacks, "kernel-core-"+member.PerKernel)
			}
		}
	}
	if len(lacks) == 0 || err != nil {
		return err
	}
	install := map[string]string{"apt": "apt-get install ", "dnf": "dnf install "}[packager.Name()] + strings.Join(lacks, " ")
	return &trouble.Error{
		What: "cannot build modules here: " + strings.Join(lacks, ", ") + " is not installed",
		Try:  []string{install + ", in this machine or container, which is of the nodes' system; then run the same command again"},
	}
}

// modules builds modules for a kernel and writes their package, or takes over that of the folder.
func (m Mirror) modules(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, old packages.Lock, src packages.ModuleSource, flavour, kernel string,
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
	for _, o := range old.Modules {
		same := o.Package == one.Package && o.Source == one.Source && o.Headers == one.Headers && o.Signer == one.Signer && o.Builder == one.Builder
		if i := slices.IndexFunc(old.Files, func(f packages.LockFile) bool { return f.Name == o.File }); same && i >= 0 && old.Files[i].In(h, m.Dir) {
			_, err := h.Do(ctx, "ln", "-f", "--", path.Join(m.Dir, o.File), path.Join(g.Into, o.File))
			return o, err
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
	says, err := json.MarshalIndent(one.SharedModules, "", "  ")
	if err != nil {
		return one, err
	}
	for _, argv := range [][]string{{"mkdir", "-p", "--", into}, append([]string{"cp", "-t", into, "--"}, files...)} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return one, err
		}
	}
	if err := h.WriteFile(into+"/modules.json", append(says, '\n'), host.Attr{Mode: 0o644}); err != nil {
		return one, err
	}
	one.File, err = from.Pack(ctx, h, g, pack)
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
		t := &trouble.Error{What: fmt.Sprintf("cannot build modules for kernel %s: %v", kernel, err), Err: err}
		if log, no := h.ReadFile(path.Join(tree, name, version, "build/make.log")); no == nil {
			if first := kmod.FirstError(string(log)); first != "" {
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
		problem, driver := "", strings.HasPrefix(path.Base(name), "nvidia.")
		switch {
		case err != nil:
			return err
		case is.Kernel() != one.Kernel:
			problem = "it is built for kernel " + is.Kernel()
		case driver && (is.Version != one.Version || is.Flavour() != one.Flavour):
			problem = fmt.Sprintf("it is of driver %s, %s", is.Version, is.Flavour())
		case is.Signer == nil:
			problem = "DKMS has not signed it"
		case !is.Signer.Same(m.Shared.Signer):
			problem = "it is signed by " + is.Signer.Name + " and not by the key of --module-key: see /etc/dkms/framework.conf"
		case driver:
			one.Vermagic = is.Vermagic
		}
		if problem != "" {
			return fmt.Errorf("cannot use module %s for driver %s, %s: %s", path.Base(name), one.Version, one.Flavour, problem)
		}
	}
	if one.Vermagic == "" {
		return fmt.Errorf("cannot use what DKMS built for kernel %s: it has no module nvidia", one.Kernel)
	}
	return nil
}
