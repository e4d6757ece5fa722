// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// mirror writes a mirror of what a spec asks for.
func (n driverNode) mirror(exit int, spec, system, dir string) lab.Result {
	n.t.Helper()
	n.Put("/root/mirror.toml", spec, 0o644)
	return n.gpuadm(exit, "mirror", "--for", system, "--kernel", emptyKernel, "--gpu", "H100-80GB", "-f", "/root/mirror.toml", "--keep", "-o", dir)
}

// headersRepo moves the headers from the host into a repository, as distributions have them.
func (n driverNode) headersRepo() {
	n.t.Helper()
	n.Must("dpkg", "--remove", "linux-headers-"+emptyKernel)
	n.Must("sh", "-c", `mkdir /srv/headers && cd /srv/headers && cp /tmp/linux-headers-*.deb headers.deb && (dpkg-deb -f headers.deb; echo Filename: ./headers.deb
echo Size: $(stat -c %s headers.deb); echo SHA256: $(sha256sum <headers.deb | cut -d' ' -f1)) >Packages
apt-ftparchive release . >/tmp/Release && mv /tmp/Release .`)
	n.Put("/etc/apt/sources.list.d/headers.list", "deb [trusted=yes] file:/srv/headers /\n", 0o644)
}

// TestLabMirror: two versions are mirrored from the lab's repositories. Then there is no repository
// any more: from the folder alone the driver is installed, repaired, upgraded, undone, and the
// toolkit baked. A byte that differs is named, and nothing is installed.
func TestLabMirror(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.headersRepo()
	old, next := n.spec("580.65.06", "1.18.0"), n.spec("580.95.05", "1.18.1")
	says(t, n.mirror(2, old, "ubuntu-24.04", "/srv/mirror"), "cannot mirror for ubuntu-24.04 on debian 12", "docker run")
	before := n.TreeOutsideCaches()
	says(t, n.mirror(0, old, "debian-12", "/srv/mirror"), "Signed by ")
	diff := n.TreeOutsideCaches().Diff(before)
	check.That(t, !strings.Contains(diff, "/etc/") && !strings.Contains(diff, "/var/"), "mirror has changed the machine:\n%s", diff)
	n.Must("mv", "/srv/mirror", "/srv/.gpuadm-mirror-old") // as a run that is killed between its two last steps leaves it
	says(t, n.mirror(0, old, "debian-12", "/srv/mirror"), "Nothing to do.")
	n.Must("cp", "-a", "/srv/mirror", "/srv/first")
	n.Put("/srv/.gpuadm-mirror-new/left_1_amd64.deb", "", 0o644) // as a run that is killed while it signs leaves it
	for _, seconds := range []string{"0.3", "1", "3"} {
		n.Put("/root/mirror.toml", next, 0o644)
		// The apt-get of the killed run goes on, and another run waits for it (exit 75).
		n.Must("sh", "-c", "timeout --signal=KILL "+seconds+" gpuadm mirror --for debian-12 --kernel "+emptyKernel+" --gpu H100-80GB -f /root/mirror.toml --keep -o /srv/mirror; "+
			"for i in $(seq 200); do grep -qsx apt-get /proc/[0-9]*/comm || break; sleep 0.1; done")
	}

	n.mirror(0, next, "debian-12", "/srv/mirror")
	n.Must("sh", "-c", "mv /srv/mirror /srv/next && mv /srv/first /srv/mirror")
	n.Put("/srv/other/file", "an operator's", 0o644)
	says(t, n.mirror(1, next, "debian-12", "/srv/other"), "/srv/other: it has other files")

	n.Must("rm", "-rf", repos.At, "/srv/headers", "/etc/apt/sources.list.d/headers.list", "/var/lib/apt/lists")
	n.Put("/etc/apt/sources.list", "deb http://debian.invalid/debian bookworm main\n", 0o644) // no such host: RFC 2606
	routes := n.Must("ip", "route")
	must.That(t, routes == "", "the host has routes: %s", routes)
	n.Must("mkdir", "-p", "/etc/gpuadm/node.d")
	n.Must("cp", "/srv/mirror/mirror.toml", "/etc/gpuadm/node.d/")
	asks := func(driver, toolkit string) string {
		return "format = 1\n[driver]\nversion = \"" + driver + "\"\n[toolkit]\nversion = \"" + toolkit + "\"\n"
	}

	first, file := n.AptState(), "/srv/mirror/libnvidia-ml1_580.65.06-1_amd64.deb"
	n.Must("sh", "-c", "cp "+file+" /tmp/good && printf X | dd of="+file+" bs=1 seek=1000 conv=notrunc")
	says(t, n.wants(1, asks("580.65.06", "1.18.0")), "cannot use the mirror: "+file+" differs from gpuadm-mirror.json")
	for _, d := range differ(n.AptState(), first) {
		t.Errorf("a mirror with a wrong byte: %s", d)
	}
	n.Must("cp", "/tmp/good", file)
	n.wants(0, asks("580.65.06", "1.18.0"))
	n.has("580.65.06")
	if state := n.AptState(); state["linux-headers-"+emptyKernel] == "" || !strings.HasPrefix(state["nvidia-container-toolkit"], "1.18.0-1") {
		t.Errorf("headers or toolkit are missing: %v", driverPackages(state))
	}
	n.Must("dpkg", "--purge", "--force-all", "nvidia-kernel-open-dkms")
	n.wants(0, asks("580.65.06", "1.18.0"))
	n.has("580.65.06")
	check.That(t, n.AptState()["nvidia-kernel-open-dkms"] != "", "nvidia-kernel-open-dkms was not installed again")
	n.Must("sh", "-c", "rm -r /srv/mirror && mv /srv/next /srv/mirror && touch /srv/mirror/gpuadm-mirror.json") // as it is copied to a node
	n.wants(0, asks("580.95.05", "1.18.1"))
	n.has("580.95.05")
	says(t, n.wants(0, asks("580.95.05", "1.18.1")), "Nothing to do.")
	n.gpuadm(0, "undo", "--yes")
	n.has("580.65.06")

	n.gpuadm(0, "undo", "--to", "all")
	n.wants(0, "format = 1\n[toolkit]\nversion = \"1.18.0\"\n", "bake")
	check.Equal(t, n.AptState()["nvidia-container-toolkit"], "1.18.0-1 held", "the baked toolkit is")
}

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
	kernel := strings.TrimSpace(d.Get("/proc/sys/kernel/osrelease"))
	return []string{"mirror", "--for", "rhel-9", "--kernel", kernel, "--gpu", "H100-80GB", "-f", "/root/mirror.toml", "--keep", "-o", dir}
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
	diff := d.TreeOutsideCaches().Diff(before)
	check.That(t, !strings.Contains(diff, "/etc/") && !strings.Contains(diff, "/var/"), "mirror has changed the machine:\n%s", diff)
	for _, diff := range differ(d.RpmState(), state) {
		t.Errorf("mirror has changed packages: %s", diff)
	}
	again := d.mirror(0, old, "1.18.0", "/srv/mirror", "Nothing to do.")
	check.That(t, !strings.Contains(again.Stderr, "Fetching"), "a second run fetches: %s", again)
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

