// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Driver is the choice that the driver's stages share.
type Driver struct{ last *chosen }

// chosen is the last choice, and what it was made from.
type chosen struct {
	of     question
	choice Choice
	err    error
}

// question holds the inputs of a choice.
type question struct {
	spec  spec.Driver
	facts facts.Facts
}

// New returns a Driver that has not chosen yet.
func New() Driver { return Driver{new(chosen)} }

// Choose returns the driver for a machine, and whether the spec asks for one at all. The stages of
// a run ask for the same machine: Choose makes the choice once.
func (d Driver) Choose(s spec.Spec, f facts.Facts) (choice Choice, asked bool, err error) {
	if !s.Has("driver") || s.Driver.Version == "" {
		return Choice{}, false, nil
	}
	if now := (question{s.Driver, f}); !reflect.DeepEqual(&d.last.of, &now) {
		*d.last = chosen{of: now}
		d.last.choice, d.last.err = d.choose(s.Driver, f)
	}
	return d.last.choice, true, d.last.err
}

func (d Driver) choose(s spec.Driver, f facts.Facts) (Choice, error) {
	choice, err := Choose(Load(), hardware.MachineOf(f, f.Cloud.Type), s)
	if err == nil {
		choice.join(Load(), s, f)
	}
	return choice, err
}

// Other describes a machine's driver, whatever a spec asks for.
type Other struct {
	Owner    string // the driver's owner, if it is not gpuadm; "" if no sign names one
	TakeOver string // how gpuadm gets to manage it
	Rack     bool   // GPUs are joined to those of other machines: FabricRack
}

// Other says whether another owner installs the driver, and whether the GPUs are part of a rack.
func (d Driver) Other(f facts.Facts) Other {
	c := Load()
	owner := c.owner(hardware.MachineOf(f, f.Cloud.Type), spec.Driver{})
	return Other{Owner: owner, TakeOver: takeOver(owner), Rack: FabricOf(c, f) == FabricRack}
}

// Needs says which facts the driver's stages need.
func Needs(s spec.Spec) facts.Needs {
	n := facts.Needs{Modules: s.Has("driver") && s.Driver.Version != ""}
	if n.Modules && s.Driver.Source == "distro" && s.Driver.Build != "dkms" {
		n.Signed, _, _ = strings.Cut(s.Driver.Version, ".")
	}
	if n.Modules {
		n.Files = packages.SourceFolders()
		for _, list := range packages.LocksOf(s.Driver.Repo.URL) {
			n.Shared = list
		}
	}
	return n
}

// Repositories returns the driver's repositories beside those that the distribution has set up. A
// repository without a URL only pins, for apt, the version and the source that is excluded.
func (c Choice) Repositories() []packages.Repository {
	if c.Source == SourceRunfile || c.Source == SourceNone {
		return nil
	}
	return []packages.Repository{{
		ID: "driver", About: "NVIDIA's driver packages for " + c.Repo.Distro,
		URL: c.Repo.URL, Key: c.Repo.KeyURL, Fingerprint: c.Repo.Fingerprint, Mixed: c.Repo.Mirror, Signed: packages.SignedAs(c.Repo.Signed, packages.SignedBoth),
		Pins: c.Family().Pins(c.Pattern()),
	}}
}

// Headers maps the kernels that modules are built for to the packages of their headers.
func (c Choice) Headers() map[string]string {
	of := map[string]string{}
	for _, m := range c.Members {
		if m.Role == "headers" {
			of[m.PerKernel] = m.Name
		}
	}
	return of
}

// Brings maps the packages asked for to the kernel modules that they install, by the catalog.
func (c Choice) Brings() map[string][]string {
	of := map[string][]string{}
	for _, m := range c.Members {
		switch m.Role {
		case "module":
			of[m.Name] = []string{"nvidia"}
		case "gds":
			of[m.Name] = []string{modules.Storage}
		}
	}
	return of
}

// Pattern returns the driver's version as packages.State writes it: 580.95.05, or 580.* for a
// branch.
func (c Choice) Pattern() string {
	if c.Version != "" {
		return c.Version
	}
	return c.Branch + ".*"
}

