// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
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

// TestLabSharedModules: modules are built once, and a node without compiler, headers and DKMS installs, upgrades and undoes them as all
// other packages. Two builds are the same bytes. What does not fit is named.
func TestLabSharedModules(t *testing.T) {
	t.Parallel()
	for dist, system := range map[string]string{"bookworm": "debian-12", "trixie": "debian-13"} {
		t.Run(dist, func(t *testing.T) {
			builder, kernel := bootDKMS(t, dist)
			s := sharing{builder, driverNode{node{lab.Boot(t, lab.Options{Dist: dist, GPUs: 8}), t}, ""}, system, kernel}
			moduleKeyOf(builder.Host, "site")
			r := s.build(0, "580.65.06", "site")
			t.Log(r)
			sums := "sha256sum /srv/mirror/gpuadm-modules-*"
			first := builder.Must("sh", "-c", sums)
			says(t, s.build(0, "580.65.06", "site"), "Nothing to do.")
			builder.Must("mv", "/srv/mirror", "/srv/first")
			s.build(0, "580.65.06", "site")
			check.Equal(t, builder.Must("sh", "-c", sums), first, "a second build has other bytes")

			n := s.node
			n.Put("/lib/modules/"+kernel+"/modules.dep", "", 0o644)
			n.Put("/etc/initramfs-tools/conf.d/lab", "MODULES=list\n", 0o644)
			copyTo(t, builder.Host, n.Host, "/srv/mirror")
			n.Must("install", "-D", "-m", "644", "/srv/mirror/mirror.toml", "/etc/gpuadm/node.d/mirror.toml")
			n.Must("depmod", kernel)
			before := n.snapshot()
			says(t, s.asks(0, "580.65.06", "auto", "plan"), "gpuadm-modules-open-"+kernel)
			t.Log(s.asks(0, "580.65.06", "auto").Stdout)
			s.has("580.65.06")
			n.idle()

			s.build(0, "580.95.05", "site")
			copyTo(t, builder.Host, n.Host, "/srv/mirror")
			s.asks(0, "580.95.05", "shared")
			s.has("580.95.05")
			s.build(0, "590.48.01", "site")
			copyTo(t, builder.Host, n.Host, "/srv/mirror")
			s.asks(0, "590.48.01", "auto")
			s.has("590.48.01")
			n.gpuadm(0, "undo")
			s.has("580.95.05")
			n.gpuadm(0, "undo", "--to", "all")
			n.same(before, "/srv/mirror")
			check.That(t, n.Exec("modinfo", "-k", kernel, "nvidia").Exit != 0, "undo of all left a module")
		})
	}
}
