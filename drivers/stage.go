// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Driver is the choice that the driver's stages share.
type Driver struct {
	last   *chosen
	memory *recall.Memory // what the files of modules said; nil remembers nothing
}

// chosen is the last choice, and what it was made from.
type chosen struct {
	from   question
	choice Choice
	err    error
}

// question holds the inputs of a choice.
type question struct {
	spec  spec.Driver
	mig   bool // the spec partitions GPUs
	whole bool // it leaves others whole
	facts facts.Facts
}

// New returns a Driver that has not chosen yet, with a memory of what files of modules
// said, or nil.
func New(memory *recall.Memory) Driver { return Driver{new(chosen), memory} }

// Choose returns the driver for a machine, and whether the spec asks for one at all. The stages of
// a run ask for the same machine: Choose makes the choice once.
func (d Driver) Choose(s spec.Spec, f facts.Facts) (choice Choice, asked bool, err error) {
	if !wantsDriver(s) {
		return Choice{}, false, nil
	}

	now := question{s.Driver, s.Partitions(), s.LeavesWhole(gpuCount(f)), f}
	if !reflect.DeepEqual(&d.last.from, &now) {
		choice, err := choiceFor(now)
		*d.last = chosen{now, choice, err}
	}
	return d.last.choice, true, d.last.err
}

// gpuCount counts the GPUs on the bus, without NVSwitches.
func gpuCount(f facts.Facts) int {
	isGPU := func(p facts.PCI) bool { return strings.HasPrefix(p.Class, "03") }
	return len(slices.DeleteFunc(slices.Clone(f.GPUs), func(p facts.PCI) bool {
		return !isGPU(p)
	}))
}

// kernelSide is the KernelSide of a choice, with the memory of files.
func (d Driver) kernelSide(c Choice, s spec.Driver, f facts.Facts) (side modules.KernelSide, known bool) {
	side, known = c.KernelSide(s, f)
	side.Memory = d.memory
	return side, known
}

// wantsDriver says whether a spec asks for a driver.
func wantsDriver(s spec.Spec) bool { return s.Has("driver") && s.Driver.Version != "" }

// choiceFor makes the choice for a machine, with the fabric of its GPUs.
func choiceFor(q question) (Choice, error) {
	catalog := Load()
	machine := hardware.MachineOf(q.facts, q.facts.Cloud.Type)
	machine.MIG = q.mig
	machine.Whole = q.whole
	machine.Shared = sharedModules(machine, q.spec, q.facts)
	choice, err := Choose(catalog, machine, q.spec)
	if err == nil {
		choice.addFabric(catalog, q.spec, q.facts)
	}
	return choice, trouble.WithKeys(err, "driver.version")
}

// Needs says which facts the driver's stages need.
func Needs(s spec.Spec) facts.Needs {
	if !wantsDriver(s) {
		return facts.Needs{}
	}

	needs := facts.Needs{
		Modules: true,
		Files:   append(packages.SourceFolders(), FabricManagerConfig),
	}
	if s.Driver.Source == "distro" && s.Driver.Build != "dkms" {
		needs.Signed, _, _ = strings.Cut(s.Driver.Version, ".")
	}
	for _, list := range packages.LocksOf(s.Driver.Repo.URL) {
		needs.Files = append(needs.Files, list)
		needs.Symbols = true
	}

	return needs
}

// LeftAlone is a want of every stage whose part of the driver has another owner or no use: it
// releases earlier changes. Without it, when a GPU falls off the bus or a driver container starts,
// gpuadm would remove the driver's packages as no longer asked for.
func (d Driver) LeftAlone(s spec.Spec, f facts.Facts) []converge.Want {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source != SourceNone {
		return nil
	}

	look := func(context.Context, host.View) (string, error) { return "", nil }
	want := things.Check("driver not managed", look, c.Why)
	want.Section = "driver"
	want.Releases = true
	return []converge.Want{want}
}

// Runfile returns the wants for NVIDIA's installer, which follow those for its build tools; where
// the spec asks for packages, it wants no driver of the installer.
func (d Driver) Runfile(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source == SourceNone {
		return nil, err
	}
	if c.Source != SourceRunfile {
		return []converge.Want{noRunfile()}, nil
	}

	via := host.Via{
		HTTP:   s.Proxy.HTTP,
		HTTPS:  s.Proxy.HTTPS,
		No:     s.Proxy.NoProxy,
		CAFile: s.Proxy.CAFile,
	}
	return []converge.Want{RunfileWant(c, s.Driver.Runfile.SHA256, via)}, nil
}

