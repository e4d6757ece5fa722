// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// mirror writes a mirror of a driver and a toolkit to a folder.
func (d *dnfDriver) mirror(code int, driver, toolkit, dir string, says ...string) lab.Result {
	d.t.Helper()
	return d.gpuadm(code, says, d.mirrorArgs(driver, toolkit, dir)...)
}

func (d *dnfDriver) mirrorArgs(driver, toolkit, dir string) []string {
	d.t.Helper()
	text := "format = 1\n"
	for _, s := range [][3]string{
		{"driver", driver, "/compute/cuda/repos/rhel9/x86_64"}, {"toolkit", toolkit, "/" + repos.Toolkit + "/rpm/x86_64"},
	} {
		text += fmt.Sprintf("[%s]\nversion = %q\n[%s.repo]\nurl = %q\nkey = %q\nfingerprint = %q\n", s[0], s[1], s[0], repos.Mirror+s[2], repos.Key, d.fingerprint)
	}
	d.Put("/root/mirror.toml", text, 0o644)
	kernel := strings.TrimSpace(d.Must("uname", "-r"))
	return []string{"mirror", "--for", "rhel-9", "--kernel", kernel, "--gpu", "H100-80GB", "-f", "/root/mirror.toml", "--keep", "-o", dir}
}

// copyTo brings a folder to the same place on another host.
func (d *dnfDriver) copyTo(other *lab.Host, from, to string) {
	d.t.Helper()
	archive := d.Must("tar", "-C", from, "-c", ".")
	other.Must("sh", "-c", "rm -rf "+to+" && mkdir -p "+to)
	if r := other.ExecInput(strings.NewReader(archive), "tar", "-C", to, "-x"); r.Exit != 0 {
		d.t.Fatalf("cannot copy %s: %s", from, r)
	}
}

// mirrorDnf makes two mirrors, the second from the first, on a host that stays as it was.
func mirrorDnf(t *testing.T) *dnfDriver {
	d := newDnfDriver(t)
	const old, next = "580.65.06", "580.95.05"
	d.Must("mv", "/usr/bin/createrepo_c", "/root/")
	d.mirror(1, old, "1.18.0", "/srv/mirror", "createrepo_c is not installed", "dnf install createrepo_c")
	d.Must("mv", "/root/createrepo_c", "/usr/bin/")
	d.Must("dnf", "-y", "-q", "install", "make")
	state, before := d.RpmState(), d.TreeOutsideCaches()
	d.mirror(0, old, "1.18.0", "/srv/mirror", "Signed by ", "repository tools has gpgcheck=0 and repo_gpgcheck=0", "Fetching ")
	if diff := d.TreeOutsideCaches().Diff(before); strings.Contains(diff, "/etc/") || strings.Contains(diff, "/var/") {
		t.Errorf("mirror has changed the machine:\n%s", diff)
	}
	for _, diff := range differ(d.RpmState(), state) {
		t.Errorf("mirror has changed packages: %s", diff)
	}
	if again := d.mirror(0, old, "1.18.0", "/srv/mirror", "Nothing to do."); strings.Contains(again.Stderr, "Fetching") {
		t.Errorf("a second run fetches: %s", again)
	}
	d.Must("cp", "-a", "/srv/mirror", "/srv/first")

	// Killed, it is made again. The dnf of the killed run goes on, and another run waits for it.
	args := strings.Join(d.mirrorArgs(next, "1.18.1", "/srv/mirror"), " ")
	d.Put("/srv/.gpuadm-mirror-new/.repodata/primary.xml.gz", "", 0o644) // as a createrepo_c that is killed leaves it
	for _, seconds := range []string{"1", "4", "8"} {
		d.Must("sh", "-c", "timeout --signal=KILL "+seconds+" gpuadm "+args+"; for i in $(seq 200); do pgrep -x 'dnf|createrepo_c|rpm' >/dev/null || break; sleep 0.1; done")
	}
	d.mirror(0, next, "1.18.1", "/srv/mirror")
	for _, file := range []string{"libnvidia-ml-" + old + "-1.el9.x86_64.rpm", "libnvidia-ml-" + next + "-1.el9.x86_64.rpm", "make-1-1.el9.noarch.rpm", "repodata/repomd.xml.asc"} {
		d.Must("test", "-e", "/srv/mirror/"+file)
	}

	// What is not as its repository says is refused, and so is a repository that another key signs.
	for variant, says := range map[repos.Variant]string{repos.Corrupt: "incorrect checksum", repos.WrongKey: "Bad GPG signature"} {
		repos.Show(d.Host, variant)
		d.mirror(1, old, "1.18.0", "/srv/"+string(variant), says)
	}
	repos.Show(d.Host, repos.Good)
	return d
}

