// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabBakeModuleKey: an image for Secure Boot is refused without a key. With one its DKMS signs by it, with another one the modules
// are built again, openssl proves each signature, and no private key is in the image.
func TestLabBakeModuleKey(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	for _, dist := range lab.Dists() {
		t.Run(dist, func(t *testing.T) {
			lab.Have(t, lab.OnDisk(lab.Options{Dist: dist, Headers: true}, newDisk(t), func(root string) error {
				i := img{t: t, root: root}
				i.furnish(deb, gpus)
				i.must("mkdir", "-p", i.root+lab.RepoDir)
				i.must("mount", "--bind", deb, i.root+lab.RepoDir)
				defer i.must("umount", i.root+lab.RepoDir)
				i.bakesSigned()
				return nil
			}))
		})
	}
}

// TestLabBakeThisMachineSigned: a build machine that bakes itself signs by a key in its memory. One on its disk would be in the image:
// that is refused.
func TestLabBakeThisMachineSigned(t *testing.T) {
	t.Parallel()
	n, kernel := bootDKMS(t, "bookworm")
	n.Must("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=the baker's key", "-keyout", "/dev/shm/key.pem", "-out", "/dev/shm/cert.pem")
	n.Must("cp", "/dev/shm/key.pem", "/root/key.pem")
	bake := func(key string) []string {
		return []string{"bake", "--gpu", "H100-80GB", "--module-key", key, "--module-cert", "/dev/shm/cert.pem", "--seal"}
	}
	first := n.snapshot()
	says(t, n.wants(1, n.spec("580.65.06", ""), bake("/root/key.pem")...), "the private key /root/key.pem lies in it", "/dev/shm")
	n.same(first)
	n.Must("rm", "/root/key.pem")
	t.Log(n.wants(0, n.spec("580.65.06", ""), bake("/dev/shm/key.pem")...).Stdout)
	for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
		if signer := modinfo(n.Host, kernel, "signer", module); signer != "the baker's key" {
			t.Errorf("%s: signer %q", module, signer)
		}
	}
	if r := n.Exec("ls", "/run/gpuadm-module.key", "/run/gpuadm-module.der", "/etc/dkms/framework.conf.d/zz-gpuadm.conf"); r.Stdout != "" {
		t.Errorf("the bake has left %s", r.Stdout)
	}
}

// baker makes a key and a certificate outside of the image.
func (i img) baker(name string) (key, cert string) {
	i.t.Helper()
	dir := i.t.TempDir()
	key, cert = filepath.Join(dir, "key.pem"), filepath.Join(dir, "cert.pem")
	i.must("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN="+name, "-keyout", key, "-out", cert)
	return key, cert
}

func (i img) bakesSigned() {
	t := i.t
	t.Helper()
	bake := append(i.bake(), "--gpu", "H100-80GB")
	code, out := i.run(append(bake, "--secure-boot")...)
	says(t, lab.Result{Stdout: out}, "bake has no key to sign them with", "--module-key FILE --module-cert FILE")
	if code != 1 || i.has("/usr/src/nvidia-580.65.06") {
		t.Fatalf("exit %d: an image for Secure Boot is not refused before it is touched: %s", code, out)
	}

	earlier, earlierCert := i.baker("an earlier key")
	key, cert := i.baker("the baker's key")
	t.Log(i.must(append(bake, "--module-key", earlier, "--module-cert", earlierCert)...))
	if !i.signed("nvidia", earlierCert) || i.signed("nvidia", cert) {
		t.Fatal("the package's build is not signed by the key that bake was given")
	}
	bake = append(bake, "--module-key", key, "--module-cert", cert, "--seal")
	t.Log(i.must(bake...))
	for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
		if !i.signed(module, cert) {
			t.Errorf("the baker's key has not signed %s", module)
		}
	}
	for _, name := range []string{earlier, key} {
		secret := must.Get(os.ReadFile(name))(t)
		line := strings.Split(string(secret), "\n")[5]
		argv := []string{"grep", "-rlF", "-e", line}
		for _, dir := range []string{"etc", "var", "root", "run", "tmp", "boot", "lib/modules", "usr/src", "usr/share/gpuadm"} {
			argv = append(argv, i.root+"/"+dir)
		}
		if code, found := i.run(argv...); code != 1 {
			t.Errorf("%s is in the image: %s", name, found)
		}
	}
	for _, name := range []string{"/var/lib/dkms/mok.key", "/etc/dkms/framework.conf.d/zz-gpuadm.conf"} {
		if i.has(name) {
			t.Errorf("the sealed image has %s", name)
		}
	}
	var m struct{ SignedBy struct{ Name string } }
	if err := json.Unmarshal([]byte(i.get("/usr/share/gpuadm/manifest.json")), &m); err != nil || m.SignedBy.Name != "the baker's key" {
		t.Errorf("manifest: %+v, %v", m, err)
	}
	says(t, lab.Result{Stdout: i.must(bake...)}, "Nothing to do.", "Sealed: 0 files")
}

// signed says whether openssl finds a module's appended signature to be of a certificate's key.
// Source: include/linux/module_signature.h in the kernel's tree.
func (i img) signed(module, cert string) bool {
	t := i.t
	t.Helper()
	found, err := filepath.Glob(i.root + "/lib/modules/" + i.kernel + "/updates/dkms/" + module + ".ko*")
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", module, found, err)
	}
	plain := filepath.Join(t.TempDir(), module+".ko")
	i.must("sh", "-c", `case $1 in *.xz) xz -dc "$1";; *) cat "$1";; esac >"$2"`, "sh", found[0], plain)
	data := must.Get(os.ReadFile(plain))(t)
	body, ok := bytes.CutSuffix(data, []byte("~Module signature appended~\n"))
	if !ok {
		return false
	}
	size := int(binary.BigEndian.Uint32(body[len(body)-4:]))
	end := len(body) - 12
	for name, part := range map[string][]byte{".p7s": body[end-size : end], ".body": body[:end-size]} {
		must.OK(t, os.WriteFile(plain+name, part, 0o600))
	}
	code, out := i.run("openssl", "cms", "-verify", "-binary", "-inform", "DER", "-in", plain+".p7s", "-content", plain+".body",
		"-certfile", cert, "-nointern", "-noverify", "-out", "/dev/null")
	t.Logf("%s: openssl: %s", module, strings.TrimSpace(out))
	return code == 0
}