// Settings is the stage before the packages: settings that must exist when their scripts build and
// load modules.
func (d Driver) Settings(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source == SourceNone {
		return nil, err
	}

	k, _ := d.kernelSide(c, s.Driver, f)
	if f.Baked && len(k.Kernels) == 0 {
		return nil, noKernelInImage()
	}
	return modules.Settings(k)
}

// noKernelInImage refuses to install the packages of a driver into an image in which nothing could
// be built or verified: the modules would be the last thing to fail.
func noKernelInImage() error {
	return &trouble.Error{
		What: "cannot install a driver into the image: no kernel is installed in it that the modules could be for",
		Try: []string{
			"install the kernel that the image boots, and its headers, then bake again",
			"remove [driver] from node.toml if another program brings the driver",
		},
		Keys: []string{"driver.version"},
	}
}

// Modules is the stage after the packages: modules of one version for every kernel, and the loaded
// module.
func (d Driver) Modules(database *packages.Reading) converge.Stage {
	return converge.Stage{
		Name:     "modules",
		About:    "kernel modules of the driver's version: built, proven and loaded",
		Needs:    Needs,
		Verifies: "packages",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			return d.moduleWants(database, s, f)
		},
		Notes:    d.moduleNotes,
		Restores: modulesOnDisk,
	}
}

// modulesOnDisk has for each kernel the driver's module that modprobe would load. After a roll-back
// of packages DKMS builds the old one, and the package's script succeeds where the build fails.
func modulesOnDisk(f facts.Facts) map[string]string {
	if f.Modules == nil {
		return nil
	}

	all := map[string]string{}
	for _, k := range f.Modules.Kernels {
		if k.Nvidia != nil {
			all["kernel "+k.Kernel] = "module nvidia " + k.Nvidia.Version
		}
	}

	return all
}

func (d Driver) moduleWants(
	database *packages.Reading, s spec.Spec, f facts.Facts,
) ([]converge.Want, error) {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil {
		return nil, err
	}
	if c.Source == SourceNone {
		return append(d.LeftAlone(s, f), verified(c, s.Driver, f)...), nil
	}

	k, known := d.kernelSide(c, s.Driver, f)
	if !known {
		return []converge.Want{
			later("modules of driver "+c.Branch, "once its packages are installed"),
			modules.Loaded(f, modules.KernelSide{Remade: s.MIG.Asked()}),
		}, nil
	}
	// The newest version of a branch may still be too old.
	gpu, needs := whoNeeds(f, k.Version)
	if needs != "" {
		return nil, refuse(
			fmt.Sprintf("cannot use driver %s: %s needs %s or newer", k.Version, gpu, needs),
			"write a newer version in [driver], or use a repository that has one")
	}

	k.Remade = s.MIG.Asked()
	wants, err := modules.Wants(k, f, *f.Modules)
	if err != nil {
		return nil, err
	}

	var installed *modules.Installed // the installer has no packages
	if c.Source != SourceRunfile {
		installed = &modules.Installed{
			Meets: func(ctx context.Context, v host.View) (bool, error) {
				return database.Meets(ctx, v, c.lockstep())
			},
			Listed: func(ctx context.Context, v host.View, files []string) (map[string]string, error) {
				return database.Listed(ctx, v, k.Version, files)
			},
			Reinstall: database.Reinstall,
		}
	}

	parts := modules.Parts(k.Version, s.Driver.Persistenced && !c.Guest, *f.Modules, installed)
	return append([]converge.Want{parts}, wants...), nil
}

// coherentMode decides what manages the memory of GPUs that share one with the CPU: the driver, or
// the kernel as a NUMA node. Source of its exclusions: NVIDIA/cloud-native-docs
// gpu-operator/release-notes.rst, v25.3.2.
const coherentMode = "NVreg_CoherentGPUMemoryMode"

func (d Driver) moduleNotes(v host.View, s spec.Spec, f facts.Facts) []string {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || f.Modules == nil {
		return nil
	}

	k, _ := d.kernelSide(c, s.Driver, f)
	notes := slices.Concat(c.Warnings, ModuleProblems(f, *f.Modules, c), c.lacking(s.Driver, f))
	if note := Vulnerable(k.Version); note != "" {
		notes = append(notes, note)
	}
	notes = append(notes, c.learned(v, f, k)...)
	if s.Driver.Build == "dkms" { // else the choice names what a mirror lacks, and why
		notes = append(notes, c.failedElsewhere(s.Driver, f, k)...)
	}
	driversMemory := c.Coherent && k.Parameters[coherentMode] == "driver"
	if driversMemory && (s.MIG.Asked() || s.Driver.GDS) {
		notes = append(notes, coherentMode+"=driver keeps the GPUs' memory out of the node's, and NVIDIA excludes MIG and GPUDirect Storage under it since 580.65.06: no release is known that allows them")
	}
	return notes
}

