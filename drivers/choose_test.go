// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// machine has the GPUs, at addresses in their order; an id with class 0680 in front is an
// NVSwitch's.
func machine(id, version, arch string, gpus ...string) hardware.Machine {
	f := facts.Facts{
		Live: true,
		Day:  "2026-11-22",
		OS:   facts.OS{ID: id, Version: version},
		Arch: arch,
		GPUs: []facts.PCI{},
	}
	for i, g := range gpus {
		class, dev := "030200", g
		if sw, ok := strings.CutPrefix(g, "0680:"); ok {
			class, dev = "068000", sw
		}
		f.GPUs = append(f.GPUs, facts.PCI{
			Address: fmt.Sprintf("0000:%02x:00.0", i+1),
			Vendor:  "10de",
			Device:  dev,
			Class:   class,
		})
	}

	k := kernels[id]
	f.Kernel = facts.Kernel{Running: k, Installed: []string{k}}
	return hardware.MachineOf(f, "")
}

var kernels = map[string]string{
	"ubuntu": "6.8.0-41-generic", "debian": "6.1.0-40-cloud-amd64", "rhel": "5.14.0-570.el9.x86_64", "rocky": "5.14.0-570.el9.x86_64",
	"almalinux": "4.18.0-553.el8_10.x86_64", "ol": "5.15.0-302.167.6.el9uek.x86_64", "amzn": "6.12.40-64.114.amzn2023.x86_64",
	"azurelinux": "6.6.96.1-1.azl3", "fedora": "6.16.3-200.fc42.x86_64",
}

func driver(version string) spec.Driver {
	d := spec.Defaults().Driver
	d.Version = version
	return d
}

// mirrored is a spec for repositories with a key that the catalog does not know.
func mirrored(version string) spec.Driver {
	d := driver(version)
	d.Repo = spec.Repo{
		URL:         "https://mirror.example/cuda",
		Key:         "/etc/gpuadm/keys/cuda.asc",
		Fingerprint: strings.Repeat("0", 40),
	}
	return d
}

// TestOwnRepository: what an operator's own repository has, its lists say, where the names of the
// packages are known. A branch that the spec does not name is one that the vendor's has.
func TestOwnRepository(t *testing.T) {
	m := machine("debian", "13", "amd64", "2331")
	for _, x := range []struct {
		driver  spec.Driver
		branch  string
		refusal string
	}{
		{driver: driver("580"), refusal: "no packages of branches before 590 are known there"},
		{driver: mirrored("580"), branch: "580"},
		{driver: mirrored("580.178.04"), branch: "580"},
		{driver: mirrored(""), branch: "595"},
		{driver: mirrored("535"), refusal: "no packages of branches before 590 are known there"}, // of which no names are known
	} {
		ch, err := Choose(Load(), m, x.driver)
		if x.refusal != "" {
			check.That(t, err != nil && strings.Contains(err.Error(), x.refusal), "%q at %q: %v", x.driver.Version, x.driver.Repo.URL, err)
			continue
		}
		must.OK(t, err)
		check.Equal(t, ch.Branch, x.branch, "%q at %q: branch", x.driver.Version, x.driver.Repo.URL)
		said := strings.Contains(strings.Join(ch.Warnings, "\n"), "is known once its lists are read")
		check.Equal(t, said, x.branch == "580", "%q at %q: it says that the lists decide:", x.driver.Version, x.driver.Repo.URL)
	}
}

type sample struct {
	name, arch, instance string
	gpus                 []string
}

var samples = []sample{
	{"no look", "amd64", "", nil},
	{"V100", "amd64", "", []string{"1db1"}},
	{"T4 g4dn", "amd64", "g4dn.xlarge", []string{"1eb8"}},
	{"A100 HGX", "amd64", "", []string{"20b2", "20b2", "0680:1af1"}},
	{"V100+T4", "amd64", "", []string{"1db1", "1eb8"}},
	{"H200 HGX", "amd64", "", []string{"2335", "0680:22a3"}},
	{"GH200", "arm64", "", []string{"2342"}},
	{"B200 HGX", "amd64", "", []string{"2901", "2901"}},
	{"GB200", "arm64", "", []string{"2941", "2941"}},
	{"next", "amd64", "", []string{"4000"}},
	{withGDS, "amd64", "", []string{"2335"}},
}

// withGDS is a sample with a spec that asks for GPUDirect Storage.
const withGDS = "H200 gds"

