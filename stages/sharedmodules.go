// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Shared is what gpuadm mirror is to build once for all nodes: the driver's modules.
type Shared struct {
	Kernels     []string
	Key         string      // the file with the key that signs modules
	Certificate string      // the file with its certificate
	Signer      modinfo.Key // whose the certificate is
}

// buildFolder is where DKMS builds the modules. Compilers write its path into modules, and the same
// modules are to be the same bytes.
const buildFolder = "/var/lib/gpuadm-modules"

// share builds modules and puts their packages into the mirror's new folder, and the modules into
// the lock, by the names of the packages' files. Modules that do not build for a kernel are in the
// lock, too, with their failure: failed has the errors.
func (m Mirror) share(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering,
	s spec.Spec, f facts.Facts, names []string, lock *packages.Lock,
) (failed []error, err error) {
	lock.Modules = map[string]packages.SharedModules{}
	if len(m.Shared.Kernels) == 0 {
		return nil, nil
	}

	choice, _, err := drivers.New(nil).Choose(s, f)
	if err != nil {
		return nil, err
	}
	builtByDKMS := func(m drivers.Member) bool {
		return m.Role == "module" && m.PerKernel == ""
	}
	i := slices.IndexFunc(choice.Members, builtByDKMS)
	if i < 0 {
		return nil, &trouble.Error{
			What: "cannot build modules: the spec asks for no driver that DKMS builds",
			Try:  []string{`write source = "nvidia" and a version in [driver]`},
		}
	}

	if err := m.canBuild(ctx, h, from, choice); err != nil {
		return nil, err
	}
	source, err := packages.SourceOf(ctx, h, from, g, names, choice.Members[i].Name)
	if err != nil {
		return nil, err
	}

	for _, kernel := range m.Shared.Kernels {
		modules := packages.SharedModules{
			Package: packages.SharedPackage(choice.Flavour, kernel),
			Kernel:  kernel,
			Version: packages.Own(source.Version),
			Flavour: choice.Flavour,
		}
		file, err := m.modulePackage(ctx, h, from, g, source, &modules)
		var taught converge.Taught
		switch {
		case errors.As(err, &taught):
			modules.Failure = taught.Lesson.Says
			lock.Failed = append(lock.Failed, modules)
			failed = append(failed, err)
		case err != nil:
			return nil, err
		default:
			lock.Modules[file] = modules
		}
	}

	return failed, nil
}

// canBuild refuses a machine that lacks what builds modules: mirror installs nothing.
func (m Mirror) canBuild(ctx context.Context, h host.Host, from packages.Gatherer, c drivers.Choice) error {
	installed, err := from.Installed(ctx, h)
	if err != nil {
		return err
	}

	var lacks []string
	isDNF := from.Name() == "dnf"
	if _, err := h.Stat("/usr/bin/rpmbuild"); isDNF && err != nil {
		lacks = append(lacks, "rpm-build")
	}
	for _, member := range c.Members {
		switch member.Role {
		case "dkms", "compiler":
			if !installed[member.Name].Installed() {
				lacks = append(lacks, member.Name)
			}
		case "headers":
			if !m.lacksHeaders(h, member.PerKernel) {
				continue
			}
			lacks = append(lacks, member.Name)
			if isDNF { // it leads to the headers
				lacks = append(lacks, "kernel-core-"+member.PerKernel)
			}
		}
	}

	if len(lacks) == 0 {
		return nil
	}

	install := "apt-get install "
	if isDNF {
		install = "dnf install "
	}
	return &trouble.Error{
		What: "cannot build modules here: " + strings.Join(lacks, ", ") + " is not installed",
		Try:  []string{install + strings.Join(lacks, " ") + ", in this machine or container, which is of the nodes' system; then run the same command again"},
	}
}

// lacksHeaders says whether modules are built for a kernel, and its headers are not installed.
func (m Mirror) lacksHeaders(h host.View, kernel string) bool {
	return slices.Contains(m.Shared.Kernels, kernel) && !slices.Contains(kmod.WithHeaders(h), kernel)
}

