// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// The newest version of a branch that a repository had may be older than the GPU.
func TestBranchTooOldForTheGPU(t *testing.T) {
	f := facts.Facts{
		Live: true, Arch: "amd64", OS: facts.OS{ID: "debian", Version: "12"},
		Kernel: facts.Kernel{Running: "6.1.0-41-amd64", Installed: []string{"6.1.0-41-amd64"}},
		GPUs: []facts.PCI{{
			Address: "0000:17:00.0",
			Vendor:  "10de",
			Device:  "2bb1",
			Class:   "030200",
		}},
	}
	s := specs.Of(t, "[driver]\nversion = \"570\"\n")
	for version, refused := range map[string]bool{"570.124.06": true, "570.133.20": false} {
		f.Modules = &facts.Modules{Libraries: []facts.Library{{
			Name:    "libnvidia-ml.so",
			Version: version,
		}}}
		_, err := New(nil).Modules(new(packages.Reading)).Wants(s, f)
		named := err != nil && strings.Contains(err.Error(), "570.133.07 or newer")
		check.That(t, (err != nil) == refused && named == refused, "driver %s for an RTX PRO 6000: %v", version, err)
	}
}

// TestAdviceCanBeFollowed: what a refusal advises is not refused itself.
func TestAdviceCanBeFollowed(t *testing.T) {
	debian := func(version string) hardware.Machine {
		return machine("debian", version, "arm64", "2342")
	}
	for _, x := range []struct {
		what   string
		m      hardware.Machine
		d      spec.Driver
		advice string // in the words of the refusal
		then   spec.Driver
	}{
		{"NVIDIA's for Debian 12 on arm64", debian("12"), with(driver("580"), "source", "nvidia"), `source = "runfile" and version = "580.178.04"`, with(driver("580.178.04"), "source", "runfile")},
		{"NVIDIA's for Debian 13 on arm64", debian("13"), with(driver("580"), "source", "nvidia"), `source = "runfile" and version = "580.178.04"`, with(driver("580.178.04"), "source", "runfile")},
		{"580 on Debian 13, arm64, by runfile", debian("13"), driver("580"), `source = "runfile"`, with(driver("580.95.05"), "source", "runfile")},
		{"595 on Debian 13, amd64", machine("debian", "13", "amd64", "2331"), with(driver("595"), "source", "distro"), `source = "nvidia"`, with(driver("595"), "source", "nvidia")},
		{"Amazon's on arm64", machine("amzn", "2023", "arm64", "2342"), with(driver("580"), "source", "distro"), `source = "nvidia"`, with(driver("580"), "source", "nvidia")},
		{"before Amazon's", machine("amzn", "2023", "amd64", "20b5"), with(driver("560"), "source", "distro"), `version = "580"`, with(driver("580"), "source", "distro")},
		{"before NVIDIA's", machine("debian", "13", "amd64", "20b5"), with(driver("550"), "source", "nvidia"), `version = "595"`, with(driver("595"), "source", "nvidia")},
		{"no archive of its own", machine("rocky", "9.6", "amd64", "2331"), with(driver("580"), "source", "distro"), `source = "auto"`, driver("580")},
		{"NVIDIA has none", machine("ubuntu", "25.10", "amd64", "2331"), driver("580"), `source = "runfile"`, with(driver("580.95.05"), "source", "runfile")},
	} {
		_, err := Choose(Load(), x.m, x.d)
		refused := (*trouble.Error)(nil)
		if !errors.As(err, &refused) {
			t.Errorf("%s: not refused: %v", x.what, err)
			continue
		}
		message := strings.Join(refused.Try, "\n")
		check.That(t, strings.Contains(message, x.advice), "%s: %q\nadvises\n%s\nand not %s", x.what, refused.What, message, x.advice)
		check.That(t, !strings.Contains(message, `source = "nvidia"`) || x.m.Arch != "arm64" || x.m.ID != "debian",
			"%s: advises NVIDIA's repository, which has none for arm64: %s", x.what, message)
		_, err = Choose(Load(), x.m, x.then)
		check.That(t, err == nil, "%s: %s is refused too: %v", x.what, x.advice, err)
	}
}

// TestServicesAreTheDrivers: the spec has no section of the stage's name, so a daemon that it no
// longer asks for would never be reverted, and status would call it released.
func TestServicesAreTheDrivers(t *testing.T) {
	s := specs.Of(t, "[driver]\nversion = \"535.261.03\"\nsource = \"distro\"\n")
	f := facts.Facts{
		Live:    true,
		Arch:    "amd64",
		OS:      facts.OS{ID: "debian", Version: "12"},
		GPUs:    []facts.PCI{{Vendor: "10de", Device: "2330", Class: "030200"}},
		Modules: &facts.Modules{},
	}
	wants, err := New(nil).Services().Wants(s, f)
	must.That(t, err == nil && len(wants) > 0, "%d wants, %v", len(wants), err)
	for _, w := range wants {
		check.That(t, w.Section == "driver", "%s %s is asked for by section %q", w.Ref().Kind, w.Ref().Name, w.Section)
	}
}