// TestTables writes down which packages each GPU gets of each branch, for every distribution and
// source.
func TestTables(t *testing.T) {
	c := Load()
	for _, x := range []struct{ id, version, source string }{
		{"ubuntu", "22.04", "auto"},
		{"ubuntu", "24.04", "auto"},
		{"ubuntu", "26.04", "auto"},
		{"ubuntu", "22.04", "distro"},
		{"ubuntu", "24.04", "distro"},
		{"ubuntu", "26.04", "distro"},
		{"debian", "12", "auto"},
		{"debian", "13", "auto"},
		{"debian", "12", "distro"},
		{"debian", "13", "distro"},
		{"rhel", "8.10", "auto"},
		{"almalinux", "8.10", "auto"},
		{"rhel", "9.6", "auto"},
		{"rocky", "9.6", "auto"},
		{"ol", "9.6", "auto"},
		{"rhel", "10.0", "auto"},
		{"amzn", "2023", "auto"},
		{"azurelinux", "3.0", "auto"},
		{"fedora", "42", "auto"},
		{"ubuntu", "24.04", "runfile"},
	} {
		name := x.id + x.version + "-" + x.source
		t.Run(name, func(t *testing.T) {
			golden(t, name+".txt", table(c, x.id, x.version, x.source))
		})
	}
}

// table lists the choices of one distribution, and the sets of packages they come to, each once.
func table(c Catalog, id, version, source string) string {
	var rows strings.Builder
	var sets []string
	fmt.Fprintf(&rows, "%s %s, source %s. A package marked = has the driver's version, ~ one of its own, + is asked for where the source has it.\n\n", id, version, source)
	for _, s := range samples {
		for _, v := range []string{"", "535", "570.133.20", "580.95.05", "595.71.05", "610", "620.10"} {
			d := driver(v)
			if id == "fedora" {
				d = mirrored(v)
			}
			d.Source = source
			d.GDS = s.name == withGDS
			m := machine(id, version, s.arch, s.gpus...)
			m.Instance = s.instance
			if s.gpus == nil {
				m.GPUs = nil
			}

			ch, err := Choose(c, m, d)
			fmt.Fprintf(&rows, "%-9s %-10s ", s.name, v)
			if err != nil {
				fmt.Fprintf(&rows, "%v\n", err)
				continue
			}
			text := members(ch)
			if !slices.Contains(sets, text) {
				sets = append(sets, text)
			}
			fmt.Fprintf(&rows, "set %d: %s", slices.Index(sets, text)+1, rowOf(ch))
		}
	}

	for i, s := range sets {
		fmt.Fprintf(&rows, "\nset %d\n%s", i+1, s)
	}
	return rows.String()
}

// rowOf is a choice in a line, and each of its warnings in one more. It leaves out what every row would
// have: TestPlatforms has the parameter, and TestWarnings the warnings.
func rowOf(ch Choice) string {
	notes := []string{ch.Source + " " + ch.Branch + " " + ch.Flavour}
	note := func(word, value string) {
		if value != "" {
			notes = append(notes, strings.TrimSpace(word+" "+value))
		}
	}
	note("", ch.Version)
	note("stream", ch.Stream)
	note("min", ch.Minimum)
	note("cuda", ch.CUDA)
	if ch.Precompiled {
		note("precompiled", "true")
	}
	for _, p := range slices.Sorted(maps.Keys(ch.Parameters)) {
		if p != "NVreg_CoherentGPUMemoryMode" {
			note("", p+"="+ch.Parameters[p])
		}
	}

	row := strings.Join(notes, ", ") + "\n"
	for _, w := range ch.Warnings {
		isUsual := strings.HasPrefix(w, "no version is asked for") ||
			strings.HasPrefix(w, "cannot see the GPUs") ||
			strings.Contains(w, " ended in ")
		if !isUsual {
			row += "        warning: " + w + "\n"
		}
	}
	return row
}

