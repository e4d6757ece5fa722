// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"debug/elf"
	"path"
	"strings"
)

// arch returns the architecture of the machine's files in Go's words, "" if no file says it. The root folder may
// be another machine's than the one this runs on.
func (l *look) arch() string {
	// The dynamic loader's path is fixed by each architecture's ABI, so to see it there is enough. Hosts set up for
	// building or running foreign programs have more than one of them, and then none of them decides.
	usr := ""
	if to, err := l.v.Readlink("/lib"); err == nil && path.Clean("/"+to) == "/usr/lib" {
		usr = "/usr" // on most machines, and a path without links is found faster
	}
	var byLoader []string
	for _, loader := range [...][2]string{
		{"/lib64/ld-linux-x86-64.so.2", "amd64"},
		{"/lib/ld-linux-aarch64.so.1", "arm64"},
		{"/lib/ld-musl-x86_64.so.1", "amd64"},
		{"/lib/ld-musl-aarch64.so.1", "arm64"},
	} {
		if l.has(usr + loader[0]) {
			byLoader = append(byLoader, loader[1])
		}
	}
	if len(byLoader) == 1 {
		return byLoader[0]
	}
	for _, program := range [...]string{"/usr/bin/env", "/bin/sh", "/usr/lib/systemd/systemd"} {
		b, err := l.v.ReadFile(program)
		if err != nil {
			continue // one of the others will do
		}
		if a := elfArch(b); a != "" {
			return a
		}
	}
	// dpkg itself is always of the native architecture; dnf writes the base one down only where it is not the kernel's.
	if l.has("/var/lib/dpkg/status") {
		if a := l.dpkgEntry("dpkg")["Architecture"]; a != "" {
			return a
		}
	}
	return goArch(strings.TrimSpace(string(l.read("/etc/dnf/vars/basearch"))))
}

// elfArch returns the architecture a program is made for, "" if gpuadm does not support it.
func elfArch(b []byte) string {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return ""
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64"
	case elf.EM_AARCH64:
		return "arm64"
	case elf.EM_RISCV:
		return "riscv64"
	case elf.EM_PPC64:
		return "ppc64le"
	case elf.EM_S390:
		return "s390x"
	}
	return ""
}

func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}
