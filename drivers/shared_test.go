// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// The kernels of these tests, and the key that signs the site's modules.
const (
	sharedNow   = "6.1.0-28-amd64"
	sharedNewer = "6.1.0-31-amd64"
)

func siteKey() modinfo.Key {
	return modinfo.Key{
		Name:   "the site",
		Serial: "1",
		ID:     "aa",
	}
}

// sharedOf is an entry of a mirror's list.
func sharedOf(kernel, version, flavour string) hardware.SharedModules {
	return hardware.SharedModules{
		Package: packages.SharedPackage(flavour, kernel),
		Kernel:  kernel,
		Version: version,
		Flavour: flavour,
		Signer:  siteKey(),
	}
}

// sharedBoth is a list with the modules of 580.95.05 for both kernels.
func sharedBoth() []hardware.SharedModules {
	return []hardware.SharedModules{
		sharedOf(sharedNow, "580.95.05", "open"),
		sharedOf(sharedNewer, "580.95.05", "open"),
	}
}

// besideOthers is a list with modules of other drivers, too.
func besideOthers(list ...hardware.SharedModules) []hardware.SharedModules {
	return append(slices.Clone(list),
		sharedOf(sharedNow, "570.211.01", "open"), sharedOf(sharedNewer, "590.48.01", "open"),
		sharedOf(sharedNow, "580.65.06", "proprietary"), sharedOf(sharedNewer, "580.95.05", "proprietary"))
}

// A sharedCase is a machine with two kernels, and a mirror's list.
type sharedCase struct {
	name     string
	build    string // of the spec; "" is auto
	list     []hardware.SharedModules
	disk     map[string]hardware.Module
	trust    facts.Trust
	noMirror bool // the spec names none
}

func (c sharedCase) choose() (Choice, error) {
	m := machine("debian", "12", "amd64", "2331")
	m.Kernels = []string{sharedNewer, sharedNow}
	m.Running = sharedNow
	m.Shared = c.list
	m.OnDisk = c.disk
	m.Trust = c.trust

	d := with(driver("580.95.05"), "build", cmp.Or(c.build, "auto"))
	if !c.noMirror {
		d.Repo.URL = "file:///srv/mirror"
	}
	return Choose(Load(), m, d)
}

// runsOnShared is the disk of a machine that runs on shared modules.
func runsOnShared() map[string]hardware.Module {
	return map[string]hardware.Module{sharedNow: {Version: "580.95.05", Flavour: "open", Shared: true}}
}

// TestSharedAreTaken: modules that were built once are taken where each kernel has some that fit, and
// nothing that builds modules is installed. A machine that runs on them stays on them.
func TestSharedAreTaken(t *testing.T) {
	enrolled := facts.Trust{SecureBoot: "on", Enrolled: []modinfo.Key{siteKey()}}
	noList := []hardware.SharedModules{}
	for _, tt := range []struct {
		sharedCase
		skipped []string // kernels that get none
		warns   string
	}{
		{sharedCase{name: "both", list: sharedBoth()}, nil, ""},
		{sharedCase{name: "both, demanded", build: "shared", list: sharedBoth()}, nil, ""},
		{sharedCase{name: "no folder to list, demanded", build: "shared"}, nil, ""},
		{sharedCase{name: "beside other drivers", build: "shared", list: besideOthers(sharedBoth()...)}, nil, ""},
		{sharedCase{name: "signed by an enrolled key", list: sharedBoth(), trust: enrolled}, nil, ""},
		{sharedCase{name: "a kernel that has some comes", list: sharedBoth()[1:], disk: runsOnShared()}, nil, ""},
		{
			sharedCase{name: "a kernel that has none comes", list: noList, disk: runsOnShared()},
			[]string{sharedNewer},
			"for kernel " + sharedNewer + ": the mirror has none; gpuadm installs none for it",
		},
		{
			sharedCase{name: "the folder is gone", disk: runsOnShared()},
			[]string{sharedNewer},
			"the mirror has none",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			choice := must.Get(tt.choose())(t)

			check.That(t, choice.Shared, "not shared")
			check.That(t, slices.Equal(choice.Skipped, tt.skipped), "without %v, want %v", choice.Skipped, tt.skipped)
			check.Has(t, strings.Join(choice.Warnings, "\n"), tt.warns, "it warns")

			want := []string{packages.SharedPackage("open", sharedNewer), packages.SharedPackage("open", sharedNow)}
			want = want[len(tt.skipped):]
			check.That(t, slices.Equal(names(choice, "module"), want), "%v, want %v", names(choice, "module"), want)
			for _, role := range []string{"dkms", "headers", "compiler"} {
				check.That(t, names(choice, role) == nil, "%s %v is installed", role, names(choice, role))
			}
			check.Equal(t, builtBy(choice), "shared", "the stage's modules are built")
		})
	}
}