// members writes down the packages, those of a role in one line.
func members(ch Choice) string {
	var b strings.Builder
	from := append([]string{ch.Repo.URL, ch.Repo.Component}, ch.Repo.Needs...)
	isEmpty := func(word string) bool { return word == "" }
	b.WriteString("  from " + strings.Join(slices.DeleteFunc(from, isEmpty), " "))
	last := ""
	for _, m := range ch.Members {
		mark := "~"
		if m.Lockstep {
			mark = "="
		}
		head := fmt.Sprintf("\n  %s %s:", mark, m.Role)
		if head != last {
			b.WriteString(head)
			last = head
		}
		b.WriteString(" " + m.Name)
	}

	if len(ch.Extras) > 0 {
		b.WriteString("\n  + where there: " + strings.Join(ch.Extras, " "))
	}
	return b.String() + "\n"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must.OK(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	check.None(t, cmp.Diff(string(want), got), "%s (-want +got, -update takes it over)", name)
}

// TestRefusals reads every refusal aloud: one sentence that says what forbids what, and something
// to do about it.
func TestRefusals(t *testing.T) {
	c := Load()
	for _, x := range []struct {
		name string
		m    hardware.Machine
		d    spec.Driver
		want string
	}{
		{
			"legacy and Blackwell", machine("ubuntu", "24.04", "amd64", "1db1", "2901"), driver("580"),
			"cannot choose a driver: GPU 0000:02:00.0 (B200, blackwell) works with open kernel modules only, which GPU 0000:01:00.0 (V100, volta) forbids",
		},
		{
			"Pascal and GH200", machine("ubuntu", "24.04", "arm64", "2342", "15f8"), driver(""),
			"cannot choose a driver: GPU 0000:01:00.0 (GH200, grace-hopper) works with open kernel modules only, which GPU 0000:02:00.0 (P100, pascal) forbids",
		},
		{
			"Kepler and H100", machine("rhel", "9.4", "amd64", "102d", "2330"), driver(""),
			"cannot choose a driver: GPU 0000:01:00.0 (device 102d, kepler) works with branch 470 and older only, and GPU 0000:02:00.0 (H100 SXM, hopper) needs 525.85.05 or newer",
		},
		{
			"Kepler", machine("rhel", "9.4", "amd64", "102d"), driver(""),
			"cannot choose a driver with support: GPU 0000:01:00.0 (device 102d, kepler) works with branch 470 and older only",
		},
		{
			"one branch too new for Volta", machine("ubuntu", "24.04", "amd64", "1db1"), driver("581"),
			"cannot install driver 581: GPU 0000:01:00.0 (V100, volta) works with branch 580 and older only",
		},
		{
			"mixed legacy", machine("ubuntu", "24.04", "amd64", "1eb8", "1db1"), driver("590"),
			"cannot install driver 590: GPU 0000:02:00.0 (V100, volta) works with branch 580 and older only",
		},
		{
			"too old", machine("ubuntu", "24.04", "amd64", "2330", "3182"), driver("580.65.06"),
			"cannot install driver 580.65.06: GPU 0000:02:00.0 (B300, blackwell-ultra) needs 580.82.07 or newer",
		},
		{
			"branch too old", machine("ubuntu", "22.04", "amd64", "2335"), driver("535"),
			"cannot install driver 535: GPU 0000:01:00.0 (H200 SXM, hopper) needs 550.90.07 or newer",
		},
		{
			"open for Volta", machine("ubuntu", "22.04", "amd64", "1db1"), with(driver("580"), "modules", "open"),
			"cannot use open kernel modules: GPU 0000:01:00.0 (V100, volta) works with proprietary ones only",
		},
		{
			"proprietary for Blackwell", machine("ubuntu", "22.04", "amd64", "2901"), with(driver("580"), "modules", "proprietary"),
			"cannot use proprietary kernel modules: GPU 0000:01:00.0 (B200, blackwell) works with open ones only",
		},
		{
			"proprietary of 620", machine("ubuntu", "22.04", "amd64", "2331"), with(driver("620"), "modules", "proprietary"),
			"cannot install driver 620: the spec asks for proprietary kernel modules, which end with branch 615",
		},
		{
			"open of 510", machine("ubuntu", "22.04", "amd64", "20b5"), with(with(driver("510.47.03"), "modules", "open"), "source", "runfile"),
			"cannot install driver 510.47.03: the spec asks for open kernel modules, which begin with branch 515",
		},
		{
			"archive of Debian", machine("debian", "13", "amd64", "2331"), with(driver("580"), "source", "distro"),
			"cannot install driver 580 from Debian's archive for debian13: it has branch 550 only",
		},
		{
			"NVSwitch from Debian", machine("debian", "12", "amd64", "20b2", "0680:1af1"), with(driver(""), "source", "distro"),
			"cannot install the fabric manager from Debian's archive for debian12: that source has no such package, and packages of two sources cannot be mixed",
		},
		{
			"NVSwitch by runfile", machine("debian", "12", "amd64", "20b2", "0680:1af1"), with(driver("580.95.05"), "source", "runfile"),
			"cannot install the fabric manager from a runfile: that source has no such package, and packages of two sources cannot be mixed",
		},
		{
			"runfile of a branch", machine("debian", "12", "amd64", "20b2"), with(driver("580"), "source", "runfile"),
			"cannot choose a runfile: it is of one exact version, and the spec asks for none",
		},
		{
			"precompiled by NVIDIA", machine("ubuntu", "24.04", "amd64", "2331"), with(driver("580"), "build", "precompiled"),
			"cannot take precompiled kernel modules from NVIDIA's repository for ubuntu2404: none are known there that the distribution has signed for each kernel",
		},
		{
			"Microsoft's packages", machine("azurelinux", "3.0", "amd64", "2331"), with(driver("580"), "source", "distro"),
			"cannot install from Microsoft's repository for azl3: its packages cuda and cuda-open have one build for each kernel, which names the kernel in its release, and a fabric manager of its own that does not work beside NVIDIA's",
		},
		{
			"Azure Linux 4", machine("azurelinux", "4.0", "amd64", "2331"), driver("595"),
			"cannot install from NVIDIA's repository for azl4: NVIDIA's guide names the system, and neither the repository's address nor its key was known at this release",
		},
		{
			"Azure Linux 4's own", machine("azurelinux", "4.0", "amd64", "2331"), with(driver("595"), "source", "distro"),
			"cannot install from Microsoft's repository for azl4: its kernel brings open modules (kmod-nvidia-open), and no user space of their version was public in July 2026",
		},
		{
			"precompiled streams of a branch", machine("rhel", "9.6", "amd64", "2331"), with(driver("580"), "build", "precompiled"),
			"cannot take precompiled kernel modules of branch 580 from NVIDIA's repository for rhel9: their packages are named after an exact version",
		},
		{
			"precompiled streams for a GPU that needs open modules", machine("rhel", "9.6", "amd64", "2901"), with(driver("580.178.04"), "build", "precompiled"),
			"cannot take precompiled kernel modules from NVIDIA's repository for rhel9: it has proprietary ones only, and GPU 0000:01:00.0 (B200, blackwell) works with open ones",
		},
		{
			"no precompiled streams", machine("rhel", "10.0", "amd64", "2331"), with(mirrored("580.178.04"), "build", "precompiled"),
			"cannot take precompiled kernel modules from NVIDIA's repository for rhel10: none are known there that the distribution has signed for each kernel",
		},
		{
			"no such distribution", machine("arch", "", "amd64", "2331"), driver("580"),
			"cannot install a driver on arch: no repository is known for it",
		},
		{"Amazon Linux 2", func() hardware.Machine {
			m := machine("amzn", "2", "amd64", "2331")
			m.Like = []string{"centos", "rhel", "fedora"}
			return m
		}(), driver("580"), "cannot install a driver on amzn 2: no repository is known for it"},
		{
			"archive of RHEL", machine("rhel", "9.6", "amd64", "2331"), with(driver("580"), "source", "distro"),
			`cannot install a driver on rhel 9.6 from source = "distro": its own archive has none that is known`,
		},
		{
			"arm64 by NVIDIA's for Debian", machine("debian", "12", "arm64", "2342"), with(driver("580"), "source", "nvidia"),
			"cannot install from NVIDIA's repository for debian12: NVIDIA publishes no packages for arm64 there",
		},
		{
			"Amazon's on arm64", machine("amzn", "2023", "arm64", "2342"), with(driver("580"), "source", "distro"),
			"cannot install from Amazon's repository of NVIDIA's packages for amzn2023: it has no packages for arm64",
		},
		{
			"before Amazon's", machine("amzn", "2023", "amd64", "2331"), with(driver("560"), "source", "distro"),
			"cannot install driver 560 from Amazon's repository of NVIDIA's packages for amzn2023: no packages of branches before 570 are known there",
		},
		{
			"unknown key", machine("fedora", "45", "amd64", "2331"), driver("580"),
			"cannot trust NVIDIA's repository for fedora: which key signs it is not known to this release",
		},
		{
			"COS", machine("cos", "121", "amd64", "2331"), with(driver("580"), "owner", "gpuadm"),
			"cannot manage the driver: it is left to Google's cos-gpu-installer, or GKE's driver installer",
		},
		{
			"no version", machine("ubuntu", "24.04", "amd64", "2331"), driver("newest"),
			`cannot choose driver "newest": it is neither a version nor a branch`,
		},
		{
			"no id", machine("ubuntu", "24.04", "amd64", "zz"), driver("580"),
			`cannot choose a driver: GPU 0000:01:00.0: "zz" is not a PCI device id`,
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			ch, err := Choose(c, x.m, x.d)
			var told *trouble.Error
			must.That(t, errors.As(err, &told), "not refused: %+v, %v", ch, err)
			check.None(t, cmp.Diff(x.want, err.Error()), "got")
			check.That(t, len(told.Try) > 0, "it does not say what to do")
			check.None(t, cmp.Diff(Choice{}, ch), "half a choice comes with the refusal:")
		})
	}
}