// modulePackage builds modules for a kernel, writes their package, and returns its file's name. It
// takes over the package of the old folder if that has the same source, headers, builder and
// signer.
func (m Mirror) modulePackage(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering,
	source packages.ModuleSource, modules *packages.SharedModules,
) (file string, err error) {
	if err := m.describe(ctx, h, path.Join(g.Into, source.File), modules); err != nil {
		return "", err
	}
	old, found := m.oldPackage(h, modules)
	if found {
		_, err := h.Do(ctx, "ln", "-f", "--", path.Join(m.Dir, old), path.Join(g.Into, old))
		return old, err
	}

	if err := m.failedBefore(h, *modules); err != nil {
		return "", err
	}
	files, err := m.build(ctx, h, source, modules.Kernel)
	if err != nil {
		return "", err
	}
	defer h.Do(context.WithoutCancel(ctx), "rm", "-rf", "--", buildFolder)
	if err := m.verifyBuilt(h, modules, files); err != nil {
		return "", err
	}

	pack := packages.ModulePackage{
		Name:   modules.Package,
		Kernel: modules.Kernel,
		From:   source,
		Root:   g.Work + "/package-" + modules.Kernel,
	}
	into := path.Join(pack.Root, "usr/lib/modules", modules.Kernel, facts.SharedFolder)
	install := append([]string{"install", "-D", "-m", "644", "-t", into, "--"}, files...)
	if _, err := h.Do(ctx, install...); err != nil {
		return "", err
	}
	made, err := from.Pack(ctx, h, g, pack)
	if err != nil {
		return "", err
	}
	file = path.Base(made)
	target := path.Join(g.Into, file) // a killed run may have left a link there
	_, err = h.Do(ctx, "mv", "-fT", "--", made, target)
	return file, err
}

// describe fills in what the modules are built from, and by what.
func (m Mirror) describe(
	ctx context.Context, h host.Host, sourceFile string, modules *packages.SharedModules,
) error {
	source, err := packages.Digest(h, sourceFile)
	if err != nil {
		return err
	}
	modules.Headers, err = modinfo.Symbols(h, modules.Kernel)
	if err != nil {
		return err
	}
	dkms, err := h.Ask(ctx, "dkms", "--version")
	if err != nil {
		return err
	}
	// Other builders' kernels have no such file: their compiler is not known.
	config, err := h.ReadFile("/lib/modules/" + modules.Kernel + "/build/.config")
	if err != nil && !host.NotExist(err) {
		return err
	}

	builder := []string{m.For, strings.TrimSpace(string(dkms)), facts.CompilerIn(string(config))}
	modules.Builder = strings.TrimSpace(strings.Join(builder, "; "))
	modules.Source = source.SHA256
	modules.Signer = m.Shared.Signer
	modules.Settings, err = dkmsSettings(h)
	return err
}

