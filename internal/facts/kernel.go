// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
		// A removed kernel often leaves its folder with a DKMS module in it: no modules.dep, no
		// kernel/.
		if l.has(dir+"/"+name+"/modules.dep") || l.has(dir+"/"+name+"/kernel") {
			k.Installed = append(k.Installed, name)
		}
	}
	slices.SortFunc(k.Installed, func(a, b string) int { return newer(b, a) })
	return k
}

// newer compares two kernel releases as rpm does: above 0 if a is newer. A pre-release (-rc3) comes
// before its release, and a number before letters means a later build: 5.14.0-503.11.1.el9 is newer
// than 5.14.0-503.el9.
func newer(a, b string) int {
	one := strings.NewReplacer("-rc", "~rc", "-", ".") // without a release of rpm's, which is compared apart
	return rpmversion.NewVersion(one.Replace(a)).Compare(rpmversion.NewVersion(one.Replace(b)))
}

// Signed modules of Ubuntu's archive are packages named linux-modules-nvidia-BRANCH-…-KERNEL, one
// for each kernel.
// Source: https://documentation.ubuntu.com/server/how-to/graphics/install-nvidia-drivers/
const signedModules = "linux-modules-nvidia-"

// signed asks apt which of them it knows, where a target kernel has no module of the branch yet: a
// converged machine does not ask.
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
		return k.Nvidia == nil || !strings.HasPrefix(k.Nvidia.Version, branch+".") || k.Nvidia.Shared()
	})
	if !lacks {
		return nil
	}
	// apt lists the names that sources have, without dpkg's list of installed packages, and writes
	// no cache. Reading apt's lists is the slow part, so it is done once for all names.
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

// arch returns the architecture of the machine's files in Go's words, "" if no file says it. The
// root folder may be another machine's than the one this runs on.
func (l *look) arch() string {
	// The dynamic loader's path is fixed by each architecture's ABI, so to see it there is enough.
	// Hosts set up for building or running foreign programs have more than one of them, and then
	// none of them decides.
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
	// dpkg itself is always of the native architecture; dnf writes the base one down only where it
	// is not the kernel's.
	if l.has("/var/lib/dpkg/status") {
		if a := l.dpkgEntry("dpkg")["Architecture"]; a != "" {
			return a
		}
	}
	return map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[strings.TrimSpace(string(l.read("/etc/dnf/vars/basearch")))]
}

// asked is what a cloud answered in this run, or why it did not. Neither is asked again before each
// stage: what they say holds for the machine's life, and a service that does not answer would cost
// each stage half a minute.
type asked struct {
	instance   *instance.Instance
	noInstance *trouble.Error
	cluster    *instance.Cluster
	noCluster  *trouble.Error
	ref        instance.ClusterRef // the cluster that was asked about
}

// askCloud asks the cloud, once a run, what it was asked for.
func (c *Cache) askCloud(ctx context.Context, l *look, f *Facts, needs Needs) {
	if ref := needs.Cluster; ref != nil && (f.Cloud.Name != "aws" || f.Cloud.Managed != "") {
		needs.Cluster = nil // in no cluster of EKS, or its own scripts know which one
	} else if ref != nil && f.Live {
		if f.Instance, f.Cluster = instance.Kept(l.v, f.Cloud, *ref); f.Cluster != nil {
			return
		}
	}
	if needs.Cluster == nil || !f.Live {
		return
	}
	a := &c.asked
	if a.instance == nil && a.noInstance == nil {
		var err error
		a.instance, err = instance.Ask(ctx, l.v, f.Cloud)
		a.noInstance = l.unanswered("ask", "EC2's metadata service", err)
	}
	f.Instance, f.NoInstance = a.instance, a.noInstance
	if f.Instance == nil {
		return
	}
	if same := a.ref.Name == needs.Cluster.Name && a.ref.Region == needs.Cluster.Region; !same || (a.cluster == nil && a.noCluster == nil) {
		cluster, err := instance.AskCluster(ctx, l.v, f.Instance, *needs.Cluster)
		a.ref, a.cluster, a.noCluster = *needs.Cluster, cluster, l.unanswered("ask for", "the cluster", err)
	}
	f.Cluster, f.NoCluster = a.cluster, a.noCluster
}

// unanswered separates a cloud that does not answer, which is a fact, from an error on this
// machine.
func (l *look) unanswered(verb, object string, err error) *trouble.Error {
	refused, later := (*trouble.Error)(nil), host.Later{}
	switch {
	case err == nil || errors.As(err, &later):
	case errors.As(err, &refused):
		return refused
	default:
		l.fail(verb, object, err)
	}
	return nil
}
