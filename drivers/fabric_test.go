// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func function(device, class string) facts.PCI {
	return facts.PCI{Vendor: "10de", Device: device, Class: class}
}

// The catalog says which GPUs have which fabric, and every row that says so is heard.
func TestFabricOf(t *testing.T) {
	c := Load()
	for _, x := range []struct {
		gpus []facts.PCI
		want string
	}{
		{[]facts.PCI{function("2330", "030200")}, ""}, // an H100 in a virtual machine
		{[]facts.PCI{function("2330", "030200"), function("22a3", "068000")}, FabricSwitch},
		{[]facts.PCI{function("2901", "030200")}, FabricNVLink5}, // B200
		{[]facts.PCI{function("3182", "030200")}, FabricNVLink5}, // B300
		{[]facts.PCI{function("2941", "030200")}, FabricRack},    // GB200
		{[]facts.PCI{function("31C2", "030200")}, FabricRack},    // GB300
		{[]facts.PCI{{Vendor: "8086", Device: "2901", Class: "030200"}}, ""},
		{[]facts.PCI{function("2901", "040300")}, ""}, // no GPU, but a function beside it
		{nil, ""},
	} {
		check.Equal(t, FabricOf(c, facts.Facts{
			Live: true,
			GPUs: x.gpus,
		}), x.want, "%v:", x.gpus)
	}

	for _, row := range c.GPUs {
		got := FabricOf(c, facts.Facts{GPUs: []facts.PCI{function(row.ID, "030200")}})
		want := map[string]string{"nvlink5": FabricNVLink5, "rack": FabricRack}[row.Fabric]
		check.That(t, got == want, "%s (%s): %q, want %q", row.ID, row.Product, got, want)
	}
}

func TestServices(t *testing.T) {
	for _, c := range []struct {
		name  string
		gpus  []facts.PCI
		fm    string
		units string
	}{
		{"no switch", []facts.PCI{function("2330", "030200")}, "auto", "nvidia-persistenced.service"},
		{
			"HGX H100",
			[]facts.PCI{function("2330", "030200"), function("22a3", "068000")},
			"auto",
			"nvidia-persistenced.service nvidia-fabricmanager.service",
		},
		{
			"HGX H100, off",
			[]facts.PCI{function("2330", "030200"), function("22a3", "068000")},
			"off",
			"nvidia-persistenced.service",
		},
		{"HGX B200", []facts.PCI{function("2901", "030200")}, "auto", "nvidia-persistenced.service nvidia-fabricmanager.service"},
		{"HGX B300", []facts.PCI{function("3182", "030200")}, "auto", "nvidia-persistenced.service nvidia-fabricmanager.service"},
		{"GB200", []facts.PCI{function("2941", "030200")}, "auto", "nvidia-persistenced.service nvidia-imex.service"},
	} {
		f := facts.Facts{Live: true, GPUs: c.gpus}
		wants, err := ServiceWants(Services{
			Version:       "580.95.05",
			Fabric:        FabricOf(Load(), f),
			Persistenced:  true,
			FabricManager: c.fm,
			IMEX:          "auto",
		}, f)
		must.That(t, err == nil, "%v: %v", c.name, err)
		var units []string
		for _, w := range wants {
			if w.Ref().Kind == "unit" {
				units = append(units, w.Ref().Name)
			}
		}

		check.Equal(t, strings.Join(units, " "), c.units, "%s:", c.name)
	}

	alone := facts.Facts{Live: true, GPUs: []facts.PCI{function("2330", "030200")}}
	for _, s := range []Services{{FabricManager: "on"}, {FabricManager: "auto", IMEX: "host"}, {FabricManager: "on", Fabric: FabricRack}} {
		_, err := ServiceWants(s, alone)
		tr := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &tr) && len(tr.Try) > 0, "%+v: %v, and not a refusal that says what to do", s, err)
	}
}

