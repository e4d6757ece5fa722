// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
)

func TestNextKernel(t *testing.T) {
	with := func(v, kernel string) *modinfo.Module {
		return &modinfo.Module{Version: v, Vermagic: kernel + " SMP"}
	}
	for _, c := range []struct {
		next facts.KernelModules
		says string
	}{
		{facts.KernelModules{Kernel: "6.9", Nvidia: with("580.1", "6.9")}, ""},
		{facts.KernelModules{Kernel: "6.9"}, "its headers are not installed"},
		{facts.KernelModules{Kernel: "6.9", Headers: true}, "no module nvidia is built for it"},
		{facts.KernelModules{Kernel: "6.9", Unlisted: []string{"/lib/modules/6.9/extra/nvidia.ko"}}, "run depmod 6.9"},
		{facts.KernelModules{Kernel: "6.9", Nvidia: with("570.1", "6.9")}, "its module nvidia is 570.1"},
		{facts.KernelModules{Kernel: "6.9", Nvidia: with("580.1", "6.8")}, "is built for 6.8"},
	} {
		got := NextKernel("580.1", facts.Modules{Kernels: []facts.KernelModules{c.next, {Kernel: "6.8", Nvidia: with("580.1", "6.8")}}}, Choice{})
		check.That(t, (got == "") == (c.says == "") && strings.Contains(got, c.says), "%+v: %q", c.next, got)
	}
}

// What is wrong with the modules is said in sentences without asking the driver: by what is loaded,
// what lies on disk, and which version the libraries have that programs load.
func TestModuleProblems(t *testing.T) {
	const running, newer = "6.8.0-88-generic", "6.8.0-90-generic"
	f := facts.Facts{Live: true}
	f.Kernel.Running, f.Kernel.Installed = running, []string{running}
	file := func(version string) *modinfo.Module {
		return &modinfo.Module{Path: "/lib/modules/" + running + "/updates/dkms/nvidia.ko", Version: version, Vermagic: running + " SMP"}
	}
	lib := func(version string) []facts.Library {
		return []facts.Library{{Name: "libnvidia-ml.so", Version: version, Path: "/usr/lib/libnvidia-ml.so." + version}}
	}
	on := func(version string) []facts.KernelModules {
		return []facts.KernelModules{{Kernel: running, Headers: true, Nvidia: file(version)}}
	}
	for _, x := range []struct {
		name string
		m    facts.Modules
		c    Choice
		want []string
	}{
		{"as it should be", facts.Modules{Version: "580.95.05", Libraries: lib("580.95.05"), Kernels: on("580.95.05")}, Choice{}, nil},
		{"libraries were upgraded alone", facts.Modules{Version: "570.172.08", Libraries: lib("580.95.05"), Kernels: on("570.172.08")}, Choice{}, []string{
			`the kernel module nvidia 570.172.08 is loaded, and /usr/lib/libnvidia-ml.so.580.95.05 is of 580.95.05: NVML says "Driver/library version mismatch" after a reboot too, since the module on disk is 570.172.08 as well`,
			"the next boot starts kernel " + running + ", without the GPUs: its module nvidia is 570.172.08",
		}},
		{"all was upgraded, and nothing reloaded", facts.Modules{Version: "570.172.08", Libraries: lib("580.95.05"), Kernels: on("580.95.05")}, Choice{}, []string{
			"\"Driver/library version mismatch\" until the module is reloaded or the machine rebooted", "570.172.08 is loaded, and 580.95.05 is on disk: reload it or reboot",
		}},
		{"nouveau", facts.Modules{Taken: []facts.Taken{{Address: "0000:17:00.0", Module: "nouveau"}}, Kernels: on("580.95.05")}, Choice{}, []string{"nouveau holds 0000:17:00.0"}},
		{"a kernel that has come since", facts.Modules{Version: "580.95.05", Libraries: lib("580.95.05"), Kernels: append([]facts.KernelModules{{Kernel: "6.8.0-90-generic"}}, on("580.95.05")...)}, Choice{}, []string{
			"the next boot starts kernel 6.8.0-90-generic, without the GPUs: it has no module nvidia, and its headers are not installed: install its headers, or the package of its signed modules, then run " + trouble.Command("apply"),
		}},
		{"the same, and DKMS would build", facts.Modules{Version: "580.95.05", Libraries: lib("580.95.05"), Kernels: append([]facts.KernelModules{{Kernel: newer}}, on("580.95.05")...)}, Choice{
			Members: []Member{{Name: "linux-headers-" + running, Role: "headers", PerKernel: running}, {Name: "linux-headers-" + newer, Role: "headers", PerKernel: newer}},
		}, []string{"its headers are not installed: install linux-headers-" + newer + ", then run " + trouble.Command("apply")}},
		{"the same, and the distribution signs", facts.Modules{Version: "580.95.05", Libraries: lib("580.95.05"), Kernels: append([]facts.KernelModules{{Kernel: newer, Headers: true}}, on("580.95.05")...)}, Choice{
			Precompiled: true, Members: []Member{{Name: "linux-modules-nvidia-580-open-" + newer, Role: "module", PerKernel: newer}},
		}, []string{"it has no module nvidia: install linux-modules-nvidia-580-open-" + newer}},
		{"it was booted", facts.Modules{Libraries: lib("580.95.05"), Kernels: append([]facts.KernelModules{{Kernel: newer}}, on("580.95.05")...)}, Choice{}, []string{
			"the next boot starts kernel " + newer + ", without the GPUs",
		}},
		{"nothing is installed yet", facts.Modules{Kernels: []facts.KernelModules{{Kernel: newer}}}, Choice{}, nil},
	} {
		got := ModuleProblems(f, x.m, x.c)
		for _, w := range x.want {
			check.That(t, slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, w) }), "%s: it does not say %q: %q", x.name, w, got)
		}
		check.That(t, len(got) == len(x.want), "%s: %q", x.name, got)
	}
}