// TestNoBranch is about a catalog without the branch.
func TestNoBranch(t *testing.T) {
	c := Load()
	c.Branches = nil
	_, err := Choose(c, machine("ubuntu", "24.04", "amd64", "2331"), driver(""))
	check.That(t, err != nil && err.Error() == "cannot choose a driver branch: this release of gpuadm knows of none that is supported on 2026-11-22", "%v", err)
}

// TestRemedyForProprietary: modules = "auto" is a remedy only where the spec's modules is why the
// kernel modules are proprietary. A GPU may work with no others, and the precompiled ones of
// NVIDIA's module streams are proprietary, whatever the spec's modules says.
func TestRemedyForProprietary(t *testing.T) {
	const auto = `write modules = "auto" in [driver]`
	precompiled := with(driver("580.178.04"), "build", "precompiled")
	rocky := machine("rocky", "9.4", "amd64", "2331")
	for _, x := range []struct {
		name     string
		machine  hardware.Machine
		driver   spec.Driver
		why, try string
	}{
		{
			"the spec", rocky, gds(with(driver("580"), "modules", "proprietary")),
			"and the spec asks for proprietary ones", auto,
		},
		{
			"a V100", machine("azurelinux", "3.0", "amd64", "1db6"), with(driver("580"), "modules", "proprietary"),
			"works with proprietary ones", "",
		},
		{
			"a V100 for GPUDirect Storage", machine("rocky", "9.4", "amd64", "1db6"),
			gds(with(driver("580"), "modules", "proprietary")),
			"works with proprietary ones", "",
		},
		{
			"a stream", rocky, gds(precompiled),
			`and build = "precompiled" takes proprietary ones`,
			`write build = "dkms" in [driver]`,
		},
		{
			"a stream after its last branch", rocky, with(driver("620.10.01"), "build", "precompiled"),
			`build = "precompiled" takes proprietary kernel modules, which end with branch 615`,
			`write build = "dkms" in [driver]`,
		},
		{
			"the spec and a stream", rocky, gds(with(precompiled, "modules", "proprietary")),
			"and the spec asks for proprietary ones",
			`write modules = "auto" and build = "dkms" in [driver]`,
		},
	} {
		_, err := Choose(Load(), x.machine, x.driver)
		var told *trouble.Error
		must.That(t, errors.As(err, &told), "%s: not refused: %v", x.name, err)
		check.Has(t, told.What, x.why, "%s: it says", x.name)
		if x.try == "" {
			check.That(t, !slices.Contains(told.Try, auto), "%s: %q helps nothing", x.name, told.Try)
			continue
		}
		check.That(t, slices.Contains(told.Try, x.try), "%s: %q, want %s", x.name, told.Try, x.try)
	}
}

