// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func gds(d spec.Driver) spec.Driver {
	d.GDS = true
	return d
}

// nvidia-fs is a package where a source has one, with a version of its own; where none is known that is said before anything
// is installed.
func TestGDS(t *testing.T) {
	for _, x := range []struct {
		name string
		m    Machine
		d    spec.Driver
		want []string // packages, or what the refusal says
	}{
		{"not asked", machine("rhel", "9.4", "amd64", "2331"), driver("580"), nil},
		{"dnf", machine("rhel", "9.4", "amd64", "2331"), gds(driver("580")), []string{"nvidia-fs"}},
		{"apt", machine("ubuntu", "24.04", "amd64", "2331"), gds(driver("580")), []string{"nvidia-fs", "nvidia-fs-dkms"}},
		{"Debian's own", machine("debian", "12", "amd64", "2331"), gds(with(driver("535"), "source", "distro")), []string{"nvidia-fs-dkms"}},
		{"takes open modules", machine("ubuntu", "22.04", "amd64", "2331"), gds(driver("550")), []string{"nvidia-fs", "nvidia-fs-dkms"}},
		{"Ubuntu's own", machine("ubuntu", "24.04", "amd64", "2331"), gds(with(driver("580"), "source", "distro")), []string{"cannot install GPUDirect Storage's module (nvidia-fs) from Ubuntu's archive for ubuntu2404: it has none", "gds = false"}},
		{"NVIDIA's for Debian", machine("debian", "12", "amd64", "2331"), gds(driver("580")), []string{"cannot install GPUDirect Storage's module (nvidia-fs) from NVIDIA's repository for debian12: none is known there for branch 580", "write gds = false in [driver], and install it yourself"}},
		{"runfile", machine("ubuntu", "24.04", "amd64", "2331"), gds(with(driver("580.95.05"), "source", "runfile")), []string{"cannot install GPUDirect Storage's module (nvidia-fs) from a runfile", "gds = false"}},
		{"Volta", machine("rhel", "9.4", "amd64", "1db6"), gds(driver("580")), []string{"nvidia-fs works with open kernel modules", "GPU 0000:01:00.0", "gds = false"}},
		{"proprietary", machine("rhel", "9.4", "amd64", "2331"), gds(with(driver("580"), "modules", "proprietary")), []string{"nvidia-fs works with open kernel modules", "the spec asks for proprietary ones"}},
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
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
		for _, m := range ch.Members {
			if m.Role == "gds" && m.Lockstep {
				t.Errorf("%s: %s has a version of its own", x.name, m.Name)
			}
		}
		if x.want != nil && ch.Flavour != FlavourOpen && ch.Source == SourceNVIDIA {
			t.Errorf("%s: %s modules", x.name, ch.Flavour)
		}
	}
}

func whole(err error) string {
	s := err.Error()
	if t, ok := err.(*trouble.Error); ok {
		s += "\n" + strings.Join(append(t.Because, t.Try...), "\n")
	}
	return s
}

// What is asked for beside the driver is loaded with it, and proven by its files for each kernel: nvidia-peermem in the
// driver's version, nvidia-fs in its own.
func TestCompanions(t *testing.T) {
	ch := choose(t, machine("rhel", "9.4", "amd64", "2331"), gds(driver("580.95.05")))
	d := driver("580.95.05")
	d.Peermem, d.GDS = true, true
	k, _ := ch.KernelSide(d, facts.Facts{})
	if want := []string{"nvidia-uvm", "nvidia-modeset", "nvidia-peermem", "nvidia-fs"}; !slices.Equal(k.Companions, want) {
		t.Errorf("loaded are %v, want %v", k.Companions, want)
	}
	const dir = "lib/modules/6.8.0-41-generic/updates/dkms/"
	dep := func(names ...string) string {
		s := "-- lib/modules/6.8.0-41-generic/modules.dep --\n"
		for _, n := range names {
			s += "updates/dkms/" + n + ".ko:\n"
		}
		return s
	}
	ko := func(name, version string) string {
		return KoFile(dir+name+".ko", version, "Dual MIT/GPL", "6.8.0-41-generic")
	}
	const source = "-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n"
	for _, x := range []struct{ name, files, problem string }{
		{"all there", dep("nvidia", "nvidia-peermem", "nvidia-fs") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "580.95.05") + ko("nvidia-fs", "2.26.6"), ""},
		{"not yet the driver's turn", dep("nvidia") + ko("nvidia", "570.1"), ""},
		{"no driver yet", dep(), ""},
		{"no peermem", dep("nvidia", "nvidia-fs") + ko("nvidia", "580.95.05") + ko("nvidia-fs", "2.26.6"), "kernel 6.8.0-41-generic has no module nvidia-peermem"},
		{"older peermem", dep("nvidia", "nvidia-peermem", "nvidia-fs") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "570.1") + ko("nvidia-fs", "2.26.6"), "nvidia-peermem of kernel 6.8.0-41-generic is 570.1, and the driver 580.95.05"},
		{"no nvidia-fs", dep("nvidia", "nvidia-peermem") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "580.95.05") + source, ""}, // it is built at the end
		{"gds is asked for since today", dep("nvidia", "nvidia-peermem") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "580.95.05"), "later: once the package of nvidia-fs is installed"},
	} {
		k.Kernels = []string{"6.8.0-41-generic"}
		state, err := companionFiles(k).Look(context.Background(), simulated(t, x.files))
		if later := (host.Later{}); errors.As(err, &later) {
			state = "later: " + converge.State(later.Until)
		} else if err != nil {
			t.Fatal(err)
		}
		if x.problem == "" && state != "ok" || !strings.Contains(string(state), x.problem) {
			t.Errorf("%s: %q, want %q", x.name, state, x.problem)
		}
	}
}

// nvidia-fs is built where its package has brought the source and the kernel has the driver, and rebuilt when the driver changes.
func TestBuiltBeside(t *testing.T) {
	const kernel, dir = "6.8.0-41-generic", "/lib/modules/6.8.0-41-generic/updates/dkms/"
	const source = "-- usr/src/nvidia-fs-2.9.1/dkms.conf --\n-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n"
	const driver = "-- lib/modules/" + kernel + "/modules.dep --\nupdates/dkms/nvidia.ko:\nupdates/dkms/nvidia-fs.ko:\n" + "-- lib/modules/" + kernel + "/updates/dkms/nvidia.ko --\n"
	state := func(n *simhost.Node) string {
		t.Helper()
		version, is, err := BuiltBeside(n, "nvidia-fs", kernel)
		if err != nil || version != "2.26.6" && is != "fits" {
			t.Errorf("version %q, %v", version, err)
		}
		return string(is)
	}
	if is := state(simulated(t, source)); is != "fits" {
		t.Errorf("without a driver: %q", is)
	}
	if is := state(simulated(t, driver)); is != "fits" {
		t.Errorf("without a source: %q", is)
	}
	n := simulated(t, source+driver)
	if is := state(n); is != "not built" {
		t.Errorf("without its file: %q", is)
	}
	for _, step := range []struct{ file, want string }{{"nvidia-fs.ko", "fits"}, {"nvidia.ko", "of another driver"}, {"nvidia-fs.ko", "fits"}} {
		must.OK(t, n.WriteFile(dir+step.file, nil, host.Attr{Mode: 0o644}))
		if is := state(n); is != step.want {
			t.Errorf("after %s: %q, want %q", step.file, is, step.want)
		}
	}
}