// TestLabMirrorDnf: two versions are mirrored on one host. On another one, which reaches no repository, the driver and the toolkit are
// installed, repaired, upgraded and undone from the folder alone. A byte that differs is named, and nothing is installed.
func TestLabMirrorDnf(t *testing.T) {
	t.Parallel()
	from := mirrorDnf(t)
	d := &dnfDriver{lab.Boot(t, lab.Options{Dist: lab.RHELish, GPUs: 8}), t, ""}
	if routes := d.Must("ip", "route"); routes != "" {
		t.Fatalf("the host has routes: %s", routes)
	}
	d.Put("/etc/yum.repos.d/baseos.repo", "[baseos]\nname=baseos\nbaseurl=https://rhel.invalid/baseos\nenabled=1\ngpgcheck=1\n", 0o644) // no such host: RFC 2606
	from.copyTo(d.Host, "/srv/first", "/srv/mirror")
	d.Must("install", "-D", "-m", "644", "/srv/mirror/mirror.toml", "/etc/gpuadm/node.d/mirror.toml")
	asks := func(code int, driver, toolkit string, says ...string) lab.Result {
		t.Helper()
		d.Put("/etc/gpuadm/node.toml", "format = 1\n[driver]\nversion = \""+driver+"\"\n[toolkit]\nversion = \""+toolkit+"\"\n", 0o644)
		return d.apply(code, says...)
	}
	first := d.RpmState()
	for _, file := range []string{"/srv/mirror/libnvidia-ml-580.65.06-1.el9.x86_64.rpm", "/srv/mirror/repodata/repomd.xml"} {
		d.Must("sh", "-c", "cp -p "+file+" /root/good && printf X | dd of="+file+" bs=1 seek=600 conv=notrunc")
		asks(1, "580.65.06", "1.18.0", "cannot use the mirror: "+file+" differs from gpuadm-mirror.json")
		if strings.HasSuffix(file, "repomd.xml") { // an attacker writes the lock too
			d.Must("sh", "-c", "cp -p /srv/mirror/gpuadm-mirror.json /root/ && sed -i s/$(sha256sum </root/good | cut -d' ' -f1)/$(sha256sum <"+file+" | cut -d' ' -f1)/ /srv/mirror/gpuadm-mirror.json")
			asks(1, "580.65.06", "1.18.0", "cannot read repository", "Bad GPG signature")
			d.Must("cp", "-p", "/root/gpuadm-mirror.json", "/srv/mirror/")
		}
		d.Must("cp", "-p", "/root/good", file)
	}
	for _, diff := range differ(d.RpmState(), first) {
		t.Errorf("a mirror with a wrong byte: %s", diff)
	}

	asks(0, "580.65.06", "1.18.0")
	d.installed("580.65.06")
	if state := d.RpmState(); state["kernel-devel-"+strings.TrimSpace(d.Must("uname", "-r"))] == "" || !strings.HasPrefix(state["nvidia-container-toolkit"], "1.18.0-1") {
		t.Errorf("headers or toolkit are missing: %v", state)
	}
	asks(0, "580.65.06", "1.18.0", "Nothing to do.")
	d.Must("rpm", "-e", "--nodeps", "kmod-nvidia-open-dkms")
	asks(0, "580.65.06", "1.18.0", "kmod-nvidia-open-dkms")
	d.installed("580.65.06")
	from.copyTo(d.Host, "/srv/mirror", "/srv/mirror")
	asks(0, "580.95.05", "1.18.1")
	d.installed("580.95.05")
	asks(0, "580.95.05", "1.18.1", "Nothing to do.")
	d.gpuadm(0, nil, "undo")
	d.installed("580.65.06")
	d.gpuadm(0, nil, "undo", "--to", "all")
	for _, diff := range differ(d.RpmState(), first) {
		t.Errorf("after undo: %s", diff)
	}
	d.Put("/etc/gpuadm/node.toml", "format = 1\n[toolkit]\nversion = \"1.18.1\"\n", 0o644)
	d.gpuadm(0, nil, "bake")
	if is := d.RpmState()["nvidia-container-toolkit"]; is != "1.18.1-1 held" {
		t.Errorf("the baked toolkit is %q", is)
	}
}