// TestInsteadOfPrecompiled: packages of precompiled modules that are named after an exact version are
// advised by one. No refusal says that no driver works with the GPUs where one does.
func TestInsteadOfPrecompiled(t *testing.T) {
	for _, x := range []struct {
		machine hardware.Machine
		driver  spec.Driver
	}{
		{machine("rocky", "9.4", "amd64", "2331"), driver("470.82.01")},
		{machine("rhel", "10.1", "amd64", "2331"), with(driver("570.133.20"), "source", "distro")},
	} {
		asked := with(x.driver, "build", "precompiled")
		_, err := Choose(Load(), x.machine, asked)
		var told *trouble.Error
		must.That(t, errors.As(err, &told), "not refused: %v", err)
		const want = `write version = "580.178.04" in [driver]`
		check.That(t, slices.Equal(told.Try, []string{want}), "%v; try: %q, want %s", err, told.Try, want)
	}
}

func with(d spec.Driver, key, value string) spec.Driver {
	switch key {
	case "modules":
		d.Modules = value
	case "source":
		d.Source = value
	case "build":
		d.Build = value
	case "owner":
		d.Owner = value
	case "fabricmanager":
		d.FabricManager = value
	}
	return d
}

func TestOwners(t *testing.T) {
	c := Load()
	other := with(driver("580"), "owner", "other")
	coreos := machine("fedora", "42", "amd64", "2331")
	coreos.Name = "Fedora CoreOS 42.20250901.3.0"
	operator := machine("ubuntu", "24.04", "amd64", "2331")
	operator.Owner = "the GPU Operator's driver container"
	for _, x := range []struct {
		m    hardware.Machine
		d    spec.Driver
		want string
	}{
		{machine("cos", "121", "amd64", "2331"), driver("580"), "cos-gpu-installer"},
		{machine("flatcar", "4230", "amd64", "2331"), driver(""), "Flatcar"},
		{machine("bottlerocket", "1.40", "amd64", "2331"), driver(""), "Bottlerocket"},
		{machine("rhcos", "9.6", "amd64", "2331"), driver(""), "CoreOS"},
		{coreos, driver(""), "CoreOS"},
		{operator, driver(""), "GPU Operator"},
		{machine("ubuntu", "24.04", "amd64", "2331"), other, `owner = "other"`},
	} {
		ch, err := Choose(c, x.m, x.d)
		check.That(t, err == nil && ch.Source == SourceNone && strings.Contains(ch.Owner, x.want) && strings.Contains(ch.Why, ch.Owner) && ch.Members == nil,
			"%s: %+v, %v", x.m.ID, ch, err)
	}

	ch, err := Choose(c, machine("ubuntu", "24.04", "amd64", "0680:22a3"), driver("580"))
	check.That(t, err == nil && ch.Source == SourceNone && ch.Owner == "" && ch.Why != "", "a machine without a GPU: %+v, %v", ch, err)
}

