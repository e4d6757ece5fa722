// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
)

// headers verifies that the headers of kernels are available, before anything is written. It leaves the decision to
// Resolve once our repositories' lists are read; before that it goes by the lists that are there.
type headers struct {
	set   *Set
	repos []Repository
	of    map[string]string // kernel → the package of its headers
}

// Headers wants the headers of each kernel installed or available: of maps kernels to the packages of their headers.
func Headers(set *Set, repos []Repository, of map[string]string, why string) converge.Want {
	return things.Check("headers of the kernels", headers{set, repos, of}.look, why)
}

const noHeaders = "cannot build modules for kernel "

// WithoutHeaders is what to do about a kernel whose headers are not available. The kernel that runs is not to be removed.
// Source: proc(5), /proc/sys/kernel/osrelease.
func WithoutHeaders(v host.View, kernel string) string {
	running, _ := v.ReadFile("/proc/sys/kernel/osrelease")
	if v.Live() && strings.TrimSpace(string(running)) == kernel {
		return "install a kernel whose headers are available and reboot into it, or install the headers of " + kernel + ", which runs now, from another source"
	}
	return "remove kernel " + kernel + " if it is not meant to run, or install one whose headers are available"
}

// look reads two files per kernel where all headers are installed.
func (t headers) look(ctx context.Context, v host.View) (problem string, err error) {
	with := kmod.WithHeaders(v)
	missing := map[string]string{}
	for kernel, name := range t.of {
		if !slices.Contains(with, kernel) {
			missing[kernel] = name
		}
	}
	if len(missing) == 0 {
		return "", nil
	}
	all, err := t.set.Read(ctx, v)
	if err != nil {
		return "", err
	}
	maps.DeleteFunc(missing, func(_, name string) bool { return all[name].Installed() })
	if len(missing) == 0 || t.set.ready(ctx, v) == nil {
		return "", nil
	}
	m, err := t.set.packager(v)
	if err != nil {
		return "", err
	}
	for _, kernel := range slices.Sorted(maps.Keys(missing)) {
		if problem, err := t.judge(ctx, v, m, kernel, with); err != nil || problem != "" {
			return problem, err
		}
	}
	return "", nil
}

// judge says what the lists that are there say of one kernel's headers. They decide if they know the kernel itself, or are
// younger than it; and if what they do not know of yet cannot have headers.
func (t headers) judge(ctx context.Context, v host.View, m Packager, kernel string, with []string) (problem string, err error) {
	name := t.of[kernel]
	images := []string{"linux-image-" + kernel, "kernel-core-" + kernel} // Debian's and Ubuntu's, and those of Fedora and RHEL
	offers, read, err := m.Known(ctx, v, append([]string{name}, images...), t.set.reads)
	if err != nil {
		return "", err
	}
	if len(offers[name]) > 0 {
		return "", nil
	}
	knows := slices.ContainsFunc(images, func(i string) bool { return len(offers[i]) > 0 })
	if !read.IsZero() {
		for _, r := range t.repos {
			if r.Mixed {
				return "", host.Later{Until: fmt.Sprintf("once the lists of %s are read: no source that is known now has %s", r.URL, name)}
			}
		}
	}
	if read.IsZero() || !knows && !read.After(cameWhen(v, kernel)) {
		return "", host.Later{Until: "once the package lists are read"}
	}
	said := []string{fmt.Sprintf("%s%s: no source has its headers, %s", noHeaders, kernel, name)}
	for _, r := range t.repos {
		said = append(said, fmt.Sprintf("%s, which would be added, has drivers and no kernel headers", r.URL))
	}
	if len(with) > 0 {
		said = append(said, "these kernels have headers: "+strings.Join(with, ", "))
	}
	return strings.Join(said, "\n") + things.OrTry(WithoutHeaders(v, kernel)), nil
}

// cameWhen says when a kernel was installed. modules.builtin is in its package, and depmod leaves it alone.
func cameWhen(v host.View, kernel string) time.Time {
	for _, name := range []string{"/modules.builtin", ""} {
		if i, err := v.Stat("/lib/modules/" + kernel + name); err == nil {
			return i.Ctime
		}
	}
	return time.Time{}
}
