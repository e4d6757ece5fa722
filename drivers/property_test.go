// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	goversion "github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestCUDAMajor(t *testing.T) {
	catalog := Load()
	for version, want := range map[string]int{
		"620":       13,
		"580.95.05": 13,
		"580.65.06": 13,
		"580.30":    12, // before the branch's first release with CUDA 13
		"580":       13,
		"575.64":    12,
		"525.60.13": 12,
		"525":       12,
		"520.61.05": 11,
		"450.80.02": 11,
		"440.33":    0,
		"":          0,
		"x":         0,
	} {
		check.Equal(t, catalog.cudaMajor(version), want, "cudaMajor(%q) =", version)
	}
}

func FuzzCompare(f *testing.F) {
	catalog := Load()
	f.Add("580.95.05", "580.126.09", "595")
	f.Add("", "v1.2-rc1+x", "1..2")
	f.Add("99999999999999999999999.1", "580.", ".")
	f.Add("580", "580.0.0.0", "0580")
	f.Add("0", "", "+1.-1")
	f.Add("9223372036854775807", "9223372036854775808", "1_0.0x1")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		ab := hardware.Compare(a, b)
		ba := hardware.Compare(b, a)
		bc := hardware.Compare(b, c)
		ac := hardware.Compare(a, c)

		isOpposite := ab < 0 == (ba > 0) && ab == 0 == (ba == 0)
		check.That(t, isOpposite && hardware.Compare(a, a) == 0, "%q and %q: %d and %d", a, b, ab, ba)
		want := compared(a, b)
		check.That(t, ab == want, "%q and %q: %d, and go-version says %d", a, b, ab, want)
		isTransitive := ab > 0 || bc > 0 || ac <= 0
		check.That(t, isTransitive, "%q <= %q <= %q, but not the first and the last", a, b, c)
		check.That(t, !hardware.InBranch(a, b) || strings.HasPrefix(a, b), "%q in %q", a, b)

		older := min(a, b, c)
		newer := max(a, b, c)
		areReleases := strings.Contains(older, ".") && strings.Contains(newer, ".")
		if areReleases && hardware.Compare(older, newer) < 0 {
			check.That(t, catalog.cudaMajor(older) <= catalog.cudaMajor(newer), "%q runs newer CUDA than %q", older, newer)
		}
	})
}

// compared is Compare by go-version's rules.
func compared(a, b string) int {
	number := func(s string) *goversion.Version {
		if strings.Trim(s, "0123456789.") != "" {
			return nil
		}
		v, _ := goversion.NewVersion(s)
		return v
	}

	va, vb := number(a), number(b)
	switch {
	case va == nil && vb == nil:
		return strings.Compare(a, b)
	case va == nil:
		return -1
	case vb == nil:
		return 1
	}

	return va.Compare(vb)
}

// random draws a machine's GPUs and a spec from the data, now and then with nonsense between them.
type random struct{ *rand.Rand }

func (r random) of(list ...string) string { return list[r.IntN(len(list))] }

func (r random) device(c Catalog, at int) hardware.Device {
	g := c.GPUs[r.IntN(len(c.GPUs))]
	id := g.ID
	if r.IntN(4) == 0 {
		id = fmt.Sprintf("%04x", r.IntN(0x10000))
	}
	return hardware.Device{Address: fmt.Sprintf("0000:%02x:00.0", at), ID: id}
}

func (r random) spec() spec.Driver {
	d := mirrored(r.of(
		"", "", "470.82.01", "535", "550.90.07", "570.133.20", "575.64",
		"580", "580.95.05", "595", "595.71.05", "615", "620.1",
	))
	d.Modules = r.of("auto", "auto", "open", "proprietary")
	d.Source = r.of("auto", "auto", "nvidia", "distro", "runfile")
	d.Build = r.of("auto", "auto", "dkms", "precompiled")
	d.GDS = r.of("no", "no", "no", "yes") == "yes"
	d.FabricManager = r.of("auto", "auto", "on", "off")
	d.Persistenced = r.IntN(2) == 0
	return d
}

func (r random) machine(c Catalog) hardware.Machine {
	distribution, version, _ := strings.Cut(r.of(
		"ubuntu 22.04", "ubuntu 24.04", "ubuntu 26.04",
		"debian 12", "debian 13",
		"rhel 8.10", "rocky 9.4", "rhel 10.0",
		"amzn 2023", "azurelinux 3.0", "azurelinux 4.0", "fedora 42",
	), " ")
	m := machine(distribution, version, r.of("amd64", "amd64", "arm64"))
	m.Instance = r.of("", "", "g4dn.xlarge", "g5.48xlarge", "p5.48xlarge")
	for i := range 1 + r.IntN(4) {
		m.GPUs = append(m.GPUs, r.device(c, i))
	}
	if r.IntN(3) == 0 {
		m.Switches = []hardware.Device{{Address: "0000:f0:00.0", ID: "22a3"}}
	}
	return m
}

