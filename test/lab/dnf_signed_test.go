// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// rpms makes packages without files in one repository, which is off until an operator enables it.
func (d *dnfDriver) rpms(repository, version, release string, names ...string) {
	d.t.Helper()
	text := fmt.Sprintf("Name: lab\nVersion: %s\nRelease: %s\nSummary: names\nLicense: none\nAutoReqProv: no\n%%description\nnames\n", version, release)
	for _, name := range names {
		text += strings.ReplaceAll("%package -n NAME\nSummary: NAME\n%description -n NAME\nNAME\n%files -n NAME\n", "NAME", name)
	}
	d.Put("/root/lab.spec", text, 0o644)
	d.Must("rpmbuild", "--quiet", "-bb", "--define", "_rpmdir /srv/"+repository, "/root/lab.spec")
	d.Must("createrepo_c", "-q", "/srv/"+repository)
	d.Put("/etc/yum.repos.d/"+repository+".repo", fmt.Sprintf("[%[1]s]\nname=%[1]s\nbaseurl=file:///srv/%[1]s\nenabled=0\ngpgcheck=0\n", repository), 0o644)
}

// TestLabDnfSignedModules: modules that Red Hat and AlmaLinux have signed, by the real dnf, from
// repositories with the names and versions of test/listings (rhel10 redhat 580.105.08, almalinux10
// 615.71.09) and of https://github.com/mizdebsk/radii, at any release: a repository that is off is
// named with the command that enables it; install, upgrade, a kernel without a module, undo.
func TestLabDnfSignedModules(t *testing.T) {
	t.Parallel()
	const kernel, next, supplementary = "6.12.0-124.20.1", "6.12.0-211.51.1", "rhel-10-for-x86_64-supplementary-rpms"
	user := []string{"nvidia-driver", "nvidia-driver-cuda", "nvidia-driver-libs", "nvidia-persistenced"}
	for _, x := range []struct {
		id, version   string
		old, new      string
		repositories  []string // of the modules, of the rest
		module, fresh string
	}{
		{"rhel", "10.1", "580.105.08", "580.178.04", []string{"rhel-10-for-x86_64-extensions-rpms", supplementary}, "kmod-nvidia-open-580.105.08-" + kernel, "kmod-nvidia-open-580.178.04-" + kernel},
		{"almalinux", "10.1", "595.71.05", "615.71.09", []string{"almalinux-nvidia", "almalinux-nvidia"}, "nvidia-open-kmod", "nvidia-open-kmod"},
	} {
		t.Run(x.id, func(t *testing.T) {
			if x.id != "rhel" {
				lab.Nightly(t)
			}
			d := newDnfDriver(t)
			d.Put("/etc/os-release", fmt.Sprintf("ID=%q\nID_LIKE=\"fedora\"\nVERSION_ID=%q\nPLATFORM_ID=\"platform:el10\"\nPRETTY_NAME=\"%s %s\"\n", x.id, x.version, x.id, x.version), 0o644)
			d.Put("/lib/modules/"+kernel+".el10_1.x86_64/modules.dep", "", 0o644)
			d.rpms(x.repositories[1], x.old, "7.el10_1.2", user...)
			d.rpms(x.repositories[1], x.new, "3.el10_2", user...)
			d.rpms(x.repositories[0], x.old, "3.el10_1", x.module)
			d.rpms(x.repositories[0], x.new, "3.el10_2", x.fresh)
			wants := func(version string) {
				d.Put("/etc/gpuadm/node.toml", "format = 1\n[driver]\nsource = \"distro\"\nversion = \""+version+"\"\n", 0o644)
			}
			state := d.RpmState()
			wants(x.old)
			d.apply(1, x.repositories[0])
			for _, repository := range x.repositories {
				d.Must("dnf", "config-manager", "--set-enabled", repository)
			}
			has := func(version, module string) {
				t.Helper()
				is := d.RpmState()
				for _, name := range append([]string{module}, user[1:]...) {
					check.That(t, strings.HasPrefix(is[name], version+"-"), "%s is %q, want %s", name, is[name], version)
				}
			}

			d.apply(0)
			has(x.old, x.module)
			check.Has(t, d.apply(0).Stdout, "Nothing to do.", "the second apply:")
			wants(x.new)
			d.apply(0)
			has(x.new, x.fresh)
			d.Put("/lib/modules/"+next+".el10_2.x86_64/modules.dep", "", 0o644)
			plan := d.Exec("gpuadm", "plan", "sources", "packages").Stdout // AlmaLinux's package is one for all kernels
			check.That(t, strings.Contains(plan, next+": no repository has it") == (x.id == "rhel"), "for a newer kernel: %s", plan)
			d.gpuadm(0, nil, "undo", "--to", "all")
			check.That(t, maps.Equal(d.RpmState(), state), "undo left %v, was %v", lab.Only(d.RpmState(), "*nvidia*"), lab.Only(state, "*nvidia*"))
		})
	}
}
