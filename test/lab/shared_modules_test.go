// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// copyTo brings a folder to the same place on another host, in the place of what is there.
func copyTo(t *testing.T, from, to *lab.Host, dir string) {
	t.Helper()
	archive := from.Must("tar", "-C", dir, "-c", ".")
	to.Must("sh", "-c", "rm -rf "+dir+" && mkdir -p "+dir)
	r := to.ExecInput(strings.NewReader(archive), "tar", "-C", dir, "-x")
	must.That(t, r.Exit == 0, "cannot copy %s: %s", dir, r)
}

// moduleKeyOf makes a key pair by which modules are signed.
func moduleKeyOf(h *lab.Host, name string) {
	h.Must("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500", "-subj", "/CN="+name,
		"-keyout", "/root/"+name+".key", "-out", "/root/"+name+".pem")
}

// sharedArgs are those of a mirror with modules for a kernel.
func sharedArgs(system, kernel, key string) []string {
	return []string{
		"mirror", "--for", system, "--modules", kernel, "--module-key", "/root/" + key + ".key", "--module-cert", "/root/" + key + ".pem",
		"--gpu", "H100-80GB", "-f", "/root/mirror.toml", "--keep", "-o", "/srv/mirror",
	}
}

// A sharing is a builder and a node that has neither compiler nor headers nor DKMS, and no network.
type sharing struct {
	builder, node  driverNode
	system, kernel string
}

// build has the builder write the mirror with modules of a driver.
func (s sharing) build(exit int, version, key string) lab.Result {
	s.builder.t.Helper()
	s.builder.Put("/root/mirror.toml", s.builder.spec(version, ""), 0o644)
	return s.builder.gpuadm(exit, sharedArgs(s.system, s.kernel, key)...)
}

// asks applies a driver on the node.
func (s sharing) asks(exit int, version, build string, args ...string) lab.Result {
	s.node.t.Helper()
	if len(args) == 0 {
		args = []string{"apply"}
	}
	return s.node.wants(exit, "format = 1\n[driver]\nversion = \""+version+"\"\nbuild = \""+build+"\"\n", args...)
}

// has wants the node to have the builder's modules, and nothing that builds some.
func (s sharing) has(version string) {
	n := s.node
	n.t.Helper()
	for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
		v, magic, signer := modinfo(n.Host, s.kernel, "version", module), modinfo(n.Host, s.kernel, "vermagic", module), modinfo(n.Host, s.kernel, "signer", module)
		check.That(n.t, v == version && strings.HasPrefix(magic, s.kernel+" ") && signer == "site", "%s: version %q, vermagic %q, signer %q", module, v, magic, signer)
	}

	state := n.AptState()
	check.Equal(n.t, state["gpuadm-modules-open-"+s.kernel], version+"-1 held", "the package of the modules is")
	for name := range state {
		if name == "dkms" || name == "make" || strings.HasPrefix(name, "gcc-") && !strings.HasSuffix(name, "-base") || strings.HasPrefix(name, "linux-headers") || strings.HasSuffix(name, "-dkms") {
			n.t.Errorf("the node has %s", name)
		}
	}
}

// nextKernel is a kernel that a builder has headers of, besides: those that are there, by another
// name.
func nextKernel(h *lab.Host, kernel string) string {
	next := strings.Replace(kernel, "-amd64", "9-amd64", 1)
	h.Must("sh", "-ec", `cp -a /usr/src/linux-headers-$0 /usr/src/linux-headers-$1
grep -rl "$0" /usr/src/linux-headers-$1/include /usr/src/linux-headers-$1/.kernelvariables | xargs sed -i "s/$0/$1/"
mkdir -p /lib/modules/$1; ln -s /usr/src/linux-headers-$1 /lib/modules/$1/build; : >/lib/modules/$1/modules.dep`, kernel, next)
	return next
}

// runs has a host say that it runs a kernel.
func runs(h *lab.Host, kernel string) {
	h.Put("/root/osrelease", kernel+"\n", 0o644)
	h.Must("mount", "--bind", "/root/osrelease", "/proc/sys/kernel/osrelease")
}

// arrives brings a kernel to the node, and its package, which the modules' package depends on where
// a source of the builder has it.
func (s sharing) arrives(kernel string) {
	s.node.Put("/lib/modules/"+kernel+"/modules.dep", "", 0o644)
	s.node.Must("depmod", kernel)
	emptyPackage(s.node.Host, "linux-image-"+kernel)
}

