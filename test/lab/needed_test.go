// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// epelRelease is what the distribution's package of EPEL brings: the repository's file and its key.
//
//go:embed testdata/epel-release.spec
var epelRelease string

// freshRocky is a machine as Rocky's image leaves it: dkms is in EPEL, which has its package in
// extras, and gcc in CRB, which is disabled.
func freshRocky(t *testing.T) *dnfDriver {
	t.Helper()
	d := newDnfDriver(t)
	d.Put("/etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.6\"\nPRETTY_NAME=\"Rocky Linux 9.6\"\nPLATFORM_ID=\"platform:el9\"\n", 0o644)
	d.Put("/root/epel.repo", "[epel]\nname=EPEL $releasever\nbaseurl=file:///srv/epel/$basearch\nenabled=1\ngpgcheck=0\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-EPEL-9\n", 0o644)
	d.Must("cp", repos.Key, "/root/epel.key")
	d.Put("/root/epel-release.spec", epelRelease, 0o644)
	d.Must("rpmbuild", "--quiet", "-bb", "--define", "_rpmdir /srv/extras", "/root/epel-release.spec")
	arch := strings.TrimSpace(d.Must("uname", "-m"))
	d.Must("mkdir", "-p", "/srv/epel/"+arch, "/srv/crb")
	d.Must("sh", "-c", "mv /srv/tools/noarch/dkms-* /srv/epel/"+arch+" && mv /srv/tools/noarch/gcc-* /srv/crb")
	for _, dir := range []string{"/srv/tools", "/srv/extras", "/srv/crb", "/srv/epel/" + arch} {
		d.Must("createrepo_c", "-q", dir)
	}
	d.Put("/etc/yum.repos.d/rocky.repo", "[extras]\nname=extras\nbaseurl=file:///srv/extras\nenabled=1\ngpgcheck=0\n\n[crb]\nname=CRB $releasever\nbaseurl=file:///srv/crb\nenabled=0\ngpgcheck=0\n", 0o644)
	d.Must("dnf", "-y", "-q", "makecache")
	return d
}

// TestLabNeeded: a fresh Rocky is refused with the commands that help; enable_needed does it, by a
// package and a file of gpuadm's, and undo undoes both. The repository's key is trusted by the
// digest of its file.
func TestLabNeeded(t *testing.T) {
	t.Parallel()
	d := freshRocky(t)
	state, tree := d.RpmState(), d.TreeOutsideCaches()
	sum, _, _ := strings.Cut(d.Must("sha256sum", repos.Key), " ")
	spec := func(more string) {
		d.Put("/etc/gpuadm/node.toml", fmt.Sprintf("format = 1\n\n[driver]\nversion = \"580.95.05\"\n\n[driver.repo]\nurl = %q\nkey = %q\nfingerprint = \"sha256:%s\"\n%s",
			repos.Mirror+"/compute/cuda/repos/rhel9/x86_64", repos.Key, sum, more), 0o644)
	}

	spec("")
	d.apply(1, "dkms", "dnf install epel-release", "dnf config-manager --set-enabled crb")
	if now := d.RpmState(); now["epel-release"] != state["epel-release"] {
		t.Errorf("the refused apply leaves epel-release %q", now["epel-release"])
	}

	d.Must("rm", "-rf", "/var/cache/dnf") // an image has no lists
	spec("enable_needed = true\n")
	d.gpuadm(0, []string{"package epel-release", "gpuadm-crb.repo", "until the package lists are read"}, "plan", "sources", "packages")
	d.apply(0)
	d.installed("580.95.05")
	now := d.RpmState()
	for _, name := range []string{"epel-release", "dkms", "gcc"} {
		check.That(t, now[name] != "", "%s is not installed", name)
	}
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "the second apply:")
	again := d.RpmState()
	check.That(t, again["epel-release"] == now["epel-release"], "the second apply leaves epel-release %q", again["epel-release"])
	d.Must("rm", "-rf", "/etc/gpuadm")
	d.gpuadm(0, nil, "undo", "--to", "all")
	d.Must("rm", "-rf", "/var/lib/gpuadm")
	d.same(state, tree)
}