// TestServicesOfAnotherKernel: daemons with a module for a kernel that does not run are enabled for
// the boot that starts it, and not started: Debian's nvidia-persistenced fails without a device.
func TestServicesOfAnotherKernel(t *testing.T) {
	f := facts.Facts{
		Live: true,
		GPUs: []facts.PCI{{
			Vendor: "10de",
			Device: "2330",
			Class:  "030200",
		}, {Vendor: "10de", Device: "22a3", Class: "068000"}},
	}
	for running, want := range map[string]converge.State{"6.1.0-50-amd64": "enabled active", "6.18.44": "enabled inactive"} {
		f.Kernel = facts.Kernel{Running: running, Installed: []string{"6.1.0-50-amd64"}}
		wants := must.Get(ServiceWants(Services{
			Version:       "535.261.03",
			Fabric:        FabricOf(Load(), f),
			Persistenced:  true,
			FabricManager: "auto",
		}, f))(t)
		units := 0
		for _, w := range wants {
			check.That(t, w.Ref().Kind != "fabric" || running == "6.1.0-50-amd64", "kernel %s: a fabric is waited for that cannot come", running)
			if w.Ref().Kind != "unit" {
				continue
			}
			units++
			to, err := w.To("disabled inactive")
			check.That(t, to == want && err == nil, "kernel %s: %s shall be %q, %v; want %q", running, w.Ref().Name, to, err, want)
		}

		if reported := len(ModuleProblems(f, facts.Modules{}, Choice{})) > 0; reported != (want == "enabled inactive") {
			t.Errorf("kernel %s: said %v", running, ModuleProblems(f, facts.Modules{}, Choice{}))
		}
		check.That(t, units == 2, "kernel %s: %d daemons, want 2", running, units)
	}
}

// A tool that a repository has renamed, or that its owner installed by hand, is left out by without
// = [].
func TestWithoutATool(t *testing.T) {
	d := driver("580.95.05")
	d.Without = []string{"dkms"}
	if ch, err := Choose(Load(), machine("rocky", "9.6", "amd64", "2331"), d); err != nil {
		t.Errorf("%v", err)
	} else if len(names(ch, "dkms")) > 0 {
		t.Errorf("%v", names(ch, "dkms"))
	}
}

var (
	adviseVersion = pattern.Of(`version = "([^"]*)"`)
	adviseSource  = pattern.Of(`source = "([^"]*)" and version`)
)

// TestAdvice wants each version that a refusal advises to be of a branch that has not ended, and
// taken when it is asked for as it is advised: over all GPUs, alone and two by two, branches, days
// and sources.
func TestAdvice(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(7, 8))}
	days := []string{"", "1970-01-01", "2026-11-22", "2027-03-31", "2027-04-01", "2028-06-30", "2028-07-01", "2031-01-01"}
	systems := [][3]string{{"ubuntu", "22.04", "amd64"}, {"ubuntu", "26.04", "amd64"}, {"debian", "12", "amd64"}, {"debian", "13", "arm64"}, {"rocky", "9.6", "amd64"}, {"azurelinux", "3.0", "amd64"}, {"amzn", "2023", "arm64"}}
	var gpus [][]string
	for _, g := range c.GPUs {
		gpus = append(gpus, []string{g.ID}, []string{g.ID, r.device(c, 0).ID})
	}
	gpus = append(gpus, []string{"102d"}, []string{"1f82"}, []string{"20b2", "0680:1af1"})
	var versions []string
	for _, b := range c.Branches {
		versions = append(versions, strconv.Itoa(b.Branch)+r.of("", ".1.01"))
	}
	versions = append(versions, "", "newest", "700")
	advised, none := 0, 0
	for _, ids := range gpus {
		for _, day := range days {
			for _, version := range versions {
				s := systems[r.IntN(len(systems))]
				m := machine(s[0], s[1], s[2], ids...)
				m.Day = day
				d := driver(version)
				d.Source, d.Modules, d.GDS = r.of("auto", "auto", "nvidia", "distro", "runfile"), r.of("auto", "auto", "auto", "open", "proprietary"), r.IntN(8) == 0
				_, err := Choose(c, m, d)
				switch n, ok := follow(t, c, m, d, err); {
				case !ok:
					return
				case n > 0:
					advised++
				case err != nil:
					none++
				}
			}
		}
	}

	check.That(t, advised >= 1000 && none >= 300, "%d refusals advise a version, %d none: the draw is lopsided", advised, none)
}