// refuses wants the node to name why modules do not fit: with build = "auto" the next way, DKMS, is
// planned; "shared" is refused.
func (s sharing) refuses(why, version string) {
	s.node.t.Helper()
	says(s.node.t, s.asks(0, version, "auto", "plan"), "Note: no shared kernel modules for kernel "+s.kernel+": ", why, "dkms nvidia/"+version)
	says(s.node.t, s.asks(1, version, "shared"), "cannot take shared kernel modules for kernel "+s.kernel+": ", why, "gpuadm mirror --for ID --modules "+s.kernel)
}

// TestLabSharedModules: modules are built once, and a node without compiler, headers and DKMS
// installs, upgrades and undoes them as all other packages. Two builds are the same bytes. What
// does not fit is named.
func TestLabSharedModules(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.DistsFor(t) {
		t.Run(dist, func(t *testing.T) {
			system := map[string]string{"bookworm": "debian-12", "trixie": "debian-13"}[dist]
			builder, kernel := bootDKMS(t, dist)
			s := sharing{builder, driverNode{node{lab.Boot(t, lab.Options{
				Dist: dist,
				GPUs: 8,
			}), t}, ""}, system, kernel}
			moduleKeyOf(builder.Host, "site")
			first, next := driversOn(dist) // on Debian 13 of another branch
			s.build(0, first, "site")
			n := s.node
			s.arrives(kernel)
			n.Put(smallInitramfs, "MODULES=list\n", 0o644)
			copyTo(t, builder.Host, n.Host, "/srv/mirror")
			n.Must("install", "-D", "-m", "644", "/srv/mirror/mirror.toml", "/etc/gpuadm/node.d/mirror.toml")
			before := n.snapshot()
			if dist == "bookworm" {
				s.hostile()
			}
			began := time.Now()
			t.Log(s.asks(0, first, "auto").Stdout)
			t.Logf("converged after %s", time.Since(began))
			s.has(first)
			n.idle()
			s.build(0, next, "site")
			copyTo(t, builder.Host, n.Host, "/srv/mirror")
			s.asks(0, next, "shared")
			s.has(next)
			s.strange(first, next)
			gone := ":"
			if dist == "bookworm" {
				came := s.kernelComes(next)
				gone = "dpkg --purge linux-image-" + came + " && rm -r /lib/modules/" + came
			}
			n.gpuadm(0, "undo", "--to", "all")
			n.Must("sh", "-c", gone)
			n.same(before, "/srv/mirror")
			check.That(t, n.Exec("modinfo", "-k", kernel, "nvidia").Exit != 0, "undo of all left a module")
		})
	}
}

// hostile: a second build has the same bytes; an interrupted build leaves no compiler at work; and
// the node refuses what does not fit.
func (s sharing) hostile() {
	b, n, t := s.builder, s.node, s.node.t
	t.Helper()
	const sums = "sha256sum /srv/mirror/gpuadm-modules-*"
	first := b.Must("sh", "-c", sums)
	says(t, s.build(0, "580.65.06", "site"), "Nothing to do.")
	b.Must("mv", "/srv/mirror", "/srv/first")
	r := b.Exec("sh", "-c", "gpuadm "+strings.Join(sharedArgs(s.system, s.kernel, "site"), " ")+" & until pgrep -x cc1; do sleep 0.1; done; kill -INT $!; wait $!; echo exit $?; pgrep -x cc1")
	says(t, r, "exit 1", "cannot write the mirror: it was interrupted")
	s.build(0, "580.65.06", "site")
	check.Equal(t, b.Must("sh", "-c", sums), first, "a second build has other bytes")

	s.refuses("gpuadm-modules-open-"+s.kernel+" is of driver 580.65.06, open, and 580.95.05, open, is asked for", "580.95.05")
	n.Put("/lib/modules/"+s.kernel+"/build/Module.symvers", "0x0000000b\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n", 0o644)
	s.refuses("they were built for another build of the kernel", "580.65.06")
	n.Must("rm", "-r", "/lib/modules/"+s.kernel+"/build")
	n.Must("mount", "-t", "tmpfs", "none", "/sys/kernel/security")
	n.Put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n", 0o644)
	for build, exit := range map[string]int{"auto": 1, "shared": 1} { // by DKMS the kernel would not load them either
		says(t, s.asks(exit, "580.65.06", build, "plan"), "it is signed by site (serial ", "which the kernel does not trust")
	}
	n.Must("umount", "/sys/kernel/security")
}