// TestFabricMode: where the fabric manager's own file says that partitions of the switches are another
// program's, gpuadm runs the fabric manager, and waits for no registration.
func TestFabricMode(t *testing.T) {
	hgx := []facts.PCI{function("2330", "030200"), function("22a3", "068000")}
	for _, x := range []struct{ config, owner string }{
		{"", ""},
		{"# FABRIC_MODE=1\nFABRIC_MODE=0\nFABRIC_MODE_RESTART=1\n", ""},
		{"LOG_LEVEL=4\nFABRIC_MODE=1\n", "shared NVSwitch"},
		{"FABRIC_MODE = 2\r\n", "vGPU"},
		{"FABRIC_MODE=7\n", "FABRIC_MODE=7"},
	} {
		files := map[string][]byte{FabricManagerConfig: []byte(x.config)}
		f := facts.Facts{Live: true, GPUs: hgx, Files: files}
		services := Services{
			Version:       "580.95.05",
			Fabric:        FabricSwitch,
			FabricManager: "auto",
		}
		wants := must.Get(ServiceWants(services, f))(t)
		waits, runs := false, false
		for _, w := range wants {
			waits = waits || w.Ref().Kind == "fabric"
			runs = runs || w.Ref().Name == FabricManagerUnit
		}

		check.That(t, runs, "%q: the fabric manager does not run", x.config)
		check.Equal(t, waits, x.owner == "", "%q: gpuadm waits for the GPUs:", x.config)
		note := strings.Join(fabricNotes(FabricSwitch, "auto", f), "")
		check.Has(t, note, x.owner, "%q:", x.config)
		check.Equal(t, note == "", x.owner == "", "%q: nothing is said:", x.config)
	}

	other := facts.Facts{
		Live:  true,
		Files: map[string][]byte{FabricManagerConfig: []byte("FABRIC_MODE=1\n")},
	}
	check.None(t, strings.Join(fabricNotes(FabricSwitch, "off", other), ""), "left to another system:")
	check.None(t, strings.Join(fabricNotes(FabricRack, "auto", other), ""), "a rack:")
}

// What keeps the fabric manager from starting is found before it is started, also where it has
// failed already.
func TestFabricManagerVersionAndSwitches(t *testing.T) {
	s := Services{
		Version:        "580.95.05",
		Fabric:         FabricNVLink5,
		FabricManager:  "auto",
		ManagerPackage: "nvidia-fabricmanager-580",
	}
	wants, _ := ServiceWants(s, facts.Facts{
		Live: true,
		GPUs: []facts.PCI{function("2901", "030200")},
	})
	const loaded = "-- sys/module/nvidia/version --\n580.95.05\n"
	const stale = "[[unit]]\nname = \"nvidia-fabricmanager.service\"\nactive = \"failed\"\n[[command]]\nargv = [\"nv-fabricmanager\", \"--version\"]\nstdout = \"Fabric Manager version is : 580.82.07\"\n"
	const umad = "-- sys/class/infiniband_mad/abi_version --\n5\n"
	p := drivertest.Problems(t, wants, drivertest.Node(t, "-- sim.toml --\n"+stale+loaded+umad))
	check.That(t, strings.Contains(p, "its version is 580.82.07 and the module's is 580.95.05") && strings.Contains(p, "there is no InfiniBand device"), "%v", p)
	running := "-- sim.toml --\n" + strings.Replace(stale, "failed", "active", 1) + loaded + umad
	if p = drivertest.Problems(t, wants, drivertest.Node(t, running+"-- sys/class/infiniband/mlx5_0/device/vpd --\nxx\n")); !strings.Contains(p, "none says SW_MNG") {
		t.Error(p)
	}
	if p = drivertest.Problems(t, wants, drivertest.Node(t, running+"-- sys/class/infiniband/mlx5_0/device/vpd --\nxx SW_MNG xx\n")); p != "" {
		t.Error(p)
	}
	for _, w := range wants {
		state, err := w.Look(t.Context(), drivertest.Node(t, "-- sim.toml --\n"+stale+loaded))
		check.That(t, w.Ref().Name != "NVLink switches can be managed" || errors.As(err, new(host.Later)), "without ib_umad, which the stage before loads: %q, %v", state, err)
		if w.Ref().Name != "the fabric manager is of the module's version" {
			continue
		}
		_, err = w.To(state)
		tr := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &tr) && slices.Equal(tr.Try, []string{"install the package nvidia-fabricmanager-580 of version 580.95.05"}),
			"a program of another version: %v", err)
	}
}