// TestLabMirrorDnf: two versions are mirrored on one host. On another one, which reaches no
// repository, the driver and the toolkit are installed, repaired, upgraded and undone from the
// folder alone. A byte that differs is named, and nothing is installed.
func TestLabMirrorDnf(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	from := mirrorDnf(t)
	d := &dnfDriver{lab.Boot(t, lab.Options{Dist: lab.RHELish, GPUs: 8}), t, ""}
	routes := d.Must("ip", "route")
	must.That(t, routes == "", "the host has routes: %s", routes)
	d.Put("/etc/yum.repos.d/baseos.repo", "[baseos]\nname=baseos\nbaseurl=https://rhel.invalid/baseos\nenabled=1\ngpgcheck=1\n", 0o644) // no such host: RFC 2606
	from.Must("sh", "-c", "mv /srv/mirror /srv/next && mv /srv/first /srv/mirror")
	copyTo(t, from.Host, d.Host, "/srv/mirror")
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
	state := d.RpmState()
	check.That(t, state["kernel-devel-"+strings.TrimSpace(d.Must("uname", "-r"))] != "" && strings.HasPrefix(state["nvidia-container-toolkit"], "1.18.0-1"),
		"headers or toolkit are missing: %v", state)
	asks(0, "580.65.06", "1.18.0", "Nothing to do.")
	d.Must("rpm", "-e", "--nodeps", "kmod-nvidia-open-dkms")
	asks(0, "580.65.06", "1.18.0", "kmod-nvidia-open-dkms")
	d.installed("580.65.06")
	from.Must("sh", "-c", "rm -r /srv/mirror && mv /srv/next /srv/mirror")
	copyTo(t, from.Host, d.Host, "/srv/mirror")
	asks(0, "580.95.05", "1.18.1")
	d.installed("580.95.05")
	asks(0, "580.95.05", "1.18.1", "Nothing to do.")
	d.gpuadm(0, nil, "undo", "--yes")
	d.installed("580.65.06")
	d.gpuadm(0, nil, "undo", "--to", "all")
	for _, diff := range differ(d.RpmState(), first) {
		t.Errorf("after undo: %s", diff)
	}
	d.Put("/etc/gpuadm/node.toml", "format = 1\n[toolkit]\nversion = \"1.18.1\"\n", 0o644)
	d.gpuadm(0, nil, "bake")
	check.Equal(t, d.RpmState()["nvidia-container-toolkit"], "1.18.1-1 held", "the baked toolkit is")
}