// kernelComes: a kernel that comes before its modules is named before it boots, and the node keeps
// its driver; once the folder has them it gets them.
func (s sharing) kernelComes(version string) (kernel string) {
	n, t := s.node, s.node.t
	t.Helper()
	next := s
	next.kernel = nextKernel(s.builder.Host, s.kernel)
	emptyPackage(s.builder.Host, "linux-headers-"+next.kernel)
	s.arrives(next.kernel)
	runs(n.Host, s.kernel)
	for _, verb := range []string{"plan", "status", "doctor"} {
		r := n.Exec("gpuadm", verb)
		r.Stdout = strings.Join(strings.Fields(r.Stdout), " ")
		says(t, r, "the next boot starts kernel "+next.kernel+", without the GPUs: it has no module nvidia: have", "gpuadm mirror --for ID --modules "+next.kernel)
	}

	says(t, s.asks(0, version, "auto", "plan"), "no shared kernel modules for kernel "+next.kernel+": the mirror has none; gpuadm installs none for it")
	says(t, s.asks(1, version, "shared"), "cannot take shared kernel modules for kernel "+next.kernel+": the mirror has none")
	n.Must("umount", "/proc/sys/kernel/osrelease")
	next.build(0, version, "site")
	copyTo(t, s.builder.Host, n.Host, "/srv/mirror")
	next.asks(0, version, "auto")
	next.has(version)
	return next.kernel
}

// strange: where the kernel would load another module than the package's, apply names the module
// and changes nothing. The cases: a foreign file in the module's place, a module of no package that
// a file of depmod.d(5) prefers, and the package's own module after the kernel lost its key.
func (s sharing) strange(was, version string) {
	n, t := s.node, s.node.t
	t.Helper()
	dir, has := "/lib/modules/"+s.kernel, "cannot use kernel "+s.kernel+": it has the module nvidia "
	file := modinfo(n.Host, s.kernel, "filename", "nvidia") // .ko or, as trixie's kernel has them, .ko.xz
	n.Must("sh", "-ec", "dpkg-deb --fsys-tarfile $0 | tar -xO ./usr"+file+" >/root/was.ko", "/srv/mirror/gpuadm-modules-open-"+s.kernel+"_"+was+"-1_amd64.deb")
	for _, x := range []struct{ does, says, back string }{
		{"cp /root/was.ko " + file, has + was + " open, and " + version + " open is wanted", "apt-get -q -y install --reinstall gpuadm-modules-open-" + s.kernel},
		{
			"mkdir -p /run/depmod.d " + dir + "/extra; cp /root/was.ko " + dir + "/extra/" + path.Base(file) + "; echo 'override nvidia * extra' >/run/depmod.d/site.conf; depmod " + s.kernel,
			has + was + " open, and " + version + " open is wanted", "rm -r " + dir + "/extra /run/depmod.d/site.conf; depmod " + s.kernel,
		},
		{
			"mount -t tmpfs none /sys/kernel/security; echo 'none [integrity] confidentiality' >/sys/kernel/security/lockdown",
			has + version + " open, it is signed by site (serial ", "umount /sys/kernel/security",
		},
	} {
		n.Must("sh", "-ec", x.does)
		says(t, s.asks(1, version, "auto"), x.says, "modinfo -k "+s.kernel)
		n.Must("sh", "-ec", x.back)
		s.asks(0, version, "auto") // apt has taken the hold away where it installed the package again
		says(t, s.asks(0, version, "auto"), "Nothing to do.")
		s.has(version)
	}
}

