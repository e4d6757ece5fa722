// SPDX-FileCopyrightText: The gpuadm authors
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
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// A mirrored is a mirror's folder, and the spec of the nodes that use it.
type mirrored struct {
	dir, spec string
	damaged   string // a file in which a byte will differ
	runfile   bool
	gpus      fakenvml.Parts
	deb       string
}

// TestLabMirrorImage: an image that has a mirror on its disk, and no network, gets the driver by bake, or at its first boot. Both from
// packages and by NVIDIA's installer. One wrong byte is named at bake, and nothing is installed; with the byte right, the next bake does.
func TestLabMirrorImage(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	for _, source := range []string{"packages", "runfile"} {
		t.Run(source, func(t *testing.T) {
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
	if routes := n.Must("ip", "route"); routes != "" {
		t.Fatalf("the host has routes: %s", routes)
	}
	if m.runfile {
		says(t, lab.Result{Stdout: n.Get("/var/lib/nvidia/log")}, "580.65.06")
		if v := modinfo(n.Host, kernel, "version", "nvidia"); v != "580.65.06" {
			t.Errorf("the module is %q", v)
		}
	} else {
		n.built(kernel, "580.65.06")
		n.has("580.65.06")
	}
	if is := n.AptState()["nvidia-container-toolkit"]; is != "1.18.0-1 held" {
		t.Errorf("the toolkit is %q", is)
	}
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
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(files(), "\n")); diff != "" {
		t.Errorf("a refused bake has changed files:\n%s", diff)
	}
	data[1000] ^= 1
	i.put("/srv/mirror/"+m.damaged, string(data), 0o644)
	t.Log(i.must(append(bake, "--seal")...))
	says(t, lab.Result{Stdout: i.must(append(bake, "--seal")...)}, "Nothing to do.", "Sealed: 0 files")
	if bill := i.get(stages.BillFile); strings.Contains(bill, `"NVIDIA-Linux"`) != m.runfile {
		t.Errorf("the bill of materials:\n%s", bill)
	}
}
