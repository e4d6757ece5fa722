// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/must"
)

// A machine's own catalog comes before the built-in one: a set with another name for one package, and a new branch.
func TestOverlay(t *testing.T) {
	c, err := Load().overlaid([]byte(`
branches = [ { branch = 700, designation = "PB", end = "2030", origin = "me", checked = "memory", confidence = "low", date = "2026-11-22" } ]

[[sets]]
sources = ["nvidia"]
distros = ["ubuntu2404"]
first = 700
last = 700
members = [ { role = "module", name = "nvidia-modules-open", when = ["open"] } ]
`))
	must.OK(t, err)
	ch, err := Choose(c, machine("ubuntu", "24.04", "amd64", "2331"), driver("700"))
	if err != nil || !slices.Contains(names(ch, "module"), "nvidia-modules-open") || len(names(ch, "library")) > 0 || strings.Contains(strings.Join(ch.Warnings, " "), "not known") {
		t.Errorf("%+v, %v", ch, err)
	}
	ch, err = Choose(c, machine("ubuntu", "24.04", "amd64", "2331"), driver("580.95.05"))
	if err != nil || !slices.Contains(names(ch, "module"), "nvidia-dkms-580-open") {
		t.Errorf("what the overlay does not say: %+v, %v", ch, err)
	}
	for text, want := range map[string]string{
		"[[sets]]\nsources = [\"nvidia\"]\nnames = []\n": "line 3, column 1: unknown key",
		"[[sets]]\nfirst = \"580\"\n":                    "line 2, column",
		"[[sets\n":                                       "line 1, column",
	} {
		if _, err := Load().overlaid([]byte(text)); err == nil || !strings.Contains(err.Error(), "cannot read /etc/gpuadm/catalog.toml: "+want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	s := spec.Spec{Driver: driver("580.95.05"), Sections: []string{"driver"}}
	if n := Needs(s); !slices.Contains(n.Files, overlay) {
		t.Errorf("needs %+v", n)
	}
	f := facts.Facts{Arch: "amd64", OS: facts.OS{ID: "ubuntu", Version: "24.04"}, GPUs: []facts.PCI{{Address: "a", Vendor: "10de", Device: "2331", Class: "030200"}}, Files: map[string][]byte{overlay: []byte("sets = 3\n")}}
	if _, _, err := New().Choose(s, f); err == nil || !strings.Contains(err.Error(), "line 1, column") {
		t.Errorf("a broken overlay: %v", err)
	}
}

// The spec adds packages to those of the catalog and leaves others out; a name that is not asked for anyway is refused.
func TestPackagesAndWithout(t *testing.T) {
	d := driver("580.95.05")
	d.Packages, d.Without = []string{"libnvidia-gl-580", "nvidia-modprobe"}, []string{"nvidia-utils-580", "libnvidia-encode-580"}
	ch := choose(t, machine("ubuntu", "24.04", "amd64", "2331"), d)
	if !slices.Contains(ch.Members, Member{Name: "libnvidia-gl-580", Role: "spec"}) || len(names(ch, "utils")) > 0 || slices.Contains(ch.Extras, "libnvidia-encode-580") || !slices.Contains(ch.Extras, "nvidia-modprobe") {
		t.Errorf("%+v", ch)
	}
	d.Without = []string{"nvidia-utils-590"}
	if _, err := Choose(Load(), machine("ubuntu", "24.04", "amd64", "2331"), d); err == nil || !strings.HasPrefix(err.Error(), "cannot leave out package nvidia-utils-590: ") {
		t.Errorf("%v", err)
	}
}