// follow does what a refusal advises, and says how many versions it named.
func follow(t *testing.T, c Catalog, m hardware.Machine, d spec.Driver, err error) (named int, ok bool) {
	t.Helper()
	var told *trouble.Error
	if !errors.As(err, &told) {
		return 0, true
	}
	check.That(t, len(told.Try) > 0, "%v: no advice", err)
	for _, line := range told.Try {
		version := adviseVersion().FindStringSubmatch(line)
		if version == nil {
			continue
		}
		named++
		branch, _, _ := strings.Cut(version[1], ".")
		if i := slices.IndexFunc(c.Branches, func(b branchRow) bool { return strconv.Itoa(b.Branch) == branch }); i < 0 || c.Branches[i].ended(m.Day) {
			t.Errorf("on %q: %v\n%s: that branch has ended", m.Day, err, line)
			return named, false
		}
		next := d
		next.Version = version[1]
		if source := adviseSource().FindStringSubmatch(line); source != nil {
			next.Source = source[1]
		}
		if _, err2 := Choose(c, m, next); err2 != nil {
			t.Errorf("%s %s %+v on %q: %v\n%s, and then: %v", m.ID, m.Version, m.GPUs, m.Day, err, line, err2)
			return named, false
		}
	}

	return named, true
}

func TestAdviceInWords(t *testing.T) {
	c := Load()
	late := func(m hardware.Machine, day string) hardware.Machine { m.Day = day; return m }
	const none = `no supported driver is known that works with all GPUs here: remove those that it does not support, or write owner = "other" in [driver] and manage the driver yourself`
	for _, x := range []struct {
		m    hardware.Machine
		d    spec.Driver
		want []string
	}{
		{machine("ubuntu", "24.04", "amd64", "1db1"), driver("595"), []string{`write version = "580" in [driver]`}},
		{late(machine("ubuntu", "24.04", "amd64", "1db1"), "2028-07-01"), driver("595"), []string{none}},
		{machine("ubuntu", "24.04", "amd64", "2901"), driver("550"), []string{`write version = "580" in [driver]`}},
		{late(machine("ubuntu", "24.04", "amd64", "2901"), "2027-04-01"), driver("550"), []string{`write version = "580" in [driver]`}},
		{machine("rocky", "9.6", "amd64", "102d"), driver(""), []string{none}},
		{machine("debian", "13", "amd64", "2331"), with(driver("580"), "source", "distro"), []string{`write source = "nvidia" and version = "595" in [driver]`}},
		{machine("debian", "13", "arm64", "2941"), driver(""), []string{`write source = "runfile" and version = "580.178.04" in [driver]`}},
		{machine("debian", "12", "amd64", "20b5"), with(driver("580"), "source", "runfile"), []string{`write version = "580.178.04" in [driver]`}},
		{machine("azurelinux", "3.0", "amd64", "1db1"), driver(""), []string{`write source = "runfile" and version = "580.178.04" in [driver]`}},
		{machine("ubuntu", "22.04", "amd64", "2331"), with(driver("620"), "modules", "proprietary"), []string{`write version = "580" in [driver]`, `write modules = "auto" in [driver]`}},
		{machine("ubuntu", "24.04", "amd64", "2331"), driver("newest"), []string{`write version = "580" in [driver]`}},
	} {
		_, err := Choose(c, x.m, x.d)
		var told *trouble.Error
		check.That(t, errors.As(err, &told) && slices.Equal(told.Try, x.want), "%v: %q", err, told.Try)
	}
}

// What is asked for beside the driver is loaded with it; the modules are built here, or for the
// image that is being made, as chosen.
func TestKernelSide(t *testing.T) {
	ch := choose(t, machine("rhel", "9.4", "amd64", "2331"), gds(driver("580.95.05")))
	d := driver("580.95.05")
	d.Peermem, d.GDS = true, true
	k, known := ch.KernelSide(d, facts.Facts{})
	want := []string{"nvidia-uvm", "nvidia-modeset", "nvidia-peermem", "nvidia-fs"}
	check.That(t, known && slices.Equal(k.Companions, want), "loaded are %v, want %v", k.Companions, want)
	check.That(t, k.Build == "dkms" && k.Image == nil, "build %q, image %v", k.Build, k.Image)
	image := &facts.Trust{SecureBoot: "on"}
	k, known = Choice{
		Version:     "580.95.05",
		Flavour:     "open",
		Precompiled: true,
	}.KernelSide(driver("580"), facts.Facts{Image: image})
	check.That(t, known && k.Version == "580.95.05" && k.Flavour == "open" && k.Build == "precompiled" && k.Image == image, "signed modules in an image: %+v, %v", k, known)
}