// dkmsSettings is the digest of the files by which an operator changes how DKMS builds: dkms(8).
func dkmsSettings(h host.View) (string, error) {
	digest := sha256.New()
	some := false
	for _, folder := range []string{"/etc/dkms", "/etc/dkms/framework.conf.d"} {
		files, err := h.ReadDir(folder)
		if err != nil && !host.NotExist(err) {
			return "", err
		}
		for _, file := range files {
			if path.Ext(file) != ".conf" {
				continue
			}
			name := path.Join(folder, file)
			text, err := h.ReadFile(name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(digest, "%s %d\n%s", name, len(text), text)
			some = true
		}
	}

	if !some {
		return "", nil
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// oldPackage is the file of the old mirror that has these modules. It fills in the vermagic that
// only a build tells.
func (m Mirror) oldPackage(h host.View, modules *packages.SharedModules) (file string, found bool) {
	lock, _ := packages.ReadLock(h, m.Dir) // an empty one where the machine has no mirror yet
	for _, file := range lock.Files {
		old := lock.Modules[file.Name]
		want := *modules
		want.Vermagic = old.Vermagic
		if old == want && file.In(h, m.Dir) {
			*modules = old
			return file.Name, true
		}
	}

	return "", false
}

// failedBefore refuses a build that has failed when the folder was written last: the compiler would
// say the same after minutes.
func (m Mirror) failedBefore(h host.View, modules packages.SharedModules) error {
	lock, _ := packages.ReadLock(h, m.Dir)
	failure := lock.FailedBefore(modules)
	if failure == "" {
		return nil
	}

	t := &trouble.Error{
		What:    fmt.Sprintf("cannot build the modules nvidia %s for %s: %s", modules.Version, modules.Kernel, failure),
		Because: []string{m.Dir + " has this failure from the same source and headers, by the same compiler, DKMS and settings: nothing was compiled again"},
		Try: []string{
			"ask for another version of the driver, or another kernel",
			"change what the build goes by: the compiler, or DKMS's settings in /etc/dkms; gpuadm then builds again",
			"to build once more all the same: -o with a folder that is not there yet",
		},
	}
	return converge.Teach(t, converge.Lesson{Says: failure})
}

// build has DKMS build and sign, and returns the modules' files. The key is named in directives,
// which DKMS reads after its own settings.
// Source: read_conf and prepare_signing in dkms.in of https://github.com/dkms-project/dkms
// (v3.0.10, v3.2.0), and dkms(8), --directive.
func (m Mirror) build(
	ctx context.Context, h host.Host, source packages.ModuleSource, kernel string,
) (files []string, err error) {
	if _, err := h.Do(ctx, "rm", "-rf", "--", buildFolder); err != nil { // of a run that was killed
		return nil, err
	}
	if _, err := h.Do(ctx, "mkdir", "-p", "--", buildFolder); err != nil {
		return nil, err
	}

	version := packages.Own(source.Version)
	name := strings.TrimSuffix(path.Base(source.Folder), "-"+version)
	m.Note("DKMS builds the modules of driver " + version + " for kernel " + kernel + ": that takes minutes")
	jobs := strconv.Itoa(kmod.BuildJobs(h))
	_, err = h.Do(ctx, "env",
		"OMP_NUM_THREADS="+jobs, "SOURCE_DATE_EPOCH="+packages.Built,
		"KBUILD_BUILD_TIMESTAMP=@"+packages.Built, "KBUILD_BUILD_USER=gpuadm", "KBUILD_BUILD_HOST=mirror",
		"dkms", "build", "-j", jobs, "-m", name, "-v", version, "-k", kernel,
		"--dkmstree", buildFolder, "--sourcetree", path.Dir(source.Folder),
		"--directive", "mok_signing_key="+m.Shared.Key,
		"--directive", "mok_certificate="+m.Shared.Certificate)
	if err != nil {
		return nil, kmod.NotBuilt(h, buildFolder, name, version, kernel, err)
	}

	built := path.Join(buildFolder, name, version, kernel)
	for _, arch := range packages.ListOf(h, built) {
		folder := path.Join(built, arch, "module")
		for _, file := range packages.ListOf(h, folder) {
			if strings.Contains(file, ".ko") { // DKMS 3.2 has Module.symvers in the folder, too
				files = append(files, path.Join(folder, file))
			}
		}
	}

	return files, nil
}

// verifyBuilt refuses modules that are not what was to be built.
func (m Mirror) verifyBuilt(h host.View, modules *packages.SharedModules, files []string) error {
	for _, name := range files {
		module, err := modinfo.Read(h, name)
		if err != nil {
			return err
		}

		asWanted := module.Kernel() == modules.Kernel && m.signed(module)
		if facts.IsNvidia(name) { // only this one has version and license
			modules.Vermagic = module.Vermagic
			asWanted = asWanted && module.Version == modules.Version && module.Flavour() == modules.Flavour
		}
		if !asWanted {
			return m.otherModule(module, modules)
		}
	}

	if modules.Vermagic == "" {
		return fmt.Errorf("cannot package what DKMS has built for kernel %s: the module nvidia is not there", modules.Kernel)
	}
	return nil
}

// signed says whether the mirror's key has signed a module.
func (m Mirror) signed(module modinfo.Module) bool {
	return module.Signer != nil && module.Signer.Same(m.Shared.Signer)
}

// otherModule returns the error for a module that is not what was to be built.
func (m Mirror) otherModule(module modinfo.Module, wanted *packages.SharedModules) error {
	const what = "of driver %s, %s, for kernel %s, signed by %s"
	want := fmt.Sprintf(what, wanted.Version, wanted.Flavour, wanted.Kernel, m.Shared.Signer.Name)
	signer := cmp.Or(module.Signer, &modinfo.Key{Name: "no key"}).Name
	found := fmt.Sprintf(what, module.Version, module.Flavour(), module.Kernel(), signer)
	return &trouble.Error{
		What:    "cannot use module " + path.Base(module.Path) + " that DKMS has built: it is not " + want,
		Because: []string{"it is " + found},
		Try:     []string{"/etc/dkms/framework.conf and /etc/dkms/framework.conf.d, which may name another key or kernel"},
	}
}