// TestOrder wants the same choice and the same message in whichever order the GPUs are listed.
func TestOrder(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(1, 2))}
	for range 3000 {
		m := r.machine(c)
		d := r.spec()
		shuffled := m
		shuffled.GPUs = slices.Clone(m.GPUs)
		r.Shuffle(len(m.GPUs), reflect.Swapper(shuffled.GPUs))

		a, errA := Choose(c, m, d)
		b, errB := Choose(c, shuffled, d)
		diff := cmp.Diff(a, b)
		must.That(t, diff == "" && fmt.Sprint(errA) == fmt.Sprint(errB), "%+v %+v\n%v\n%v\n%s", m, d, errA, errB, diff)
	}
}

// TestMonotone wants an added GPU to tighten the choice or to leave it, and never to loosen it.
func TestMonotone(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(3, 4))}
	refused := 0
	chosen := 0
	for range 5000 {
		m := r.machine(c)
		d := r.spec()
		more := m
		more.GPUs = append(slices.Clone(m.GPUs), r.device(c, 0x80))

		a, errA := Choose(c, m, d)
		b, errB := Choose(c, more, d)
		must.That(t, errA == nil || errB != nil, "refused, and not with one GPU more:\n%+v\n%+v\n%v\n%+v", more, d, errA, b)
		if errA != nil || errB != nil {
			refused++
			continue
		}
		chosen++
		must.That(t, !loosens(a, b, d.Version), "%s from %s on, then %s from %s on", a.Branch, a.Minimum, b.Branch, b.Minimum)
		if a.Flavour != b.Flavour || a.Branch != b.Branch {
			continue
		}
		for role := range roles(a) {
			must.That(t, roles(b)[role], "%s is gone with one GPU more", role)
		}
	}

	check.That(t, refused >= 500 && chosen >= 500, "%d refused, %d chosen: the draw is lopsided", refused, chosen)
}

// loosens reports whether a choice for more GPUs asks for less than the one for fewer: for an older
// minimum, for a newer branch without need, or for another branch than the spec's.
func loosens(fewer, more Choice, version string) bool {
	if hardware.Compare(fewer.Minimum, more.Minimum) > 0 {
		return true
	}
	if version != "" {
		return fewer.Branch != more.Branch
	}

	branch, _ := strconv.Atoi(fewer.Branch)
	newer, _ := strconv.Atoi(more.Branch)
	return newer > branch && !below(fewer.Branch, more.Minimum)
}

func roles(ch Choice) map[string]bool {
	all := map[string]bool{}
	for _, m := range ch.Members {
		all[m.Role] = true
	}
	return all
}

// TestSound checks each choice by what must be so whatever was asked.
func TestSound(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(5, 6))}
	for range 5000 {
		m := r.machine(c)
		d := r.spec()
		before := fmt.Sprintf("%+v %+v", m, d)
		ch, err := Choose(c, m, d)
		after := fmt.Sprintf("%+v %+v", m, d)
		must.That(t, before == after, "Choose changed what it was given:\n%s\n%s", before, after)
		if err != nil {
			refusalIsSound(t, err.Error())
			continue
		}

		packagesAreSound(t, ch)
		versionIsSound(t, ch)
		flavourFits(t, c, m, ch)
	}
}

// refusalIsSound: a refusal is one sentence for an operator.
func refusalIsSound(t *testing.T, text string) {
	t.Helper()
	must.That(t, strings.HasPrefix(text, "cannot "), "%s", text)
	must.That(t, !strings.Contains(text, "internal"), "%s", text)
	must.That(t, !strings.ContainsAny(text, "\n{}"), "%s", text)
}

// packagesAreSound: the names are whole, and one package brings the module.
func packagesAreSound(t *testing.T, ch Choice) {
	t.Helper()
	for _, p := range ch.Members {
		isWhole := !strings.ContainsAny(p.Name, " {}") && !strings.HasSuffix(p.Name, "-")
		must.That(t, p.Name != "" && p.Role != "" && isWhole, "%+v", p)
	}

	has := roles(ch)
	must.That(t, has["module"] || ch.Source == SourceRunfile, "no module: %+v", ch)
	builds := has["headers"] || has["dkms"]
	must.That(t, !ch.Precompiled || !builds, "what builds modules is installed beside built ones")
}

