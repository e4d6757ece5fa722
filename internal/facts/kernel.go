// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"context"
	"debug/elf"
	"path"
	"slices"
	"strings"

	rpmversion "github.com/knqyf263/go-rpm-version"
)

// kernel returns the running kernel, and the installed ones newest first.
func (l *look) kernel() Kernel {
	k := Kernel{Installed: []string{}}
	if l.v.Live() {
		k.Running = l.attr("/proc/sys/kernel/osrelease")
	}
	// On merged systems both are one folder.
	dir := l.first("/lib/modules", "/usr/lib/modules")
	if dir == "" {
		return k
	}
	for _, name := range l.names(dir) {
		// A removed kernel often leaves its folder with a DKMS module in it: no modules.dep, no kernel/.
		if l.has(dir+"/"+name+"/modules.dep") || l.has(dir+"/"+name+"/kernel") {
			k.Installed = append(k.Installed, name)
		}
	}
	slices.SortFunc(k.Installed, func(a, b string) int { return newer(b, a) })
	return k
}

// newer compares two kernel releases as rpm does: above 0 if a is newer. A pre-release (-rc3) comes before its release, and a number before
// letters means a later build: 5.14.0-503.11.1.el9 is newer than 5.14.0-503.el9.
func newer(a, b string) int {
	one := strings.NewReplacer("-rc", "~rc", "-", ".") // without a release of rpm's, which is compared apart
	return rpmversion.NewVersion(one.Replace(a)).Compare(rpmversion.NewVersion(one.Replace(b)))
}

// Signed modules of Ubuntu's archive are packages named linux-modules-nvidia-BRANCH-…-KERNEL, one for each kernel.
// Source: https://documentation.ubuntu.com/server/how-to/graphics/install-nvidia-drivers/
const signedModules = "linux-modules-nvidia-"

// signed asks apt which of them it knows, where a target kernel has no module of the branch yet: a converged machine does
// not ask.
func (l *look) signed(ctx context.Context, f Facts, branch string) []string {
	if !l.v.Runs() || f.OS.ID != "ubuntu" && !slices.Contains(f.OS.Like, "ubuntu") {
		return nil
	}
	targets := f.Kernel.Targets(f.Live)
	lacks := slices.ContainsFunc(targets, func(kernel string) bool {
		if f.Modules == nil {
			return true
		}
		k, _ := f.Modules.Of(kernel)
		return k.Nvidia == nil || !strings.HasPrefix(k.Nvidia.Version, branch+".")
	})
	if !lacks {
		return nil
	}
	// By name, of what sources have: without dpkg's list of what is or was installed, and writing no cache. Reading apt's lists is
	// what takes the time, so it is done once for all names.
	out, err := l.v.Ask(ctx, "apt-cache", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "Dir::State::status=/dev/null",
		"search", "--names-only", "^"+signedModules)
	if err != nil || len(out) == 0 {
		return nil // no lists, or not of the component that has them: then it is unknown
	}
	found := []string{}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.ContainsFunc(targets, func(kernel string) bool { return strings.HasSuffix(name, "-"+kernel) }) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

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
