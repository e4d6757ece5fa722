// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A kernel without the modules is refused before anything is touched, unless a package is to bring
// them.
func TestInfinibandFiles(t *testing.T) {
	const dep = "-- lib/modules/6.8.0/modules.dep --\nkernel/drivers/infiniband/core/ib_umad.ko.zst: kernel/drivers/infiniband/core/ib_core.ko.zst\n"
	const mlx = "kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko.zst: kernel/drivers/infiniband/core/ib_core.ko.zst\n"
	const extra = "linux-modules-extra-6.8.0"
	for _, x := range []struct {
		name, archive string
		extra         []string
		says, later   string
	}{
		{"both", dep + mlx, nil, "", ""},
		{
			"one is built in",
			dep + "-- lib/modules/6.8.0/modules.builtin --\nkernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko\n",
			nil, "",
			"",
		},
		{"one is missing", dep, nil, "kernel 6.8.0 has no module mlx5_ib", ""},
		{"a package is to come", dep, []string{extra}, "", "once " + extra + " is installed"},
		{
			"the package lacks it",
			dep + "-- var/lib/dpkg/info/" + extra + ".md5sums --\n",
			[]string{extra},
			"kernel 6.8.0 has no module mlx5_ib",
			"",
		},
	} {
		side := KernelSide{
			Version:    "580.95.05",
			Kernels:    []string{"6.8.0"},
			Companions: []string{"nvidia-uvm", "mlx5_ib", "ib_umad"},
			Extra:      x.extra,
		}
		state, err := companionFiles(side).Look(t.Context(), drivertest.Node(t, x.archive))
		later := host.Later{}
		if errors.As(err, &later); later.Until != x.later || (x.says == "") != (state == "ok" || err != nil) || !strings.Contains(string(state), x.says) {
			t.Errorf("%s: %q, %v", x.name, state, err)
		}
	}
}

// A module that is built into the kernel is loaded: it has no reference count, and nothing would
// ever load it.
func TestBuiltInCompanion(t *testing.T) {
	const driver = "-- sys/module/nvidia/refcnt --\n0\n-- sys/module/nvidia/version --\n580.95.05\n-- proc/driver/nvidia/version --\nNVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n" +
		"-- proc/sys/kernel/osrelease --\n6.8.0\n-- etc/modules-load.d/gpuadm.conf --\nnvidia\nib_umad\n"
	w := kmod.Module("6.8.0", []string{LoadFile}, func(host.View, string) (string, error) {
		return "580.95.05 open", nil
	}, false, "")
	for archive, want := range map[string]bool{driver: false, driver + "-- lib/modules/6.8.0/modules.builtin --\nkernel/drivers/infiniband/core/ib_umad.ko\n": true} {
		state, err := w.Look(t.Context(), drivertest.Node(t, archive))
		check.That(t, err == nil && strings.Contains(string(state), "ib_umad") != want, "%q, %v; built in: %v", state, err, want)
	}
}