// versionIsSound: a chosen version is one of its branch, and not below the minimum.
func versionIsSound(t *testing.T, ch Choice) {
	t.Helper()
	if ch.Version == "" {
		return
	}
	must.That(t, hardware.InBranch(ch.Version, ch.Branch), "%s is not of branch %s", ch.Version, ch.Branch)
	isOld := ch.Minimum != "" && hardware.Compare(ch.Version, ch.Minimum) < 0
	must.That(t, !isOld, "%s is older than %s", ch.Version, ch.Minimum)
}

// flavourFits: each GPU gets modules that drive it. 615 is the last branch with proprietary ones.
func flavourFits(t *testing.T, c Catalog, m hardware.Machine, ch Choice) {
	t.Helper()
	major, _ := strconv.Atoi(ch.Branch)
	switch ch.Flavour {
	case FlavourOpen:
	case FlavourProprietary:
		must.That(t, major <= 615, "branch %s has no proprietary modules", ch.Branch)
	default:
		t.Fatalf("%q modules of %s", ch.Flavour, ch.Branch)
	}

	for _, g := range m.GPUs {
		a, _ := c.Arch(g.ID)
		must.That(t, a.Open != "must" || ch.Flavour == FlavourOpen, "%s gets %s modules", a.Name, ch.Flavour)
		must.That(t, a.Open != "no" || ch.Flavour == FlavourProprietary, "%s gets %s modules", a.Name, ch.Flavour)
		must.That(t, a.Last <= 0 || major <= a.Last, "%s gets branch %s, which does not drive it", a.Name, ch.Branch)
	}
}

// TestInstead: the next plan takes each driver that a refusal names in place of the asked one.
func TestInstead(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(7, 8))}
	sentence := regexp.MustCompile(`^write (?:source = "([a-z]+)" and )?version = "([0-9.]+)" in \[driver\]$`)
	followed := 0
	for range 5000 {
		m := r.machine(c)
		d := r.spec()
		if r.IntN(2) == 0 {
			d.Repo = spec.Repo{}
		}

		_, err := Choose(c, m, d)
		told, isTrouble := err.(*trouble.Error)
		if !isTrouble {
			continue
		}
		for _, try := range told.Try {
			match := sentence.FindStringSubmatch(try)
			if match == nil {
				continue
			}
			other := d
			other.Version = match[2]
			if match[1] != "" {
				other.Source = match[1]
			}
			followed++

			_, again := Choose(c, m, other)
			check.That(t, again == nil, "%v; try: %s: then %v", err, try, again)
		}
	}

	check.That(t, followed >= 500, "%d remedies: the draw is lopsided", followed)
}

// TestNVIDIAInstead: a refusal advises to take a companion from NVIDIA's repository only where gpuadm
// can use that.
func TestNVIDIAInstead(t *testing.T) {
	runfile := with(driver("580.178.04"), "source", "runfile")
	for _, x := range []struct {
		name    string
		machine hardware.Machine
		names   bool
	}{
		{"Ubuntu", machine("ubuntu", "24.04", "amd64", "2331", "0680:22a3"), true},
		{"no packages for arm64", machine("debian", "12", "arm64", "2331", "0680:22a3"), false},
		{"no address", machine("azurelinux", "4.0", "amd64", "2331", "0680:22a3"), false},
		{"no key", machine("fedora", "42", "amd64", "2331", "0680:22a3"), false},
	} {
		_, err := Choose(Load(), x.machine, runfile)
		message := whole(err)
		check.Has(t, message, "cannot install the fabric manager from a runfile", "%s:", x.name)
		check.Has(t, message, `fabricmanager = "off"`, "%s:", x.name)
		check.Equal(t, strings.Contains(message, `source = "nvidia"`), x.names, "%s: %s: NVIDIA's repository:", x.name, message)
	}
}

func FuzzChoose(f *testing.F) {
	c := Load()
	f.Add("2330", "1db1", "ubuntu", "24.04", "amd64", "6.8.0-41-generic", "580.95.05", "auto", "auto", "g4dn.xlarge")
	f.Add("zz", "", "cos", "", "", "", "x.y", "runfile", "open", "")
	f.Add("2901", "2901", "rocky", "9", "arm64", "{b}{v}{k}", "595", "distro", "proprietary", "..")
	f.Fuzz(func(t *testing.T, gpu1, gpu2, id, version, arch, kernel, want, source, modules, instance string) {
		m := machine(id, version, arch, gpu1, gpu2)
		m.Kernels = []string{kernel}
		m.Instance = instance
		m.Like = strings.Fields(id)
		d := mirrored(want)
		d.Source = source
		d.Modules = modules

		ch, err := Choose(c, m, d)
		again, _ := Choose(c, m, d)
		if err != nil {
			return
		}
		check.That(t, ch.Source != "", "neither a choice nor an error: %+v", ch)
		check.None(t, cmp.Diff(ch, again), "the second time it is another choice:")
	})
}