// Packages are the desired states of the driver's packages: the lockstep in one version and held
// there, the others in any.
func (c Choice) Packages() map[string]packages.State {
	want := map[string]packages.State{}
	for _, m := range c.Members {
		if m.Lockstep {
			want[m.Name] = packages.State{Version: "driver=" + c.Pattern(), Held: true}
		} else {
			want[m.Name] = packages.State{Version: m.Name + "=*"}
		}
	}
	return want
}

// lockstep are the packages that have to be of the driver's version.
func (c Choice) lockstep() map[string]packages.State {
	want := c.Packages()
	maps.DeleteFunc(want, func(_ string, s packages.State) bool { return !s.Held })
	return want
}

// KernelSide returns the desired state of the modules. known is false while the version is not
// known: for a branch it is the newest version that its packages have installed.
func (c Choice) KernelSide(s spec.Driver, f facts.Facts) (k modules.KernelSide, known bool) {
	k = modules.KernelSide{
		Version: c.Version, Flavour: c.Flavour, Build: "dkms", Kernels: f.Kernel.Targets(f.Live), Image: f.Image,
		Parameters: map[string]string{}, Companions: []string{"nvidia-uvm", "nvidia-modeset"},
	}
	if c.Shared {
		k.Build = "shared"
	} else if c.Precompiled {
		k.Build = "precompiled"
	}
	if f.Modules != nil {
		k.Files = f.Modules.Cache
	}
	k.Kernels = slices.DeleteFunc(k.Kernels, func(kernel string) bool { return slices.Contains(c.Without, kernel) })
	if s.Peermem {
		k.Companions = append(k.Companions, modules.Peermem)
	}
	if s.GDS {
		k.Companions = append(k.Companions, modules.Storage)
	}
	for name, value := range c.Parameters {
		k.Parameters[name] = value
	}
	for name, value := range s.Parameters {
		k.Parameters[name] = value
	}
	c.fabricSide(s, f, &k)
	if k.Version == "" && f.Modules != nil {
		for _, lib := range f.Modules.Libraries {
			if hardware.InBranch(lib.Version, c.Branch) {
				k.Version = lib.Version
			}
		}
	}
	for _, kernel := range k.Kernels {
		if f.Modules == nil {
			break
		}
		if on, known := f.Modules.Of(kernel); known && !on.Headers && k.Build == "dkms" && c.waits(f, k, kernel) {
			k.Waiting = append(k.Waiting, kernel)
		}
	}
	return k, k.Version != ""
}

// LeftAlone is a want of every stage whose part of the driver has another owner or no use: it
// releases earlier changes. Without it, when a GPU falls off the bus or a driver container starts,
// gpuadm would remove the driver's packages as no longer asked for.
func (d Driver) LeftAlone(s spec.Spec, f facts.Facts) []converge.Want {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source != SourceNone {
		return nil
	}
	w := things.Check("driver not managed", func(context.Context, host.View) (string, error) { return "", nil }, c.Why)
	w.Section, w.Releases = "driver", true
	return []converge.Want{w}
}

// Runfile returns the wants for NVIDIA's installer, which follow those for its build tools; where
// the spec asks for packages, it wants no driver of the installer.
func (d Driver) Runfile(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	c, asked, err := d.Choose(s, f)
	switch {
	case !asked || err != nil || c.Source == SourceNone:
		return nil, err
	case c.Source != SourceRunfile:
		return []converge.Want{noRunfile()}, nil
	}
	via := host.Via{HTTP: s.Proxy.HTTP, HTTPS: s.Proxy.HTTPS, No: s.Proxy.NoProxy, CAFile: s.Proxy.CAFile}
	return []converge.Want{RunfileWant(c, s.Driver.Runfile.SHA256, via)}, nil
}

// Settings is the stage before the packages: settings that must exist when their scripts build and
// load modules.
func (d Driver) Settings(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source == SourceNone {
		return nil, err
	}
	k, _ := c.KernelSide(s.Driver, f)
	return modules.Settings(k)
}

