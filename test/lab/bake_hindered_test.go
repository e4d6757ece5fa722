// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabBakeHindered: the disk of an image is full, and then bake is killed at up to 20 random
// moments. Each next bake goes on, and the last one has a sealed image that a further bake does not
// change. SEED repeats a run.
func TestLabBakeHindered(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("SEED"); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		must.OK(t, err)
	}

	t.Logf("SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	disk := newDisk(t)
	must.OK(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1g,mode=755"))
	defer syscall.Unmount(disk, syscall.MNT_DETACH)
	upper := filepath.Join(disk, "upper")
	must.OK(t, os.Mkdir(upper, 0o755))
	lab.Have(t, lab.OnDisk(lab.Options{
		Dist:    "bookworm",
		Headers: true,
	}, upper, func(root string) error {
		i := img{t: t, root: root}
		i.furnish(deb, gpus)
		i.must("mkdir", "-p", root+lab.RepoDir)
		i.must("mount", "--bind", deb, root+lab.RepoDir)
		defer i.must("umount", root+lab.RepoDir)
		mounts := i.must("grep", "-c", root, "/proc/self/mountinfo")
		bake := append(i.bake(), "--gpu", "H100-80GB")

		filler := filepath.Join(disk, "filler")
		i.must("sh", "-c", "head -c $(($(stat -f -c '%a * %S' "+disk+") - 300000)) /dev/zero >"+filler)
		code, out := i.run(bake...)
		t.Log(out)
		check.That(t, code != 0 && strings.Contains(out, "space"), "full disk: exit %d: %s", code, out)
		i.must("rm", filler)

		kills, begun := 0, time.Now()
		for kills < 20 {
			if i.killedAfter(bake, time.Duration(random.Int64N(int64(1500*time.Millisecond)))) {
				break
			}
			kills++
		}

		t.Logf("%d kills in %s", kills, time.Since(begun).Round(time.Second))
		eventually(func() bool { // what the last one left at work holds dpkg's lock
			code, out = i.run(append(bake, "--seal")...)
			return code != 75
		})
		t.Log(out)
		must.That(t, code == 0, "bake: exit %d", code)
		check.None(t, i.must("chroot", root, "dpkg", "--audit"), "dpkg finds:")
		for _, name := range []string{"/usr/sbin/policy-rc.d", "/var/lib/gpuadm/journal.jsonl"} {
			check.That(t, !i.has(name), "the sealed image has %s", name)
		}
		says(t, lab.Result{Stdout: i.must(append(bake, "--seal")...)}, "Nothing to do.")
		now := i.must("grep", "-c", root, "/proc/self/mountinfo")
		check.That(t, now == mounts, "mounts below the image: %s before, %s after", mounts, now)
		return nil
	}))
}

// killedAfter kills a bake after a time, or says that it ended before with an image that is baked.
// What an earlier one left at work, say apt, it waits for.
func (i img) killedAfter(bake []string, after time.Duration) (baked bool) {
	i.t.Helper()
	eventually(func() bool {
		ctx, cancel := context.WithTimeout(i.t.Context(), after)
		defer cancel()
		cmd := exec.CommandContext(ctx, bake[0], bake[1:]...) // the context's end is SIGKILL
		out, err := cmd.CombinedOutput()
		baked = err == nil
		waits := cmd.ProcessState.ExitCode() == 75
		check.That(i.t, baked || waits || !cmd.ProcessState.Exited(), "after a kill: %v: %s", err, out)
		return !waits
	})
	return baked
}

// TestSlowBake: Debian's real open kernel modules are baked into a root folder with Debian's
// kernel, which does not run here, and the image boots, without a network, with nothing left to
// make.
func TestSlowBake(t *testing.T) {
	lab.Asked(t)
	mirror, err := parts.DebianMirror(t.Context())
	lab.Have(t, err)
	options, upper := lab.Options{Dist: "bookworm", Headers: true}, newDisk(t)
	kernel := ""
	lab.Have(t, lab.OnDisk(options, upper, func(root string) error {
		i := img{t: t, root: root}
		kernel = filepath.Base(strings.TrimSpace(i.must("sh", "-c", "ls -d "+root+"/lib/modules/*")))
		i.put("/etc/apt/sources.list", "deb "+mirror+" bookworm main contrib non-free non-free-firmware\n", 0o644)
		i.put(specFile, slowSpec, 0o644)
		began := time.Now()
		t.Log(i.must(append(i.bake(), "--gpu", "A100-80GB", "--seal")...))
		t.Logf("bake took %s", time.Since(began).Round(time.Second))
		says(t, lab.Result{Stdout: i.must(append(i.bake(), "--gpu", "A100-80GB", "--seal")...)}, "Nothing to do.")
		return nil
	}))
	options.Over, options.GPUs = upper, 1
	n := node{lab.Boot(t, options), t}
	must.That(t, strings.TrimSpace(n.Must("uname", "-r")) != kernel, "kernel %s runs", kernel)
	version, _, _ := strings.Cut(strings.TrimSpace(n.Must("dpkg-query", "--show", "--showformat=${Version}", "nvidia-open-kernel-dkms")), "-")
	for _, part := range []string{"", "-uvm", "-modeset", "-drm", "-peermem"} {
		name := "nvidia-current-open" + part
		check.Equal(t, modinfo(n.Host, kernel, "version", name), version, "%s: version", name)
		is := modinfo(n.Host, kernel, "vermagic", name)
		check.That(t, strings.HasPrefix(is, kernel+" "), "%s: vermagic %q", name, is)
	}

	says(t, n.gpuadm(0, "apply"), "Nothing to do.")
}

// TestSlowMkosi: Debian 13's mkosi builds the recipe of images/mkosi, with the driver of the lab's
// repository. mkosi's scripts run without /sys. The image is sealed, and nothing is left to make in
// it but at first boot.
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
		// The mirror given as a local one: mkosi then asks for no other, such as that of debug
		// symbols.
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
			check.That(t, !image.has(name), "the sealed image has %s", name)
		}
		says(t, lab.Result{Stdout: image.get("/usr/share/gpuadm/manifest.json")}, "nvidia-kernel-open-dkms", "580.65.06-1")
		says(t, lab.Result{Stdout: image.must(filepath.Join(lab.Source(), "bin/gpuadm"), "plan", "--root", image.root)}, "Nothing to do.")
		return nil
	})
	must.OK(t, err)
}