// TestLabSharedModulesFail: modules that do not build for a kernel keep nothing else back. The folder
// has the failure, and the plan of another node says it before that compiles. A folder never loses
// modules by it.
func TestLabSharedModulesFail(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	const version, newer = "580.65.06", "580.95.05"
	const fault = "fatal error: " + brokenHeader + ": No such file or directory"
	builder, kernel := bootDKMS(t, "bookworm")
	booted := lab.Boot(t, lab.Options{Dist: "bookworm", GPUs: 8})
	s := sharing{builder, driverNode{node{booted, t}, ""}, "debian-12", kernel}
	moduleKeyOf(builder.Host, "site")
	next := nextKernel(builder.Host, kernel)
	emptyPackage(builder.Host, "linux-headers-"+next)
	s.arrives(kernel)
	s.arrives(next)
	runs(s.node.Host, kernel)

	// dkms(8) reads this file for that version and that kernel alone.
	breaks := func(version, kernel string) (mended func()) {
		conf := "/etc/dkms/nvidia-" + version + "-" + kernel + ".conf"
		in := "M=${dkms_tree}/nvidia/" + version + "/build"
		broken := "KCPPFLAGS='-include " + brokenHeader + "'"
		builder.Put(conf, `MAKE[0]="make -C ${kernel_source_dir} `+in+" "+broken+` modules"`+"\n", 0o644)
		return func() { builder.Must("rm", conf) }
	}

	both := sharing{s.builder, s.node, s.system, kernel + "," + next}

	mended := breaks(version, next)
	r := both.build(1, version, "site")
	says(t, r, "cannot build the modules nvidia "+version+" for "+next+": ", fault)
	says(t, r, "/srv/mirror has all else, and this failure, which the plans of nodes name")
	check.Has(t, builder.Must("ls", "/srv/mirror"), "gpuadm-modules-open-"+kernel+"_", "the mirror:")
	again := both.build(1, version, "site")
	says(t, again, "Nothing to do.", fault, "nothing was compiled again", "-o with a folder that is not there yet")
	check.That(t, !strings.Contains(again.Stdout+again.Stderr, "DKMS builds"), "a build that has failed is compiled again: %s", again)

	n := s.node
	copyTo(t, builder.Host, n.Host, "/srv/mirror")
	n.Must("install", "-D", "-m", "644", "/srv/mirror/mirror.toml", "/etc/gpuadm/node.d/mirror.toml")
	failed := "driver " + version + " did not build for it where the mirror was written: "
	r = s.asks(0, version, "auto", "plan")
	says(t, r, "no shared kernel modules for kernel "+next+": "+failed, fault)
	r = s.asks(1, version, "shared", "plan")
	says(t, r, "cannot take shared kernel modules for kernel "+next+": "+failed, fault)
	r = s.asks(0, version, "dkms", "plan")
	says(t, r, "Note: driver "+version+" did not build for kernel "+next+" where the mirror was written: ", fault)
	mended()
	both.build(0, version, "site")
	check.Has(t, builder.Must("ls", "/srv/mirror"), "gpuadm-modules-open-"+next+"_", "the mirror:")
	copyTo(t, builder.Host, n.Host, "/srv/mirror")
	r = s.asks(0, version, "shared", "plan")
	silent := !strings.Contains(r.Stdout+r.Stderr, "did not build")
	check.That(t, silent, "it is said of what has been built: %s", r)

	// Without --keep the new folder would have no modules for this kernel.
	mended = breaks(newer, kernel)
	builder.Put("/root/mirror.toml", builder.spec(newer, ""), 0o644)
	args := sharedArgs(s.system, kernel, "site")
	args = slices.DeleteFunc(args, func(arg string) bool { return arg == "--keep" })
	says(t, builder.gpuadm(1, args...), fault, "/srv/mirror stays as it was, with this failure")
	check.Has(t, builder.Must("ls", "/srv/mirror"), "gpuadm-modules-open-"+kernel+"_"+version, "the mirror:")
	copyTo(t, builder.Host, n.Host, "/srv/mirror")
	r = s.asks(0, newer, "dkms", "plan")
	says(t, r, "driver "+newer+" did not build for kernel "+kernel+" where the mirror was written: ", fault)
	mended()
}