// Modules is the stage after the packages: modules of one version for every kernel, and the loaded
// module.
func (d Driver) Modules(database *packages.Reading) converge.Stage {
	return converge.Stage{
		Name: "modules", About: "kernel modules of the driver's version: built, proven and loaded", Needs: Needs, Verifies: "packages",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			c, asked, err := d.Choose(s, f)
			if !asked || err != nil {
				return nil, err
			}
			if c.Source == SourceNone {
				return append(d.LeftAlone(s, f), verified(c, s.Driver, f)...), nil
			}
			k, known := c.KernelSide(s.Driver, f)
			if !known {
				return []converge.Want{later("modules of driver "+c.Branch, "once its packages are installed"), modules.Loaded(f, modules.KernelSide{Remade: s.MIG.Asked()})}, nil
			}
			if c.Minimum != "" && hardware.Compare(k.Version, c.Minimum) < 0 { // the newest of its branch may still be too old
				return nil, refuse(fmt.Sprintf("cannot use driver %s: the GPUs here need %s or newer", k.Version, c.Minimum),
					"write a newer version in [driver], or use a repository that has one")
			}
			k.Remade = s.MIG.Asked()
			wants, err := modules.Wants(k, f, *f.Modules)
			if err != nil {
				return nil, err
			}
			installed := func(ctx context.Context, v host.View) (bool, error) { return database.Meets(ctx, v, c.lockstep()) }
			if c.Source == SourceRunfile {
				installed = nil
			}
			return append([]converge.Want{modules.Parts(k.Version, s.Driver.Persistenced && !c.Guest, *f.Modules, installed)}, wants...), nil
		},
		Notes: func(_ host.View, s spec.Spec, f facts.Facts) []string {
			c, asked, err := d.Choose(s, f)
			if !asked || err != nil || f.Modules == nil {
				return nil
			}
			k, _ := c.KernelSide(s.Driver, f)
			notes := slices.Concat(c.Warnings, ModuleProblems(f, *f.Modules, c), c.lacking(s.Driver, f))
			if c.Coherent && k.Parameters[coherentMode] == "driver" && (s.MIG.Asked() || s.Driver.GDS) {
				notes = append(notes, coherentMode+"=driver keeps the GPUs' memory out of the node's, and NVIDIA excludes MIG and GPUDirect Storage under it since 580.65.06: no release is known that allows them")
			}
			return notes
		},
	}
}

// Services is the stage of the driver's daemons.
func (d Driver) Services() converge.Stage {
	return converge.Stage{
		Name: "services", About: "the driver's daemons: persistence, the fabric where there are NVSwitches, IMEX, and a vGPU's licence", Needs: Needs,
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			c, asked, err := d.Choose(s, f)
			if !asked || err != nil || c.Source == SourceNone {
				return d.LeftAlone(s, f), err
			}
			k, known := c.KernelSide(s.Driver, f)
			if !known {
				return []converge.Want{later("daemons of driver "+c.Branch, "once its packages are installed")}, nil
			}
			wants, err := ServiceWants(c.services(s.Driver, k.Version), f)
			switch {
			case err == nil && c.Guest:
				wants = append(wants, griddWants(s.Driver.Grid, f)...)
			case err == nil && c.Source == SourceRunfile && s.Driver.Persistenced:
				wants = append(persistencedUnit(), wants...)
			}
			if err != nil {
				return nil, err
			}
			for i := range wants {
				wants[i].Section = "driver" // the spec has none of the stage's name
			}
			return wants, nil
		},
		Notes: d.imexNotes,
	}
}

// coherentMode decides what manages the memory of GPUs that share one with the CPU: the driver, or
// the kernel as a NUMA node. Source of its exclusions: NVIDIA/cloud-native-docs
// gpu-operator/release-notes.rst, v25.3.2.
const coherentMode = "NVreg_CoherentGPUMemoryMode"

// later is a want that waits until the version is known.
func later(name, until string) converge.Want {
	look := func(context.Context, host.View) (string, error) { return "", host.Later{Until: until} }
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
		is := strings.TrimSuffix(version, ".")
		switch {
		case is == "":
			if loader := facts.LoadsDriver(ctx, v); loader != "" {
				return "", things.DriverLoads(loader)
			}
			return fmt.Sprintf("cannot use the driver: no module nvidia is loaded, and the driver is left to %s", c.Owner), nil
		case is != d.Version && !hardware.InBranch(is, d.Version):
			return fmt.Sprintf("cannot use the driver: %s is loaded, %s is wanted, and the driver is left to %s", is, d.Version, c.Owner), nil
		}
		return "", nil
	}
	w := things.Check("driver "+d.Version, look, "the driver is left to "+c.Owner+", so gpuadm checks it and does not change it",
		"have its owner install it", takeOver(c.Owner))
	w.Releases = true
	return []converge.Want{w}
}
