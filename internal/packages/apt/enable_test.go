// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
)

// A component that another vendor's archive has says nothing about the distribution's.
func TestComponentOfAnotherArchive(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{
		"/etc/apt/sources.list.d/debian.sources":  []byte("Types: deb\nURIs: http://debian.example/debian\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"),
		"/etc/apt/sources.list.d/virtualbox.list": []byte("deb [arch=amd64 signed-by=/usr/share/keyrings/oracle-virtualbox-2016.gpg] https://download.virtualbox.org/virtualbox/debian bookworm contrib\n"),
	}
	if lacks := Lacking(packages.System{ID: "debian", Version: "12", Arch: "amd64", Files: files}, []string{"contrib"}); len(lacks) != 1 {
		t.Errorf("contrib of Debian's archive is said to be enabled: %+v", lacks)
	}
}

// TestLackingComponents: both forms of apt's sources, and entries of others that are left alone.
func TestLackingComponents(t *testing.T) {
	t.Parallel()
	const deb822 = "Types: deb\nURIs: http://debian.example/debian\nSuites: trixie trixie-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\nTypes: deb\nURIs: https://apt.example/\nSuites: trixie\nComponents: main\nSigned-By: /usr/share/keyrings/example.gpg\n"
	for _, x := range []struct {
		what, file, data string
		needs            []string
		try, has, not    string
	}{
		{"one line", "/etc/apt/sources.list", "deb [arch=amd64,i386 trusted=yes] http://debian.example/debian bookworm main\n# deb x y contrib\n", []string{"contrib"}, "add contrib behind main in /etc/apt/sources.list, then apt-get update", "URIs: http://debian.example/debian\nSuites: bookworm\nComponents: contrib\narchitectures: amd64 i386\ntrusted: yes\n", "Components: main"},
		{"deb822", "/etc/apt/sources.list.d/debian.sources", deb822, []string{"contrib", "non-free"}, "add contrib non-free behind main in /etc/apt/sources.list.d/debian.sources", "Suites: trixie-updates\nComponents: contrib non-free\nsigned-by: /usr/share/keyrings/debian-archive-keyring.gpg\n", "apt.example"},
		{"all there", "/etc/apt/sources.list", "deb http://debian.example/debian bookworm main contrib\n", []string{"contrib"}, "", "", ""},
		{"another's alone", "/etc/apt/sources.list.d/x.sources", strings.SplitN(deb822, "\n\n", 2)[1], []string{"contrib"}, "add contrib behind main in apt's sources", "", "apt.example"},
	} {
		f := packages.System{ID: "debian", Arch: "amd64", Files: map[string][]byte{x.file: []byte(x.data)}}
		all := Lacking(f, x.needs)
		if len(all) == 0 {
			all = []packages.Lack{{}}
		}
		l := all[0]
		if !strings.HasPrefix(l.Try, x.try) || (l.Try == "") != (x.try == "") || !strings.Contains(string(l.Data), x.has) || x.not != "" && strings.Contains(string(l.Data), x.not) {
			t.Errorf("%s: %q\n%s", x.what, l.Try, l.Data)
		}
		if (l.Unavailable() == nil) != (x.has != "") && x.try != "" {
			t.Errorf("%s: %v", x.what, l.Unavailable())
		}
	}
}