// TestLabSharedModulesDnf: the same by rpmbuild and dnf, with Debian's DKMS, compiler and headers
// on a host that says that it is a RHEL.
func TestLabSharedModulesDnf(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	d := bootDnf(t, lab.Options{Headers: true})
	kernel := headersOf(t, d.Host)
	next := nextKernel(d.Host, kernel)
	d.offersTools(kernel, next)
	runs(d.Host, kernel)
	moduleKeyOf(d.Host, "site")
	kernels := []string{"--modules", kernel}
	build := func(code int, version string, says ...string) {
		t.Helper()
		d.gpuadm(code, says, slices.Concat(d.mirrorArgs(version, "1.18.0", "/srv/mirror"), kernels, []string{"--module-key", "/root/site.key", "--module-cert", "/root/site.pem"})...)
	}

	build(1, "580.65.06", "cannot build modules here: dkms, gcc, make is not installed", "dnf install dkms gcc make")
	d.Must("dnf", "-y", "-q", "install", "dkms", "gcc", "make")
	build(0, "580.65.06", "DKMS builds the modules of driver 580.65.06")
	sums := "sha256sum /srv/mirror/gpuadm-modules-*"
	first := d.Must("sh", "-c", sums)
	build(0, "580.65.06", "Nothing to do.")
	d.Must("rm", "-r", "/srv/mirror")
	build(0, "580.65.06")
	check.Equal(t, d.Must("sh", "-c", sums), first, "a second build has other bytes")

	n := &dnfDriver{lab.Boot(t, lab.Options{Dist: lab.RHELish, GPUs: 8}), t, ""}
	asks := func(code int, version, build string, says ...string) {
		t.Helper()
		n.Put("/etc/gpuadm/node.toml", "format = 1\n[driver]\nversion = \""+version+"\"\nbuild = \""+build+"\"\n", 0o644)
		n.apply(code, says...)
	}

	has := func(version string) {
		t.Helper()
		state := n.RpmState()
		check.Equal(t, state["gpuadm-modules-open-"+kernel], repos.RPMVersion(version)+" held", "the package of the modules is")
		check.That(t, state["kmod-nvidia-open-dkms"] == "" && state["kernel-devel-"+kernel] == "" && state["gcc"] == "", "the node has what builds modules: %v", state)
		v, magic, signer := modinfo(n.Host, kernel, "version", "nvidia"), modinfo(n.Host, kernel, "vermagic", "nvidia"), modinfo(n.Host, kernel, "signer", "nvidia")
		check.That(t, v == version && strings.HasPrefix(magic, kernel+" ") && signer == "site", "version %q, vermagic %q, signer %q", v, magic, signer)
	}

	copyTo(t, d.Host, n.Host, "/srv/mirror")
	n.Must("install", "-D", "-m", "644", "/srv/mirror/mirror.toml", "/etc/gpuadm/node.d/mirror.toml")
	arrives := func(kernel string) {
		n.Put("/lib/modules/"+kernel+"/modules.dep", "", 0o644)
		n.Must("depmod", kernel)
	}

	arrives(kernel)
	runs(n.Host, kernel)
	before := n.RpmState()
	symvers := func(text string) { // as RHEL's kernels have them
		n.Put("/tmp/symvers", text, 0o644)
		n.Must("sh", "-ec", "gzip -c /tmp/symvers >/lib/modules/$0/symvers.gz", kernel)
	}

	symvers("0x0000000b\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n")
	asks(1, "580.65.06", "shared", "cannot use gpuadm-modules-open-"+kernel+": they were built for another build of the kernel")
	symvers(d.Get("/lib/modules/" + kernel + "/build/Module.symvers"))
	n.Must("sh", "-ec", "mount -t tmpfs none /sys/kernel/security; echo 'none [integrity] confidentiality' >/sys/kernel/security/lockdown")
	asks(1, "580.65.06", "shared", "it is signed by site (serial ", "which the kernel does not trust")
	n.Must("umount", "/sys/kernel/security")
	asks(0, "580.65.06", "auto", "gpuadm-modules-open-"+kernel)
	has("580.65.06")
	asks(0, "580.65.06", "auto", "Nothing to do.")
	build(0, "580.95.05")
	copyTo(t, d.Host, n.Host, "/srv/mirror")
	asks(0, "580.95.05", "shared")
	has("580.95.05")

	arrives(next) // before its modules
	asks(1, "580.95.05", "shared", "cannot take shared kernel modules for kernel "+next+": the mirror has none")
	asks(0, "580.95.05", "auto", "Nothing to do.")
	n.gpuadm(0, []string{"no shared kernel modules for kernel " + next + ": the mirror has none; gpuadm installs none for it", "the next boot starts kernel " + next}, "plan")
	kernels = append(kernels, "--modules", next)
	build(0, "580.95.05")
	copyTo(t, d.Host, n.Host, "/srv/mirror")
	asks(0, "580.95.05", "auto", "gpuadm-modules-open-"+next)
	check.That(t, n.Exec("test", "-e", "/usr/lib/modules/"+next+"/updates/gpuadm/nvidia.ko").Exit == 0, "kernel %s has no module", next)
	n.gpuadm(0, nil, "undo", "--yes")
	check.That(t, n.RpmState()["gpuadm-modules-open-"+next] == "", "undo left the modules of kernel %s", next)
	n.gpuadm(0, nil, "undo", "--yes")
	has("580.65.06")
	n.gpuadm(0, nil, "undo", "--to", "all")
	for _, diff := range differ(n.RpmState(), before) {
		t.Errorf("after undo: %s", diff)
	}
}
