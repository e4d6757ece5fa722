// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// gpuadm chooses signed modules where each target kernel has them, and DKMS's elsewhere, and gives the reason. A converged
// machine keeps the modules that it has.
func TestPrecompiledOrDKMS(t *testing.T) {
	const k, other = "6.8.0-41-generic", "6.8.0-45-generic"
	signed := func(kernel string) string { return "linux-modules-nvidia-580-server-open-" + kernel }
	for _, x := range []struct {
		name   string
		build  string
		have   []string
		disk   map[string]Module
		signed bool
		says   string // a warning, or the refusal
	}{
		{"not known", "auto", nil, nil, true, ""},
		{"both kernels", "auto", []string{signed(k), signed(other)}, nil, true, ""},
		{"one kernel only", "auto", []string{signed(k)}, nil, false, "has no signed modules for kernel " + other + " (" + signed(other) + "): DKMS builds them"},
		{"another branch's", "auto", []string{strings.Replace(signed(k), "580", "570", 1), signed(other)}, nil, false, "kernel " + k},
		{"proprietary ones", "auto", []string{strings.Replace(signed(k), "-open", "", 1), signed(other)}, nil, false, "kernel " + k},
		{"none", "auto", []string{}, nil, false, "DKMS builds them"},
		{"demanded", "precompiled", []string{signed(k)}, nil, false, "cannot take precompiled kernel modules for kernel " + other + ": Ubuntu's archive for ubuntu2404 has no " + signed(other)},
		{"demanded and there", "precompiled", []string{signed(k), signed(other)}, nil, true, ""},
		{"not wanted", "dkms", []string{signed(k), signed(other)}, nil, false, ""},
		{"built already", "auto", []string{signed(k), signed(other)}, map[string]Module{k: {"580.95.05", true}, other: {"580.95.05", true}}, false, "DKMS builds them"},
		{"signed already", "auto", []string{}, map[string]Module{k: {"580.95.05", false}, other: {"580.95.05", false}}, true, ""},
		{"of another branch", "auto", []string{signed(k), signed(other)}, map[string]Module{k: {"570.1", true}, other: {"570.1", true}}, true, ""},
	} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Kernels, m.Signed, m.OnDisk = []string{k, other}, x.have, x.disk
		ch, err := Choose(Load(), m, with(with(driver("580"), "source", "distro"), "build", x.build))
		message := strings.Join(ch.Warnings, "\n")
		if err != nil {
			message = err.Error()
		}
		if ch.Precompiled != x.signed || !strings.Contains(message, x.says) || (err != nil) != strings.HasPrefix(x.says, "cannot") {
			t.Errorf("%s: precompiled %t, %v\n%s", x.name, ch.Precompiled, err, message)
		}
		if err == nil && x.signed != slices.Contains(names(ch, "module"), signed(k)) {
			t.Errorf("%s: %v", x.name, names(ch, "module"))
		}
		if err == nil && !x.signed && len(names(ch, "headers")) != 2 {
			t.Errorf("%s: DKMS has no headers: %v", x.name, ch.Members)
		}
	}
}

// A machine with signed modules stays there when a kernel comes that has none: DKMS would build for every kernel, and
// depmod prefers what it builds. Nor is a machine begun with DKMS if its kernel would refuse that.
// RHEL's streams without a suffix have signed proprietary modules, one package for each kernel (test/listings: rhel9 580.178.04).
func TestPrecompiledStream(t *testing.T) {
	m := machine("rhel", "9.8", "amd64", "2331")
	m.Kernels = []string{"5.14.0-687.54.1.el9_8.x86_64"}
	ch := choose(t, m, with(driver("580.178.04"), "build", "precompiled"))
	if got := names(ch, "module"); ch.Stream != "580" || !slices.Equal(got, []string{"kmod-nvidia-580.178.04-5.14.0-687.54.1"}) || ch.Flavour != FlavourProprietary || len(names(ch, "dkms")) > 0 {
		t.Errorf("%v, %+v", got, ch)
	}
	if ch := choose(t, m, driver("580.178.04")); ch.Stream != "580-open" || ch.Precompiled {
		t.Errorf("unasked: %+v", ch)
	}
}