// unreadable is a machine with one name that cannot be looked at or read.
type unreadable struct {
	*simhost.Node
	name string
}

func (u unreadable) fault(verb, name string) error {
	if name == u.name {
		return &host.FileError{Verb: verb, Path: name, Cause: syscall.EIO}
	}
	return nil
}

func (u unreadable) Stat(name string) (host.Info, error) {
	if err := u.fault("look at", name); err != nil {
		return host.Info{}, err
	}
	return u.Node.Stat(name)
}

func (u unreadable) ReadFile(name string) ([]byte, error) {
	if err := u.fault("read", name); err != nil {
		return nil, err
	}
	return u.Node.ReadFile(name)
}

// TestSwitchesUnknown: a folder that cannot be looked at does not say that ib_umad is yet to be loaded.
func TestSwitchesUnknown(t *testing.T) {
	const umad = "/sys/class/infiniband_mad"
	n := drivertest.Node(t, "-- sys/class/infiniband_mad/abi_version --\n5\n")

	state, err := switchReady().Look(t.Context(), unreadable{n, umad})

	check.That(t, errors.Is(err, syscall.EIO), "%q, %v", state, err)
}

// On B200 and B300 the kernel's InfiniBand modules are loaded at boot, and on Ubuntu before 26.04
// the package that has them comes where a kernel lacks one, and stays where it came.
func TestInfinibandModules(t *testing.T) {
	const kernel = "6.8.0-60-generic"
	for _, x := range []struct {
		name, id, version, device string
		has                       []string
		extra                     bool
		manager                   string
		packages, loads           string
	}{
		{"B200 that has them", "ubuntu", "24.04", "2901", []string{"mlx5_ib", "ib_umad"}, false, "auto", "", "mlx5_ib ib_umad"},
		{
			"B200 that lacks one", "ubuntu", "24.04", "2901",
			[]string{"ib_umad"},
			false, "auto", "linux-modules-extra-" + kernel,
			"mlx5_ib ib_umad",
		},
		{
			"B300 that lacks both", "ubuntu", "22.04", "3182", nil, false, "auto", "linux-modules-extra-" + kernel,
			"mlx5_ib ib_umad",
		},
		{
			"B200 once it came", "ubuntu", "24.04", "2901",
			[]string{"mlx5_ib", "ib_umad"},
			true, "auto", "linux-modules-extra-" + kernel,
			"mlx5_ib ib_umad",
		},
		{"B200 on 26.04", "ubuntu", "26.04", "2901", nil, false, "auto", "", "mlx5_ib ib_umad"},
		{"B200 on Debian", "debian", "13", "2901", nil, false, "auto", "", "mlx5_ib ib_umad"},
		{"B200, another's switches", "ubuntu", "24.04", "2901", nil, false, "off", "", ""},
		{"GB200", "ubuntu", "24.04", "2941", nil, false, "auto", "", ""},
		{"H100", "ubuntu", "24.04", "2330", nil, false, "auto", "", ""},
	} {
		f := facts.Facts{
			Live: true, OS: facts.OS{
				ID:      x.id,
				Version: x.version,
			}, GPUs: []facts.PCI{function(x.device, "030200")},
			Kernel: facts.Kernel{Running: kernel, Installed: []string{kernel}},
			Modules: &facts.Modules{Kernels: []facts.KernelModules{{
				Kernel:     kernel,
				Infiniband: x.has,
				Extra:      x.extra,
			}}},
		}
		d := spec.Driver{FabricManager: x.manager}
		c := Choice{Version: "580.95.05", Source: SourceNVIDIA}
		c.addFabric(Load(), d, f)
		var packages []string
		for _, m := range c.Members {
			packages = append(packages, m.Name)
			check.That(t, !m.Lockstep && m.PerKernel == kernel, "%s: %+v", x.name, m)
		}

		k, _ := c.KernelSide(d, f)
		loads := slices.DeleteFunc(slices.Clone(k.Companions), func(m string) bool {
			return strings.HasPrefix(m, "nvidia")
		})
		got := strings.Join(packages, " ")
		check.That(t, got == x.packages && strings.Join(loads, " ") == x.loads && strings.Join(k.Extra, " ") == x.packages,
			"%s: packages %q and %q, want %q; loads %q, want %q", x.name, got, k.Extra, x.packages, loads, x.loads)
	}
}