// A mirrored is a mirror's folder, and the spec of the nodes that use it.
type mirrored struct {
	dir, spec string
	damaged   string // a file in which a byte will differ
	runfile   bool
	gpus      fakenvml.Parts
	deb       string
}

// TestLabMirrorImage: an image that has a mirror on its disk, and no network, gets the driver by
// bake, or at its first boot. Both from packages and by NVIDIA's installer. One wrong byte is named
// at bake, and nothing is installed; with the byte right, the next bake does.
func TestLabMirrorImage(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	for _, source := range []string{"packages", "runfile"} {
		t.Run(source, func(t *testing.T) {
			if source == "runfile" {
				lab.Nightly(t)
			}
			m := mirrored{gpus: gpus, deb: deb, runfile: source == "runfile"}
			m.write(t)
			t.Run("baked", func(t *testing.T) { m.boots(t, func(i img) { m.bakes(i) }) })
			t.Run("first boot", func(t *testing.T) {
				m.boots(t, func(i img) {
					out := i.must("unshare", "-n", i.bake()[0], "apply", "--root", i.root, "--install")
					says(t, lab.Result{Stdout: out}, "first boot")
				})
			})
		})
	}
}

// disk is a Debian's disk that becomes an image.
func (m mirrored) disk(t *testing.T, do func(img)) (options lab.Options, kernel string) {
	t.Helper()
	upper := newDisk(t)
	options = lab.Options{Dist: "bookworm", Headers: true}
	lab.Have(t, lab.OnDisk(options, upper, func(root string) error {
		i := img{t: t, root: root}
		i.furnish(m.deb, m.gpus)
		for from, to := range map[string]string{m.gpus.Library: "libnvidia-ml", m.gpus.CUDA: "libcuda"} {
			i.must("install", "-D", "-m", "644", from, root+"/usr/local/lib/fakenvml/"+to+".so")
		}
		do(i)
		kernel = i.kernel
		return nil
	}))
	options.Over, options.GPUs = upper, 8
	return options, kernel
}

// write writes the mirror, in a container of the nodes' system that has repositories.
func (m *mirrored) write(t *testing.T) {
	t.Helper()
	m.dir = newDisk(t) + "/mirror"
	m.disk(t, func(i img) {
		asks := i.get(specFile)
		driver, rest, _ := strings.Cut(asks, "[toolkit]")
		_, end, _ := strings.Cut(rest, "[[mig.gpu]]")
		m.spec = "format = 1\n[driver]\nversion = \"580.65.06\"\n[toolkit]\nversion = \"1.18.0\"\n[[mig.gpu]]" + end
		m.damaged = "libnvidia-ml1_580.65.06-1_amd64.deb"
		if m.runfile {
			m.damaged = "NVIDIA-Linux-x86_64-580.65.06.run"
			text := strings.NewReplacer("@VERSION@", "580.65.06", "@KIND@", "fine").Replace(runfileScript)
			i.put("/srv/"+m.damaged, text, 0o644)
			driver = fmt.Sprintf("format = 1\n[driver]\nversion = \"580.65.06\"\nsource = \"runfile\"\nmodules = \"open\"\n[driver.runfile]\nurl = \"/srv/%s\"\nsha256 = \"%x\"\n",
				m.damaged, sha256.Sum256([]byte(text)))
			m.spec = driver + strings.TrimPrefix(m.spec, "format = 1\n[driver]\nversion = \"580.65.06\"\n")
		}

		i.put("/root/mirror.toml", driver+"[toolkit]"+rest, 0o644)
		i.must("mkdir", "-p", i.root+lab.RepoDir)
		i.must("mount", "--bind", m.deb, i.root+lab.RepoDir)
		defer i.must("umount", i.root+lab.RepoDir)
		i.must("install", i.bake()[0], i.root+"/root/gpuadm")
		out := i.must("unshare", "-mn", "sh", "-c", `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"`, i.root,
			"/root/gpuadm", "mirror", "--for", "debian-12", "--kernel", i.kernel, "--gpu", "H100-80GB", "-f", "/root/mirror.toml", "-o", "/srv/mirror")
		t.Log(out)
		i.must("cp", "-a", i.root+"/srv/mirror", m.dir)
	})
}

