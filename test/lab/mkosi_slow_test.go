// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestSlowMkosi: Debian 13's mkosi builds the recipe of images/mkosi, with the driver of the lab's repository. mkosi's scripts run
// without /sys. The image is sealed, and nothing is left to make in it but at first boot.
func TestSlowMkosi(t *testing.T) {
	lab.Asked(t)
	mirror, err := parts.DebianMirror(t.Context())
	lab.Have(t, err)
	layers, err := lab.Rootfs("trixie")
	lab.Have(t, err)
	deb := repos.Deb(t, repos.Recipe{})
	upper, err := os.MkdirTemp(filepath.Dir(layers[0]), ".mkosi-") // there an overlay can be; /tmp may be one already
	must.OK(t, err)
	defer func() { _ = os.RemoveAll(upper) }()
	err = lab.InChroot(layers, upper, func(c lab.Chroot) error {
		here := img{t: t, root: c.Root}
		resolv, err := os.ReadFile("/etc/resolv.conf")
		if err != nil {
			return err
		}
		here.put("/etc/resolv.conf", string(resolv), 0o644)
		n := driverNode{key: repos.Fingerprint(t, deb)}
		here.must("cp", "--recursive", filepath.Join(lab.Source(), "images/mkosi"), c.Root+"/recipe")
		here.must("cp", "--recursive", filepath.Join(deb, string(repos.Good)), c.Root+"/recipe/repo")
		here.must("cp", filepath.Join(deb, "key.asc"), c.Root+"/recipe/repo")
		here.must("cp", filepath.Join(lab.Source(), "bin/gpuadm"), c.Root+"/usr/bin")
		spec := strings.NewReplacer(repos.Mirror, "file:///srv/repo", repos.Key, "/srv/repo/key.asc").Replace(n.spec("580.65.06", "1.18.0"))
		here.put("/recipe/node.toml", spec+"[runtime]\n", 0o644)
		// The mirror given as a local one: mkosi then asks for no other, such as that of debug symbols.
		const build = `set -e; apt-get -q update
apt-get -q -y --no-install-recommends install mkosi systemd-repart systemd-ukify systemd-boot-efi dosfstools mtools e2fsprogs cpio zstd kmod
cd /recipe; exec mkosi --local-mirror="$0" --format=directory --workspace-directory=/var/tmp --extra-tree=repo:/srv/repo build`
		out, err := c.Run(t.Context(), nil, "sh", "-c", build, mirror)
		t.Log(string(out))
		if err != nil {
			return err
		}
		image := img{t: t, root: c.Root + "/recipe/gpu-node"}
		for _, name := range []string{"/var/lib/dkms/mok.key", "/var/lib/gpuadm/journal.jsonl", "/usr/sbin/policy-rc.d"} {
			if image.has(name) {
				t.Errorf("the sealed image has %s", name)
			}
		}
		says(t, lab.Result{Stdout: image.get("/usr/share/gpuadm/manifest.json")}, "nvidia-kernel-open-dkms", "580.65.06-1")
		says(t, lab.Result{Stdout: image.must(filepath.Join(lab.Source(), "bin/gpuadm"), "plan", "--root", image.root)}, "Nothing to do.")
		return nil
	})
	must.OK(t, err)
}