func gds(d spec.Driver) spec.Driver {
	d.GDS = true
	return d
}

// nvidia-fs is a package where a source has one, with a version of its own; where none is known
// that is said before anything is installed.
func TestGDS(t *testing.T) {
	for _, x := range []struct {
		name string
		m    hardware.Machine
		d    spec.Driver
		want []string // packages, or what the refusal says
	}{
		{"not asked", machine("rhel", "9.4", "amd64", "2331"), driver("580"), nil},
		{"dnf", machine("rhel", "9.4", "amd64", "2331"), gds(driver("580")), []string{"nvidia-fs"}},
		{"apt", machine("ubuntu", "24.04", "amd64", "2331"), gds(driver("580")), []string{"nvidia-fs", "nvidia-fs-dkms"}},
		{
			"Debian's own", machine("debian", "12", "amd64", "2331"), gds(with(driver("535"), "source", "distro")),
			[]string{"nvidia-fs-dkms"},
		},
		{
			"takes open modules", machine("ubuntu", "22.04", "amd64", "2331"), gds(driver("550")),
			[]string{"nvidia-fs", "nvidia-fs-dkms"},
		},
		{
			"Ubuntu's own", machine("ubuntu", "24.04", "amd64", "2331"), gds(with(driver("580"), "source", "distro")),
			[]string{"cannot install GPUDirect Storage's module (nvidia-fs) from Ubuntu's archive for ubuntu2404: that source has no such package", "gds = false"},
		},
		{
			"NVIDIA's for Debian", machine("debian", "12", "amd64", "2331"), gds(driver("580")),
			[]string{"cannot install GPUDirect Storage's module (nvidia-fs) from NVIDIA's repository for debian12: none is known there for branch 580", "write gds = false in [driver], and install it yourself"},
		},
		{
			"runfile", machine("ubuntu", "24.04", "amd64", "2331"),
			gds(with(driver("580.95.05"), "source", "runfile")),
			[]string{"cannot install GPUDirect Storage's module (nvidia-fs) from a runfile", "gds = false"},
		},
		{
			"Volta", machine("rhel", "9.4", "amd64", "1db6"), gds(driver("580")),
			[]string{"nvidia-fs works with open kernel modules", "GPU 0000:01:00.0", "gds = false"},
		},
		{
			"proprietary", machine("rhel", "9.4", "amd64", "2331"),
			gds(with(driver("580"), "modules", "proprietary")),
			[]string{"nvidia-fs works with open kernel modules", "the spec asks for proprietary ones"},
		},
	} {
		ch, err := Choose(Load(), x.m, x.d)
		got := names(ch, "gds")
		if err != nil {
			if message := whole(err); !slices.ContainsFunc(x.want, func(w string) bool { return !strings.Contains(message, w) }) && x.want != nil {
				continue
			}
			t.Errorf("%s: %v", x.name, whole(err))
			continue
		}

		check.That(t, slices.Equal(got, x.want), "%s: %v, want %v", x.name, got, x.want)
		for _, m := range ch.Members {
			check.That(t, m.Role != "gds" || !m.Lockstep, "%s: %s has a version of its own", x.name, m.Name)
		}
		check.That(t, x.want == nil || ch.Flavour == FlavourOpen || ch.Source != SourceNVIDIA, "%s: %s modules", x.name, ch.Flavour)
	}
}

func whole(err error) string {
	s := err.Error()
	if t, ok := err.(*trouble.Error); ok {
		s += "\n" + strings.Join(append(t.Because, t.Try...), "\n")
	}
	return s
}