// TestSharedAreNot: what does not fit is named, and DKMS builds the modules here.
func TestSharedAreNot(t *testing.T) {
	now := "gpuadm-modules-open-" + sharedNow
	const otherBuild = "they were built for another build of the kernel"
	odd := sharedBoth()
	odd[0].Problem = otherBuild
	stale := sharedBoth()
	stale[0].Version = "580.65.06"
	proprietary := sharedBoth()
	proprietary[0] = sharedOf(sharedNow, "580.95.05", "proprietary")
	failed := sharedBoth()
	failed[1].Failure = "nv.c:3: error: no follow_pfn"
	otherFailed := slices.Clone(failed)
	otherFailed[1].Version = "590.48.01"
	secureBoot := facts.Trust{SecureBoot: "on"}
	const notTrusted = "it is signed by the site (serial 1), which the kernel does not trust"

	for _, tt := range []struct {
		sharedCase
		warns string
	}{
		{sharedCase{name: "no mirror"}, ""},
		{sharedCase{name: "DKMS demanded", build: "dkms", list: sharedBoth()}, ""},
		{sharedCase{name: "the spec names no mirror any more", disk: runsOnShared(), noMirror: true}, ""},
		{
			sharedCase{name: "one kernel", list: sharedBoth()[:1]},
			"no shared kernel modules for kernel " + sharedNewer + ": the mirror has none; DKMS builds them here",
		},
		{sharedCase{name: "of an older driver", list: stale}, now + " is of driver 580.65.06, open, and 580.95.05, open, is asked for"},
		{sharedCase{name: "of the other flavour", list: proprietary}, "is of driver 580.95.05, proprietary"},
		{sharedCase{name: "for another build of the kernel", list: odd}, "cannot use " + now + ": " + otherBuild},
		{sharedCase{name: "the same, beside other drivers", list: besideOthers(odd...)}, "cannot use " + now + ": " + otherBuild},
		{sharedCase{name: "signed by another key", list: sharedBoth(), trust: secureBoot}, notTrusted},
		{sharedCase{name: "signed by another key, beside other drivers", list: besideOthers(sharedBoth()...), trust: secureBoot}, notTrusted},
		{
			sharedCase{name: "one did not build", list: failed},
			"for kernel " + sharedNewer + ": driver 580.95.05 did not build for it where the mirror was written: nv.c:3: error: no follow_pfn",
		},
		{
			sharedCase{name: "another driver did not build", list: otherFailed},
			"for kernel " + sharedNewer + ": the mirror has none",
		},
		{
			sharedCase{name: "other drivers alone", list: besideOthers()},
			"is of driver 590.48.01, open, and 580.95.05, open, is asked for",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			choice := must.Get(tt.choose())(t)

			check.That(t, !choice.Shared && choice.Skipped == nil, "shared %t, without %v", choice.Shared, choice.Skipped)
			check.Has(t, strings.Join(choice.Warnings, "\n"), tt.warns, "it warns")

			module := names(choice, "module")
			check.That(t, slices.Equal(module, []string{"nvidia-kernel-open-dkms"}), "%v", module)
			check.That(t, names(choice, "headers") != nil, "nothing to build with")
			check.That(t, builtBy(choice) != "shared", "the stage's modules are shared")
		})
	}
}

