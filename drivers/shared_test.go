// SPDX-License-Identifier: Apache-2.0

package drivers

import (
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
)

// TestShared: modules that were built once are taken where each kernel has some that fit. What does
// not fit is named, and the next way is taken: DKMS here. A machine that runs on them stays on
// them.
func TestShared(t *testing.T) {
	const k, newer, notAsked = "6.1.0-28-amd64", "6.1.0-31-amd64", "the mirror is asked for no more"
	ours := modinfo.Key{Name: "the site", Serial: "1", ID: "aa"}
	of := func(kernel, version, flavour string) hardware.SharedModules {
		return hardware.SharedModules{Package: packages.SharedPackage(flavour, kernel), Kernel: kernel, Version: version, Flavour: flavour, Signer: ours}
	}
	both := []hardware.SharedModules{of(k, "580.95.05", "open"), of(newer, "580.95.05", "open")}
	stale := []hardware.SharedModules{of(k, "580.65.06", "open"), of(newer, "580.95.05", "open")}
	odd := slices.Clone(both)
	odd[0].Problem = "they were built for another build of the kernel"
	failed := of(newer, "580.95.05", "open")
	failed.Failure = "nv.c:3: error: no follow_pfn"
	otherFailed := failed
	otherFailed.Version = "590.48.01"
	failures := []hardware.SharedModules{both[0], failed}
	twoDrivers := func(l []hardware.SharedModules) []hardware.SharedModules {
		return append(slices.Clone(l),
			of(k, "570.211.01", "open"), of(newer, "590.48.01", "open"),
			of(k, "580.65.06", "proprietary"), of(newer, "580.95.05", "proprietary"))
	}
	on := map[string]hardware.Module{k: {Version: "580.95.05", Flavour: "open", Shared: true}}
	dkms := map[string]hardware.Module{k: {Version: "580.95.05", Flavour: "open", DKMS: true}, newer: {Version: "580.95.05", Flavour: "open", DKMS: true}}
	for _, x := range []struct {
		name, build string
		list        []hardware.SharedModules
		disk        map[string]hardware.Module
		trust       facts.Trust
		shared      bool
		without     []string
		says        string // a warning, or the refusal
	}{
		{"both", "auto", both, nil, facts.Trust{}, true, nil, ""},
		{"both, demanded", "shared", both, nil, facts.Trust{}, true, nil, ""},
		{"no mirror", "auto", nil, nil, facts.Trust{}, false, nil, ""},
		{"no folder to list, demanded", "shared", nil, nil, facts.Trust{}, true, nil, ""},
		{"DKMS demanded", "dkms", both, nil, facts.Trust{}, false, nil, ""},
		{"a mirror with none", "shared", []hardware.SharedModules{}, nil, facts.Trust{}, false, nil, "cannot take shared kernel modules for kernel " + newer + ": the mirror has none"},
		{"DKMS has built some", "shared", []hardware.SharedModules{}, dkms, facts.Trust{}, false, nil, "the mirror has none"},
		{"one kernel", "auto", both[:1], nil, facts.Trust{}, false, nil, "no shared kernel modules for kernel " + newer + ": the mirror has none; DKMS builds them here"},
		{"of an older driver", "auto", stale, nil, facts.Trust{}, false, nil, "gpuadm-modules-open-" + k + " is of driver 580.65.06, open, and 580.95.05, open, is asked for"},
		{"of the other flavour", "auto", []hardware.SharedModules{of(k, "580.95.05", "proprietary"), both[1]}, nil, facts.Trust{}, false, nil, "is of driver 580.95.05, proprietary"},
		{"for another build of the kernel", "auto", odd, nil, facts.Trust{}, false, nil, "cannot use gpuadm-modules-open-" + k + ": they were built for another build"},
		{"signed by another key", "auto", both, nil, facts.Trust{SecureBoot: "on"}, false, nil, "it is signed by the site (serial 1), which the kernel does not trust"},
		{"for another build of the kernel, beside other drivers", "auto", twoDrivers(odd), nil, facts.Trust{}, false, nil, "cannot use gpuadm-modules-open-" + k + ": they were built for another build"},
		{"one did not build", "auto", failures, nil, facts.Trust{}, false, nil, "for kernel " + newer + ": driver 580.95.05 did not build for it where the mirror was written: nv.c:3: error: no follow_pfn"},
		{"one did not build, demanded", "shared", failures, nil, facts.Trust{}, false, nil, "driver 580.95.05 did not build for it where the mirror was written"},
		{"another driver did not build", "auto", []hardware.SharedModules{both[0], otherFailed}, nil, facts.Trust{}, false, nil, "for kernel " + newer + ": the mirror has none"},
		{"signed by another key, beside other drivers", "shared", twoDrivers(both), nil, facts.Trust{SecureBoot: "on"}, false, nil, "it is signed by the site (serial 1), which the kernel does not trust"},
		{"other drivers alone", "auto", twoDrivers(nil), nil, facts.Trust{}, false, nil, "is of driver 590.48.01, open, and 580.95.05, open, is asked for"},
		{"beside other drivers", "shared", twoDrivers(both), nil, facts.Trust{}, true, nil, ""},
		{"signed by an enrolled key", "auto", both, nil, facts.Trust{SecureBoot: "on", Enrolled: []modinfo.Key{ours}}, true, nil, ""},
		{"a kernel that has none comes", "auto", []hardware.SharedModules{}, on, facts.Trust{}, true, []string{newer}, "for kernel " + newer + ": the mirror has none; gpuadm installs none for it"},
		{"the same, demanded", "shared", []hardware.SharedModules{}, on, facts.Trust{}, false, nil, "mirror --for ID --modules " + newer},
		{"the folder is gone", "auto", nil, on, facts.Trust{}, true, []string{newer}, "the mirror has none"},
		{notAsked, "auto", nil, on, facts.Trust{}, false, nil, ""},
		{"a kernel that has some comes", "auto", both[1:], on, facts.Trust{}, true, nil, ""},
	} {
		m := machine("debian", "12", "amd64", "2331")
		m.Kernels, m.Running, m.Shared, m.OnDisk, m.Trust = []string{newer, k}, k, x.list, x.disk, x.trust
		d := with(driver("580.95.05"), "build", x.build)
		if x.name != notAsked {
			d.Repo.URL = "file:///srv/mirror"
		}
		ch, err := Choose(Load(), m, d)
		if tr := (*trouble.Error)(nil); errors.As(err, &tr) {
			text := strings.Join(slices.Concat([]string{tr.What}, tr.Because, tr.Try), "\n")
			check.That(t, x.build == "shared" && x.says != "" && strings.Contains(text, x.says), "%s: %s", x.name, text)
			continue
		}
		message := strings.Join(ch.Warnings, "\n")
		check.That(t, err == nil && ch.Shared == x.shared && slices.Equal(ch.Skipped, x.without) && strings.Contains(message, x.says), "%s: shared %t, without %v\n%s", x.name, ch.Shared, ch.Skipped, message)
		want := []string{"nvidia-kernel-open-dkms"}
		if x.shared {
			want = []string{packages.SharedPackage("open", newer), packages.SharedPackage("open", k)}[len(x.without):]
		}
		tools := len(names(ch, "dkms")) + len(names(ch, "headers")) + len(names(ch, "compiler"))
		check.That(t, slices.Equal(names(ch, "module"), want) && (tools == 0) == x.shared, "%s: %v, and %d tools", x.name, names(ch, "module"), tools)
		side, _ := ch.KernelSide(spec.Driver{}, facts.Facts{Live: true, Kernel: facts.Kernel{Running: k, Installed: []string{newer, k}}})
		check.That(t, (side.Build == "shared") == x.shared, "%s: built %s", x.name, side.Build)
	}
	m := machine("debian", "12", "amd64", "2331")
	m.Kernels, m.Shared = []string{newer, k}, both
	ch := choose(t, m, driver("580"))
	check.That(t, ch.Shared && names(ch, "module")[0] == packages.SharedPackage("open", newer), "of a branch: %+v", ch)
	const before = "6.1.0-25-amd64" // its modules stay, or get the new version; no kernel is refused for it
	for version, of := range map[string][]hardware.SharedModules{"580.95.05": both, "580.65.06": append([]hardware.SharedModules{of(before, "580.95.05", "open")}, both...), "570.1": both} {
		m.OnDisk, m.Shared, m.Running, m.Fallback = map[string]hardware.Module{before: {Version: version, Flavour: "open", Shared: true}}, of, k, before
		check.That(t, slices.Contains(names(choose(t, m, driver("580.95.05")), "module"), packages.SharedPackage("open", before)) == (version != "570.1"), "the kernel that ran before has %s", version)
	}
	gds := driver("580.95.05")
	gds.GDS = true // DKMS builds nvidia-fs, and NVIDIA's installer builds its own
	for _, d := range []spec.Driver{gds, with(driver("580.95.05"), "source", "runfile")} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Kernels, m.Shared = []string{newer, k}, both
		check.That(t, !choose(t, m, d).Shared, "shared, with gds %t from %q", d.GDS, d.Source)
	}
}