// learned says of each kernel that modules are to be built for that this build has failed before:
// by the journal, in the same flavour, and with the same compiler.
func (c Choice) learned(v host.View, f facts.Facts, k modules.KernelSide) (notes []string) {
	if k.Build != "dkms" || k.Version == "" {
		return nil
	}
	var lessons []converge.Lesson
	for _, kernel := range k.Kernels {
		if c.hasDriver(f, k, kernel) {
			continue
		}
		if lessons == nil { // a converged machine reads none
			lessons = converge.ReadJournal(v).Lessons()
		}
		for _, l := range lessons {
			if kmod.Concerns(v, l, k.Version, kernel, k.Flavour) {
				notes = append(notes, fmt.Sprintf(
					"driver %s did not build for kernel %s on this machine before: %s",
					k.Version, kernel, l.Says,
				))
			}
		}
	}

	return notes
}

// failedElsewhere says of each kernel that modules are to be built for that this build has failed
// where the mirror was written.
func (c Choice) failedElsewhere(s spec.Driver, f facts.Facts, k modules.KernelSide) (notes []string) {
	for _, m := range packages.SharedIn(lockOf(s, f)) {
		sameBuild := m.Version == k.Version && m.Flavour == k.Flavour && slices.Contains(k.Kernels, m.Kernel)
		if m.Failure == "" || !sameBuild || c.hasDriver(f, k, m.Kernel) {
			continue
		}
		notes = append(notes, fmt.Sprintf(
			"driver %s did not build for kernel %s where the mirror was written: %s",
			m.Version, m.Kernel, m.Failure,
		))
	}
	return notes
}

// Services is the stage of the driver's daemons.
func (d Driver) Services() converge.Stage {
	return converge.Stage{
		Name:  "services",
		About: "the driver's daemons: persistence, the fabric where there are NVSwitches, IMEX, and a vGPU's licence",
		Needs: Needs,
		Wants: d.serviceWants,
		Notes: d.serviceNotes,
	}
}

func (d Driver) serviceNotes(v host.View, s spec.Spec, f facts.Facts) []string {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source == SourceNone {
		return nil
	}
	return append(fabricNotes(c.Fabric, s.Driver.FabricManager, f), c.imexNotes(v, s.Driver)...)
}

func (d Driver) serviceWants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source == SourceNone {
		return d.LeftAlone(s, f), err
	}
	k, known := d.kernelSide(c, s.Driver, f)
	if !known {
		return []converge.Want{later("daemons of driver "+c.Branch, "once its packages are installed")}, nil
	}

	wants, err := ServiceWants(c.services(s.Driver, k.Version), f)
	if err != nil {
		return nil, err
	}
	switch {
	case c.Guest:
		wants = append(wants, griddWants(s.Driver.Grid, f)...)
	case c.Source == SourceRunfile && s.Driver.Persistenced:
		wants = append(persistencedUnit(), wants...)
	}

	for i := range wants {
		wants[i].Section = "driver" // the spec has no section of the stage's name
	}
	return wants, nil
}

// later is a want that waits until the version is known.
func later(name, until string) converge.Want {
	look := func(context.Context, host.View) (string, error) {
		return "", host.Later{Until: until}
	}
	return things.Check(name, look, "one version for all")
}

// verified checks whether the driver of another owner has the version asked for.
func verified(c Choice, d spec.Driver, f facts.Facts) []converge.Want {
	if c.Owner == "" {
		return nil // there is no GPU
	}

	look := func(ctx context.Context, v host.View) (string, error) {
		if !v.Live() {
			return "", host.FirstBoot
		}

		version, _ := facts.LoadedDriver(v)
		loaded := strings.TrimSuffix(version, ".")
		if loaded == "" {
			loader, err := facts.LoadsDriver(ctx, v)
			switch {
			case err != nil:
				return "", err
			case loader != "":
				return "", things.DriverLoads(loader)
			}
			return fmt.Sprintf("cannot use the driver: no module nvidia is loaded, and the driver is left to %s", c.Owner), nil
		}

		if !hardware.InBranch(loaded, d.Version) {
			return fmt.Sprintf("cannot use the driver: %s is loaded, %s is wanted, and the driver is left to %s", loaded, d.Version, c.Owner), nil
		}
		return "", nil
	}

	want := things.Check("driver "+d.Version, look,
		"the driver is left to "+c.Owner+", so gpuadm checks it and does not change it",
		"have its owner install it", takeOver(c.Owner))
	want.Releases = true
	return []converge.Want{want}
}