// boots makes an image that has the mirror, and boots it.
func (m mirrored) boots(t *testing.T, with func(img)) {
	t.Helper()
	options, kernel := m.disk(t, func(i img) {
		i.t = t
		i.must("cp", "-a", m.dir, i.root+"/srv/mirror")
		i.put(specFile, m.spec, 0o644)
		i.must("install", "-D", "-m", "644", m.dir+"/mirror.toml", i.root+"/etc/gpuadm/node.d/mirror.toml")
		with(i)
	})
	n := driverNode{node{lab.Boot(t, options), t}, ""}
	n.active(bootUnit, "active")
	routes := n.Must("ip", "route")
	must.That(t, routes == "", "the host has routes: %s", routes)
	if m.runfile {
		says(t, lab.Result{Stdout: n.Get("/var/lib/nvidia/log")}, "580.65.06")
		check.Equal(t, modinfo(n.Host, kernel, "version", "nvidia"), "580.65.06", "the module is")
	} else {
		n.built(kernel, "580.65.06")
		n.has("580.65.06")
	}

	check.Equal(t, n.AptState()["nvidia-container-toolkit"], "1.18.0-1 held", "the toolkit is")
	says(t, n.gpuadm(0, "apply"), "Nothing to do.")
	says(t, n.gpuadm(0, "status"), "converged")
	if g := geometry((gpuNode{n.node}).dump().GPUs[0]); strings.Count(g, "3g.40gb@") != 2 {
		t.Errorf("partitions: %s\n%s", g, n.Journal(bootUnit))
	}
}

// bakes bakes from the mirror, first with a wrong byte in it.
func (m mirrored) bakes(i img) {
	t := i.t
	t.Helper()
	bake := append([]string{"unshare", "-n"}, append(i.bake(), "--gpu", "H100-80GB")...)
	files := func() string {
		return i.must("find", i.root, "-xdev", "(", "-path", i.root+"/var/lib/gpuadm", "-o", "-path", i.root+"/srv", ")", "-prune", "-o", "!", "-type", "d", "-printf", "/%P %s %T@\n")
	}
	before, file := files(), i.root+"/srv/mirror/"+m.damaged
	data := must.Get(os.ReadFile(file))(t)
	data[1000] ^= 1
	i.put("/srv/mirror/"+m.damaged, string(data), 0o644)
	code, out := i.run(bake...)
	if says(t, lab.Result{Stdout: out}, "cannot use the mirror: /srv/mirror/"+m.damaged+" differs from gpuadm-mirror.json"); code != 1 {
		t.Errorf("exit %d", code)
	}
	check.None(t, cmp.Diff(strings.Split(before, "\n"), strings.Split(files(), "\n")), "a refused bake has changed files:")
	data[1000] ^= 1
	i.put("/srv/mirror/"+m.damaged, string(data), 0o644)
	t.Log(i.must(append(bake, "--seal")...))
	says(t, lab.Result{Stdout: i.must(append(bake, "--seal")...)}, "Nothing to do.", "Sealed: 0 files")
	made := i.get(stages.ManifestFile)
	check.That(t, strings.Contains(made, `"kind": "runfile"`) == m.runfile, "the manifest:\n%s", made)
}
