// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	goversion "github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestCUDAMajor(t *testing.T) {
	catalog := Load()
	for version, want := range map[string]int{
		"580.95.05": 13, "580.65.06": 13, "580.30": 12, "580": 13, "575.64": 12, "525.60.13": 12, "520.61.05": 11, "525": 12,
		"450.80.02": 11, "440.33": 0, "": 0, "620": 13, "x": 0,
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
		ab, ba, bc, ac := hardware.Compare(a, b), hardware.Compare(b, a), hardware.Compare(b, c), hardware.Compare(a, c)
		if ab < 0 != (ba > 0) || ab == 0 != (ba == 0) || hardware.Compare(a, a) != 0 {
			t.Errorf("%q and %q: %d and %d", a, b, ab, ba)
		}
		if want := compared(a, b); ab != want {
			t.Errorf("%q and %q: %d, and go-version says %d", a, b, ab, want)
		}
		if ab <= 0 && bc <= 0 && ac > 0 {
			t.Errorf("%q <= %q <= %q, but not the first and the last", a, b, c)
		}
		if hardware.InBranch(a, b) && !strings.HasPrefix(a, b) {
			t.Errorf("%q in %q", a, b)
		}
		if older, newer := min(a, b, c), max(a, b, c); hardware.Compare(older, newer) < 0 && strings.Contains(older, ".") && catalog.cudaMajor(older) > catalog.cudaMajor(newer) && strings.Contains(newer, ".") {
			t.Errorf("%q runs newer CUDA than %q", older, newer)
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
	d := mirrored(r.of("", "", "470.82.01", "535", "550.90.07", "570.133.20", "575.64", "580", "580.95.05", "595", "595.71.05", "615", "620.1"))
	d.Modules = r.of("auto", "auto", "open", "proprietary")
	d.Source = r.of("auto", "auto", "nvidia", "distro", "runfile")
	d.Build = r.of("auto", "auto", "dkms", "precompiled")
	d.GDS = r.of("no", "no", "no", "yes") == "yes"
	d.FabricManager = r.of("auto", "auto", "on", "off")
	d.Persistenced = r.IntN(2) == 0
	return d
}

func (r random) machine(c Catalog) hardware.Machine {
	os := [][2]string{{"ubuntu", "22.04"}, {"ubuntu", "24.04"}, {"ubuntu", "26.04"}, {"debian", "12"}, {"debian", "13"}, {"rhel", "8.10"}, {"rocky", "9.4"}, {"rhel", "10.0"}, {"amzn", "2023"}, {"azurelinux", "3.0"}, {"fedora", "42"}}[r.IntN(11)]
	m := machine(os[0], os[1], r.of("amd64", "amd64", "arm64"))
	m.Instance = r.of("", "", "g4dn.xlarge", "g5.48xlarge", "p5.48xlarge")
	for i := range 1 + r.IntN(4) {
		m.GPUs = append(m.GPUs, r.device(c, i))
	}
	if r.IntN(3) == 0 {
		m.Switches = []hardware.Device{{Address: "0000:f0:00.0", ID: "22a3"}}
	}
	return m
}

// TestOrder wants the order in which GPUs are listed to make no difference, in what is chosen and
// in what is said.
func TestOrder(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(1, 2))}
	for range 3000 {
		m, d := r.machine(c), r.spec()
		a, errA := Choose(c, m, d)
		shuffled := m
		shuffled.GPUs = slices.Clone(m.GPUs)
		r.Shuffle(len(m.GPUs), reflect.Swapper(shuffled.GPUs))
		b, errB := Choose(c, shuffled, d)
		diff := cmp.Diff(a, b)
		must.That(t, diff == "" && fmt.Sprint(errA) == fmt.Sprint(errB), "%+v %+v\n%v\n%v\n%s", m, d, errA, errB, diff)
	}
}

// TestMonotone wants a GPU that is added never to loosen what the others ask for.
func TestMonotone(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(3, 4))}
	refused, chosen := 0, 0
	for range 5000 {
		m, d := r.machine(c), r.spec()
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
		branchA, _ := strconv.Atoi(a.Branch)
		branchB, _ := strconv.Atoi(b.Branch)
		if hardware.Compare(a.Minimum, b.Minimum) > 0 || d.Version == "" && branchB > branchA && !below(a.Branch, b.Minimum) || d.Version != "" && a.Branch != b.Branch {
			t.Fatalf("%s from %s on, then %s from %s on", a.Branch, a.Minimum, b.Branch, b.Minimum)
		}
		for role := range roles(a) {
			must.That(t, roles(b)[role] || a.Flavour != b.Flavour || a.Branch != b.Branch, "%s is gone with one GPU more", role)
		}
	}

	check.That(t, refused >= 500 && chosen >= 500, "%d refused, %d chosen: the draw is lopsided", refused, chosen)
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
		m, d := r.machine(c), r.spec()
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

func FuzzChoose(f *testing.F) {
	c := Load()
	f.Add("2330", "1db1", "ubuntu", "24.04", "amd64", "6.8.0-41-generic", "580.95.05", "auto", "auto", "g4dn.xlarge")
	f.Add("zz", "", "cos", "", "", "", "x.y", "runfile", "open", "")
	f.Add("2901", "2901", "rocky", "9", "arm64", "{b}{v}{k}", "595", "distro", "proprietary", "..")
	f.Fuzz(func(t *testing.T, gpu1, gpu2, id, version, arch, kernel, want, source, modules, instance string) {
		m := machine(id, version, arch, gpu1, gpu2)
		m.Kernels, m.Instance, m.Like = []string{kernel}, instance, strings.Fields(id)
		d := mirrored(want)
		d.Source, d.Modules = source, modules
		ch, err := Choose(c, m, d)
		if err == nil && ch.Source == "" {
			t.Errorf("neither a choice nor an error: %+v", ch)
		}
		if again, _ := Choose(c, m, d); err == nil && !cmp.Equal(ch, again) {
			t.Error("the second time it is another choice")
		}
	})
}
