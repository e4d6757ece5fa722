// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
)

// A component that another vendor's archive has says nothing about the distribution's.
func TestComponentOfAnotherArchive(t *testing.T) {
	files := map[string][]byte{
		"/etc/apt/sources.list.d/debian.sources":  []byte("Types: deb\nURIs: http://debian.example/debian\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"),
		"/etc/apt/sources.list.d/virtualbox.list": []byte("deb [arch=amd64 signed-by=/usr/share/keyrings/oracle-virtualbox-2016.gpg] https://download.virtualbox.org/virtualbox/debian bookworm contrib\n"),
	}
	if lacks := Lacking(System{ID: "debian", Version: "12", Arch: "amd64", Files: files}, []string{"contrib"}); len(lacks) != 1 {
		t.Errorf("contrib of Debian's archive is said to be enabled: %+v", lacks)
	}
}