// A folder in which nothing tells the architecture is refused for that, and not for a repository
// that lacks "".
func TestNoArchitecture(t *testing.T) {
	_, err := Choose(Load(), machine("debian", "12", "", "2331"), driver("580"))
	check.That(t, err != nil && strings.Contains(whole(err), "cannot determine the CPU architecture") && strings.Contains(whole(err), "root of an image"), "%v", err)
}

// TestChoiceIsMadeOnce: the stages of one plan choose the driver once; other facts, or another
// spec, choose again.
func TestChoiceIsMadeOnce(t *testing.T) {
	s := specs.Of(t, "[driver]\nversion = \"580.95.05\"\n")
	d := New(nil)
	f := facts.Facts{
		OS:      facts.OS{ID: "debian", Version: "12"},
		Arch:    "amd64",
		Live:    true,
		GPUs:    []facts.PCI{function("2330", "030200")},
		Modules: &facts.Modules{},
	}
	plan := func(f facts.Facts) {
		t.Helper()
		_, _, _ = d.Choose(s, f)
		_, _ = d.Settings(s, f)
		_, _ = d.Runfile(s, f)
		_ = d.LeftAlone(s, f)
		_, _ = d.Modules(new(packages.Reading)).Wants(s, f)
		_, _ = d.Services().Wants(s, f)
	}

	const mark = "made before"
	marked := func() bool { return slices.Contains(d.last.choice.Warnings, mark) }
	for _, kernel := range []string{"6.1.0-30-amd64", "6.1.0-31-amd64"} {
		f.Kernel = facts.Kernel{Running: kernel, Installed: []string{kernel}}
		if plan(f); marked() {
			t.Errorf("no new choice for kernel %s", kernel)
		}
		d.last.choice.Warnings = append(d.last.choice.Warnings, mark)
		if plan(f); !marked() {
			t.Errorf("the choice for kernel %s was made twice", kernel)
		}
	}

	s.Driver.Version = "580.105.08"
	if plan(f); marked() {
		t.Error("no new choice after the spec has changed")
	}
}

// TestAzureLinux4: with the address and the key of its repository in the spec, Azure Linux 4 has the
// packages of NVIDIA's dnf repositories, without streams.
func TestAzureLinux4(t *testing.T) {
	ch := choose(t, machine("azurelinux", "4.0", "amd64", "2331"), mirrored("595.71.05"))
	check.Equal(t, strings.Join(names(ch, "module"), " "), "kmod-nvidia-open-dkms", "the modules' package:")
	check.Equal(t, ch.Stream, "", "stream:")
}