// TestSharedDemanded: build = "shared" is refused where a kernel has no modules that fit.
func TestSharedDemanded(t *testing.T) {
	none := []hardware.SharedModules{}
	builtHere := hardware.Module{
		Version: "580.95.05",
		Flavour: "open",
		DKMS:    true,
	}
	dkms := map[string]hardware.Module{sharedNow: builtHere, sharedNewer: builtHere}
	failed := sharedBoth()
	failed[1].Failure = "nv.c:3: error: no follow_pfn"
	odd := sharedBoth()
	odd[0].Problem = "they were built for another build of the kernel"
	secureBoot := facts.Trust{SecureBoot: "on"}

	for _, tt := range []struct {
		sharedCase
		says string
	}{
		{
			sharedCase{name: "a mirror with none", list: none},
			"cannot take shared kernel modules for kernel " + sharedNewer + ": the mirror has none",
		},
		{sharedCase{name: "DKMS has built some", list: none, disk: dkms}, "the mirror has none"},
		{
			sharedCase{name: "one did not build", list: failed},
			"driver 580.95.05 did not build for it where the mirror was written",
		},
		{
			sharedCase{name: "for another build of the kernel, beside other drivers", list: besideOthers(odd...)},
			"cannot use gpuadm-modules-open-" + sharedNow + ": they were built for another build",
		},
		{
			sharedCase{name: "signed by another key", list: besideOthers(sharedBoth()...), trust: secureBoot},
			"it is signed by the site (serial 1), which the kernel does not trust",
		},
		{
			sharedCase{name: "a kernel that has none comes", list: none, disk: runsOnShared()},
			"mirror --for ID --modules " + sharedNewer,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.build = "shared"
			_, err := tt.choose()

			var refused *trouble.Error
			must.That(t, errors.As(err, &refused), "not refused: %v", err)
			check.Has(t, whole(refused), tt.says, "it says")
		})
	}
}

// builtBy is where the stage of the modules has them built.
func builtBy(c Choice) string {
	kernels := facts.Kernel{Running: sharedNow, Installed: []string{sharedNewer, sharedNow}}
	side, _ := c.KernelSide(spec.Driver{}, facts.Facts{Live: true, Kernel: kernels})
	return side.Build
}

// TestSharedOfBranch: a branch takes the version of the list.
func TestSharedOfBranch(t *testing.T) {
	m := machine("debian", "12", "amd64", "2331")
	m.Kernels = []string{sharedNewer, sharedNow}
	m.Shared = sharedBoth()

	choice := choose(t, m, driver("580"))

	check.That(t, choice.Shared, "not shared")
	check.Equal(t, names(choice, "module")[0], packages.SharedPackage("open", sharedNewer), "the first package is")
}

// TestSharedOfFormerKernel: the modules of the kernel that ran before stay, or get the new version; the
// driver is not refused for that kernel.
func TestSharedOfFormerKernel(t *testing.T) {
	const former = "6.1.0-25-amd64"
	forAll := append([]hardware.SharedModules{sharedOf(former, "580.95.05", "open")}, sharedBoth()...)
	for _, tt := range []struct {
		onDisk string
		list   []hardware.SharedModules
		has    bool
	}{
		{"580.95.05", sharedBoth(), true},
		{"580.65.06", forAll, true},
		{"570.1", sharedBoth(), false},
	} {
		m := machine("debian", "12", "amd64", "2331")
		m.Kernels = []string{sharedNewer, sharedNow}
		m.Running = sharedNow
		m.Fallback = former
		m.OnDisk = map[string]hardware.Module{former: {Version: tt.onDisk, Flavour: "open", Shared: true}}
		m.Shared = tt.list

		modules := names(choose(t, m, driver("580.95.05")), "module")

		has := slices.Contains(modules, packages.SharedPackage("open", former))
		check.That(t, has == tt.has, "the kernel that ran before has %s: %v", tt.onDisk, modules)
	}
}

// TestSharedIsNotFor: DKMS builds nvidia-fs, and NVIDIA's installer builds its own modules.
func TestSharedIsNotFor(t *testing.T) {
	gds := driver("580.95.05")
	gds.GDS = true
	runfile := with(driver("580.95.05"), "source", "runfile")
	for _, d := range []spec.Driver{gds, runfile} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Kernels = []string{sharedNewer, sharedNow}
		m.Shared = sharedBoth()

		check.That(t, !choose(t, m, d).Shared, "shared, with gds %t from %q", d.GDS, d.Source)
	}
}

// TestSharedOfRunfile: gpuadm refuses a spec that demands shared modules of NVIDIA's installer, as it
// refuses precompiled modules: DKMS would build them without a word.
func TestSharedOfRunfile(t *testing.T) {
	m := machine("ubuntu", "24.04", "amd64", "2331")
	runfile := with(driver("580.95.05"), "source", "runfile")
	for _, build := range []string{"shared", "precompiled"} {
		_, err := Choose(Load(), m, with(runfile, "build", build))
		must.That(t, err != nil, "build = %q of a runfile is not refused", build)

		check.Has(t, whole(err), "cannot take "+build+" kernel modules from a runfile", "it says")
		check.Has(t, whole(err), `build = "auto"`, "it advises")
	}
}