// What is asked for beside the driver is proven by its files for each kernel: nvidia-peermem in the
// driver's version, nvidia-fs in its own.
func TestCompanions(t *testing.T) {
	const dir = "lib/modules/6.8.0-41-generic/updates/dkms/"
	dep := func(names ...string) string {
		s := "-- lib/modules/6.8.0-41-generic/modules.dep --\n"
		for _, n := range names {
			s += "updates/dkms/" + n + ".ko:\n"
		}
		return s
	}

	ko := func(name, version string) string {
		return drivertest.ModuleFile(dir+name+".ko", version, "Dual MIT/GPL", "6.8.0-41-generic")
	}
	const source = "-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n"
	for _, x := range []struct{ name, files, problem string }{
		{
			"all there",
			dep("nvidia", "nvidia-peermem", "nvidia-fs") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "580.95.05") + ko("nvidia-fs", "2.26.6"),
			"",
		},
		{"not yet the driver's turn", dep("nvidia") + ko("nvidia", "570.1"), ""},
		{"no driver yet", dep(), ""},
		{
			"no peermem",
			dep("nvidia", "nvidia-fs") + ko("nvidia", "580.95.05") + ko("nvidia-fs", "2.26.6"),
			"kernel 6.8.0-41-generic has no module nvidia-peermem",
		},
		{
			"older peermem",
			dep("nvidia", "nvidia-peermem", "nvidia-fs") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "570.1") + ko("nvidia-fs", "2.26.6"),
			"nvidia-peermem of kernel 6.8.0-41-generic is 570.1, and the driver 580.95.05",
		},
		{"no nvidia-fs", dep("nvidia", "nvidia-peermem") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "580.95.05") + source, ""}, // it is built at the end
		{
			"gds is asked for since today",
			dep("nvidia", "nvidia-peermem") + ko("nvidia", "580.95.05") + ko("nvidia-peermem", "580.95.05"),
			"later: once the package of nvidia-fs is installed",
		},
	} {
		k := KernelSide{
			Version: "580.95.05", Flavour: "open", Build: "dkms", Kernels: []string{"6.8.0-41-generic"},
			Companions: []string{"nvidia-uvm", "nvidia-modeset", "nvidia-peermem", "nvidia-fs"},
		}
		state, err := companionFiles(k).Look(context.Background(), drivertest.Node(t, x.files))
		if later := (host.Later{}); errors.As(err, &later) {
			state = "later: " + converge.State(later.Until)
		} else if err != nil {
			t.Fatal(err)
		}

		check.That(t, (x.problem != "" || state == "ok") && strings.Contains(string(state), x.problem), "%s: %q, want %q", x.name, state, x.problem)
	}
}

// nvidia-fs is built where its package has brought the source and the kernel has the driver, and
// rebuilt when the driver changes.
func TestBuiltBeside(t *testing.T) {
	const kernel, dir = "6.8.0-41-generic", "/lib/modules/6.8.0-41-generic/updates/dkms/"
	const source = "-- usr/src/nvidia-fs-2.9.1/dkms.conf --\n-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n"
	const driver = "-- lib/modules/" + kernel + "/modules.dep --\nupdates/dkms/nvidia.ko:\nupdates/dkms/nvidia-fs.ko:\n" + "-- lib/modules/" + kernel + "/updates/dkms/nvidia.ko --\n"
	state := func(n *simhost.Node) string {
		t.Helper()
		version, is, err := BuiltBeside(n, "nvidia-fs", kernel)
		check.That(t, err == nil && (version == "2.26.6" || is == "fits"), "version %q, %v", version, err)
		return string(is)
	}

	check.Equal(t, state(drivertest.Node(t, source)), "fits", "without a driver:")
	check.Equal(t, state(drivertest.Node(t, driver)), "fits", "without a source:")
	n := drivertest.Node(t, source+driver)
	check.Equal(t, state(n), "not built", "without its file:")
	for _, step := range []struct{ file, want string }{{"nvidia-fs.ko", "fits"}, {"nvidia.ko", "of another driver"}, {"nvidia-fs.ko", "fits"}} {
		must.OK(t, n.WriteFile(dir+step.file, nil, host.Attr{Mode: 0o644}))
		check.Equal(t, state(n), step.want, "after %s:", step.file)
	}
}