func TestSignedStay(t *testing.T) {
	const k, newer = "6.8.0-41-generic", "6.8.0-45-generic"
	signed := func(kernel string) string { return "linux-modules-nvidia-580-server-open-" + kernel }
	for _, x := range []struct {
		name    string
		running string
		disk    map[string]Module
		have    []string
		refuses bool
		stays   bool
	}{
		{"converged", k, map[string]Module{k: {"580.95.05", false}}, []string{}, false, true},
		{"converged, Secure Boot", k, map[string]Module{k: {"580.95.05", false}}, []string{}, true, true},
		{"another branch's that the archive follows", k, map[string]Module{k: {"570.1", false}}, []string{signed(k)}, false, true},
		{"another branch's that it does not follow", k, map[string]Module{k: {"570.1", false}}, []string{}, false, false},
		{"the newer one was built here", k, map[string]Module{k: {"580.95.05", false}, newer: {"580.95.05", true}}, []string{}, false, true},
		{"built here", k, map[string]Module{k: {"580.95.05", true}}, []string{signed(k)}, false, false},
		{"fresh", k, nil, []string{signed(k)}, false, false},
		{"fresh, Secure Boot", k, nil, []string{signed(k)}, true, true},
		{"the newer one runs", newer, map[string]Module{k: {"580.95.05", false}}, []string{}, false, false},
		{"an image", "", map[string]Module{k: {"580.95.05", false}}, []string{}, false, false},
	} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Kernels, m.Running, m.OnDisk, m.Signed, m.RefusesBuilds = []string{newer, k}, x.running, x.disk, x.have, x.refuses
		ch, err := Choose(Load(), m, with(with(driver("580"), "source", "distro"), "build", "auto"))
		if err != nil || ch.Precompiled != x.stays {
			t.Errorf("%s: precompiled %t, %v", x.name, ch.Precompiled, err)
			continue
		}
		if !x.stays {
			if len(ch.Without) > 0 {
				t.Errorf("%s: without %v", x.name, ch.Without)
			}
			continue
		}
		message := strings.Join(ch.Warnings, "\n")
		if !slices.Equal(ch.Without, []string{newer}) || !strings.Contains(message, newer+" ("+signed(newer)+"): it is left without") || strings.Contains(message, "DKMS builds them") {
			t.Errorf("%s: without %v\n%s", x.name, ch.Without, message)
		}
		for _, member := range ch.Members {
			if member.PerKernel == newer || strings.HasPrefix(member.Name, "nvidia-dkms") || member.Role == "dkms" || member.Role == "headers" {
				t.Errorf("%s: %v", x.name, member)
			}
		}
		f := facts.Facts{Live: true, Kernel: facts.Kernel{Running: k, Installed: []string{newer, k}}}
		if side, _ := ch.KernelSide(spec.Driver{}, f); side.Build != "precompiled" || !slices.Equal(side.Kernels, []string{k}) {
			t.Errorf("%s: the modules are for %+v", x.name, side)
		}
	}
}

// Whether a build of this machine's own would load is read from what the kernel says and which keys are enrolled.
func TestRefusesBuilds(t *testing.T) {
	own := &facts.Key{Name: "DKMS module signing key", ID: "1"}
	for _, c := range []struct {
		name  string
		live  bool
		trust facts.Trust
		want  bool
	}{
		{"no Secure Boot", true, facts.Trust{SecureBoot: "off"}, false},
		{"Secure Boot", true, facts.Trust{SecureBoot: "on"}, true},
		{"a key that is not enrolled", true, facts.Trust{SecureBoot: "on", Build: own}, true},
		{"enrolled", true, facts.Trust{SecureBoot: "on", Build: own, Enrolled: []facts.Key{*own}}, false},
		{"an image", false, facts.Trust{SecureBoot: "on"}, false},
	} {
		f := facts.Facts{Live: c.live, Modules: &facts.Modules{Trust: c.trust}}
		if got := MachineOf(f, "").RefusesBuilds; got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
