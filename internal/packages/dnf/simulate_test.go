// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/alloc"
)

func TestParseTable(t *testing.T) {
	const out = `Last metadata expiration check: 0:02:44 ago on Sat Nov 21 12:46:45 2026.
Dependencies resolved.
================================================================================
 Package                          Arch      Version              Repo      Size
================================================================================
Installing:
 nvlsm                            x86_64    2025.06.11-1         cuda     7.6 k
 kernel-devel-matched-with-a-name-longer-than-its-column
                                  x86_64    5.14.0-427.el9       baseos    21 M
     replacing  kernel-old.x86_64 5.14.0-1.el9
Removing:
 nvidia-driver-cuda               x86_64    3:580.65.06-1.el9    @cuda    168  
Downgrading:
 libnvidia-container1             x86_64    1.18.0-1             tk       7.9 k
Installing dependencies:
 libnvidia-cfg                    x86_64    3:580.65.06-1.el9    cuda     8.1 k
Removing dependent packages:
 nvidia-persistenced              x86_64    3:580.65.06-1.el9    @cuda    1.6 M
Enabling module streams:
 nvidia-driver                              580-open                           

Transaction Summary
================================================================================
Install    1 Package
`
	want := []move{
		{rpmPackage{"nvlsm", "2025.06.11-1", "x86_64"}, false},
		{rpmPackage{"kernel-devel-matched-with-a-name-longer-than-its-column", "5.14.0-427.el9", "x86_64"}, false},
		{rpmPackage{"kernel-old", "5.14.0-1.el9", "x86_64"}, true},
		{rpmPackage{"nvidia-driver-cuda", "3:580.65.06-1.el9", "x86_64"}, true},
		{rpmPackage{"libnvidia-container1", "1.18.0-1", "x86_64"}, false},
		{rpmPackage{"libnvidia-cfg", "3:580.65.06-1.el9", "x86_64"}, false},
		{rpmPackage{"nvidia-persistenced", "3:580.65.06-1.el9", "x86_64"}, true},
	}
	if got := parseTable(out); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := parseTable("Dependencies resolved.\nNothing to do.\nComplete!\n"); got != nil {
		t.Errorf("nothing to do is %v", got)
	}
}

// FuzzDnf gives dnf's output: the table of a simulation, what a query found, and what scripts said.
func FuzzDnf(f *testing.F) {
	f.Add("\n Package  Arch\n===\nInstalling:\n nvlsm  x86_64  2025.06.11-1  cuda  7.6 k\n     replacing  kernel-old.x86_64 5.14.0-1.el9\n\nTransaction Summary\n")
	f.Add("\n Package \n" + strings.Repeat("Removing:\n a b c d\n replacing a.b c.\n", manyTimes))
	f.Add("\n Package " + strings.Repeat(" a\n", manyTimes))
	f.Add("a\t0\t1\t1\tx86_64\tcuda\na\\t0\\t2\\t1\\tx86_64\\tgpuadm-cuda\n")
	f.Add(strings.Repeat("a\t\t\t\tnoarch\t\n", manyTimes))
	f.Add("warning: %post(a-1-1.x86_64) scriptlet failed, exit status 10\n")
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for _, m := range parseTable(out) {
				if m.name == "" && !strings.Contains(out, "replacing") || strings.ContainsAny(m.name, " \t\n") {
					t.Errorf("a move of %q", m.name)
				}
			}
			for name, offers := range parseOffers(out, []string{"a"}) {
				if name != "a" || len(offers) == 0 {
					t.Errorf("%q: %v", name, offers)
				}
			}
			_ = scriptsRan(out)
		})
	})
}

// TestTask: one command where it can be; else a script, with files first: dnf's shell takes them only there.
func TestTask(t *testing.T) {
	mixed := task{install: []string{"/f.rpm", "a-0:1-1"}, remove: []string{"b-0:1-1.noarch"}}
	if got := string(mixed.script()); mixed.args() != nil || got != "install /f.rpm a-0:1-1\nremove b-0:1-1.noarch\nrun\nexit\n" {
		t.Errorf("mixed: %v, %q", mixed.args(), got)
	}
	for _, one := range []task{{install: []string{"a"}}, {remove: []string{"a"}}} {
		if got := one.args(); len(got) != 2 || got[1] != "a" {
			t.Errorf("%+v: %v", one, got)
		}
	}
}
