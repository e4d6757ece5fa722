// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strings"
)

// arch returns the architecture of the machine's files in Go's words, "" if no file says it. The
// root folder may be another machine's than the one this runs on.
func (g *gathering) arch() string {
	// The dynamic loader's path is fixed by each architecture's ABI, so to see it there is enough.
	// Hosts set up for building or running foreign programs have more than one of them, and then
	// none of them decides.
	usr := ""
	lib, err := g.v.Readlink("/lib")
	if err == nil && path.Clean("/"+lib) == "/usr/lib" {
		usr = "/usr" // on most machines, and a path without links is found faster
	}

	var byLoader []string
	for _, loader := range [...]struct{ path, arch string }{
		{"/lib64/ld-linux-x86-64.so.2", "amd64"},
		{"/lib/ld-linux-aarch64.so.1", "arm64"},
		{"/lib/ld-musl-x86_64.so.1", "amd64"},
		{"/lib/ld-musl-aarch64.so.1", "arm64"},
	} {
		if g.exists(usr + loader.path) {
			byLoader = append(byLoader, loader.arch)
		}
	}

	if len(byLoader) == 1 {
		return byLoader[0]
	}

	// dpkg itself is always of the native architecture; dnf writes the base one down only where it
	// is not the kernel's.
	if g.exists("/var/lib/dpkg/status") {
		if arch := g.dpkgEntry("dpkg")["Architecture"]; arch != "" {
			return arch
		}
	}

	switch strings.TrimSpace(string(g.read("/etc/dnf/vars/basearch"))) {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}

	return ""
}
