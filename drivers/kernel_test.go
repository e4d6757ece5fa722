// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// moduleFor is a module nvidia of a version, built for a kernel.
func moduleFor(kernel, version string) *modinfo.Module {
	return &modinfo.Module{
		Path:     "/lib/modules/" + kernel + "/updates/dkms/nvidia.ko",
		Version:  version,
		Vermagic: kernel + " SMP",
	}
}

// TestNextKernel: of a kernel that the machine boots next is said why it would have no driver.
func TestNextKernel(t *testing.T) {
	const now, next = "6.8", "6.9"
	for _, tt := range []struct {
		next facts.KernelModules
		says string
	}{
		{facts.KernelModules{Nvidia: moduleFor(next, "580.1")}, ""},
		{facts.KernelModules{}, "its headers are not installed"},
		{facts.KernelModules{Headers: true}, "no module nvidia is built for it"},
		{facts.KernelModules{Unlisted: []string{"/lib/modules/6.9/extra/nvidia.ko"}}, "run depmod 6.9"},
		{facts.KernelModules{Nvidia: moduleFor(next, "570.1")}, "its module nvidia is 570.1"},
		{facts.KernelModules{Nvidia: moduleFor(now, "580.1")}, "is built for 6.8"},
	} {
		tt.next.Kernel = next
		runs := facts.KernelModules{Kernel: now, Nvidia: moduleFor(now, "580.1")}

		got := NextKernel("580.1", facts.Modules{Kernels: []facts.KernelModules{tt.next, runs}}, Choice{})

		check.That(t, (got == "") == (tt.says == ""), "%+v: %q", tt.next, got)
		check.Has(t, got, tt.says, "%+v:", tt.next)
	}
}

// TestModuleProblems: what is wrong with the modules is said in sentences without asking the driver: by
// what is loaded, what lies on disk, and which version the libraries have that programs load.
func TestModuleProblems(t *testing.T) {
	const (
		running = "6.8.0-88-generic"
		newer   = "6.8.0-90-generic"

		oldDriver = "570.172.08"
		newDriver = "580.95.05"
	)
	libraries := []facts.Library{{
		Name:    "libnvidia-ml.so",
		Version: newDriver,
		Path:    "/usr/lib/libnvidia-ml.so." + newDriver,
	}}
	// loaded is a machine with a loaded module, and the kernels on its disk.
	loaded := func(version string, kernels ...facts.KernelModules) facts.Modules {
		return facts.Modules{
			Version:   version,
			Libraries: libraries,
			Kernels:   kernels,
		}
	}

	has := func(version string) facts.KernelModules {
		return facts.KernelModules{
			Kernel:  running,
			Headers: true,
			Nvidia:  moduleFor(running, version),
		}
	}

	hasNone := facts.KernelModules{Kernel: newer}
	hasHeaders := facts.KernelModules{Kernel: newer, Headers: true}

	byDKMS := Choice{Members: []Member{
		{Name: "linux-headers-" + running, Role: "headers", PerKernel: running},
		{Name: "linux-headers-" + newer, Role: "headers", PerKernel: newer},
	}}
	const signed = "linux-modules-nvidia-580-open-" + newer
	bySigned := Choice{
		Precompiled: true,
		Members:     []Member{{Name: signed, Role: "module", PerKernel: newer}},
	}
	apply := trouble.Command("apply")

	for _, tt := range []struct {
		name    string
		modules facts.Modules
		choice  Choice
		want    []string
	}{
		{"as it should be", loaded(newDriver, has(newDriver)), Choice{}, nil},
		{"nothing is installed yet", facts.Modules{Kernels: []facts.KernelModules{hasNone}}, Choice{}, nil},
		{"libraries were upgraded alone", loaded(oldDriver, has(oldDriver)), Choice{}, []string{
			`the kernel module nvidia 570.172.08 is loaded, and /usr/lib/libnvidia-ml.so.580.95.05 is of 580.95.05: NVML says "Driver/library version mismatch" after a reboot too, since the module on disk is 570.172.08 as well`,
			"the next boot starts kernel " + running + ", without the GPUs: its module nvidia is 570.172.08",
		}},
		{"all was upgraded, and nothing reloaded", loaded(oldDriver, has(newDriver)), Choice{}, []string{
			`"Driver/library version mismatch" until the module is reloaded or the machine rebooted`,
			"570.172.08 is loaded, and 580.95.05 is on disk: reload it or reboot",
		}},
		{
			"nouveau",
			facts.Modules{
				Taken:   []facts.Taken{{Address: "0000:17:00.0", Module: "nouveau"}},
				Kernels: []facts.KernelModules{has(newDriver)},
			},
			Choice{},
			[]string{"nouveau holds 0000:17:00.0"},
		},
		{"a kernel that has come since", loaded(newDriver, hasNone, has(newDriver)), Choice{}, []string{
			"the next boot starts kernel " + newer + ", without the GPUs: it has no module nvidia, and its headers are not installed: install its headers, or the package of its signed modules, then run " + apply,
		}},
		{"the same, and DKMS would build", loaded(newDriver, hasNone, has(newDriver)), byDKMS, []string{
			"its headers are not installed: install linux-headers-" + newer + ", then run " + apply,
		}},
		{"the same, and the distribution signs", loaded(newDriver, hasHeaders, has(newDriver)), bySigned, []string{
			"it has no module nvidia: install " + signed,
		}},
		{"it was booted", loaded("", hasNone, has(newDriver)), Choice{}, []string{
			"the next boot starts kernel " + newer + ", without the GPUs",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := facts.Facts{Live: true}
			f.Kernel.Running = running
			f.Kernel.Installed = []string{running}

			got := ModuleProblems(f, tt.modules, tt.choice)

			must.That(t, len(got) == len(tt.want), "%q, want %d sentences", got, len(tt.want))
			for i, want := range tt.want {
				check.Has(t, got[i], want, "it says")
			}
		})
	}
}
