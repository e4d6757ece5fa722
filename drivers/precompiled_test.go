// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"
	"testing"
)

// Signed modules are taken where each target kernel has them, DKMS's elsewhere, and it is said why; a machine that stands
// stays with what it has.
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
		{"nobody knows", "auto", nil, nil, true, ""},
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
		ch, err := Choose(load(t), m, with(with(driver("580"), "source", "distro"), "build", x.build))
		said := strings.Join(ch.Warnings, "\n")
		if err != nil {
			said = err.Error()
		}
		if ch.Precompiled != x.signed || !strings.Contains(said, x.says) || (err != nil) != strings.HasPrefix(x.says, "cannot") {
			t.Errorf("%s: precompiled %t, %v\n%s", x.name, ch.Precompiled, err, said)
		}
		if err == nil && x.signed != slices.Contains(names(ch, "module"), signed(k)) {
			t.Errorf("%s: %v", x.name, names(ch, "module"))
		}
		if err == nil && !x.signed && len(names(ch, "headers")) != 2 {
			t.Errorf("%s: DKMS has no headers: %v", x.name, ch.Members)
		}
	}
}