// TestCompanionRemedies: what a refusal advises is about the module that it names, and for its kernel:
// without -k dkms builds for the kernel that runs.
func TestCompanionRemedies(t *testing.T) {
	const kernel = "6.8.0-41-generic"
	const folder = "lib/modules/" + kernel + "/"
	archive := "-- " + folder + "modules.dep --\nupdates/dkms/nvidia.ko:\n" +
		drivertest.ModuleFile(folder+"updates/dkms/nvidia.ko", "580.95.05", "Dual MIT/GPL", kernel)
	const autoinstall = "dkms status, which lists what was built; dkms autoinstall -k " + kernel + " builds what is missing"
	for _, x := range []struct {
		name, build string
		companion   string
		try         []string
	}{
		{"peermem", "dkms", Peermem, []string{autoinstall, "write peermem = false in [driver]"}},
		{"peermem that no DKMS builds", "precompiled", Peermem, []string{"write peermem = false in [driver]"}},
		{"the switches", "dkms", "mlx5_ib", []string{
			"install the InfiniBand drivers for this kernel, of the distribution or of DOCA",
			`fabricmanager = "off" in [driver], if another system manages the switches`,
		}},
	} {
		want := companionFiles(KernelSide{
			Version:    "580.95.05",
			Build:      x.build,
			Kernels:    []string{kernel},
			Companions: []string{x.companion},
		})
		state := must.Get(want.Look(t.Context(), drivertest.Node(t, archive)))(t)

		_, err := want.To(state)
		var told *trouble.Error
		must.That(t, errors.As(err, &told), "%s: %q, %v", x.name, state, err)
		check.That(t, slices.Equal(told.Try, x.try), "%s: try: %q, want %q", x.name, told.Try, x.try)
	}
}

// TestRemovedCompanion: a module counts as missing if its file was removed after depmod(8) had listed
// it: DKMS builds nvidia-fs again, and nvidia-peermem is refused.
func TestRemovedCompanion(t *testing.T) {
	const kernel = "6.8.0-41-generic"
	const folder = "lib/modules/" + kernel + "/"
	archive := "-- " + folder + "modules.dep --\nupdates/dkms/nvidia.ko:\nupdates/dkms/nvidia-fs.ko:\nupdates/dkms/nvidia-peermem.ko:\n" +
		"-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n" +
		drivertest.ModuleFile(folder+"updates/dkms/nvidia.ko", "580.95.05", "Dual MIT/GPL", kernel)
	for name, says := range map[string]string{
		Storage: "ok",
		Peermem: "kernel " + kernel + " has no module nvidia-peermem",
	} {
		want := companionFiles(KernelSide{
			Version:    "580.95.05",
			Build:      "dkms",
			Kernels:    []string{kernel},
			Companions: []string{name},
		})

		state, err := want.Look(t.Context(), drivertest.Node(t, archive))

		must.That(t, err == nil, "%s: %v", name, err)
		check.Has(t, string(state), says, "%s:", name)
	}
}

// unlisted is a machine with one folder that cannot be listed.
type unlisted struct {
	*simhost.Node
	folder string
}

func (u unlisted) ReadDir(name string) ([]string, error) {
	if name == u.folder {
		return nil, &host.FileError{Verb: "list", Path: name, Cause: syscall.EIO}
	}
	return u.Node.ReadDir(name)
}

// TestUnlistedSource: where gpuadm cannot list /usr/src, the state of nvidia-fs is unknown: it neither
// fits nor waits for its package.
func TestUnlistedSource(t *testing.T) {
	const kernel = "6.8.0-41-generic"
	const folder = "lib/modules/" + kernel + "/"
	archive := "-- " + folder + "modules.dep --\nupdates/dkms/nvidia.ko:\n" +
		"-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n" +
		drivertest.ModuleFile(folder+"updates/dkms/nvidia.ko", "580.95.05", "Dual MIT/GPL", kernel)
	machine := unlisted{drivertest.Node(t, archive), "/usr/src"}

	_, state, err := BuiltBeside(machine, Storage, kernel)
	check.That(t, errors.Is(err, syscall.EIO), "built beside the driver: %q, %v", state, err)

	side := KernelSide{
		Version:    "580.95.05",
		Build:      "dkms",
		Kernels:    []string{kernel},
		Companions: []string{Storage},
	}
	state, err = companionFiles(side).Look(t.Context(), machine)
	check.That(t, errors.Is(err, syscall.EIO), "its file: %q, %v", state, err)
}
