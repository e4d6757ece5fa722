// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// imageRoot is where the root folder of an image lies on the machine that bakes it.
const imageRoot = "/srv/image"

// TestLabCrashBake: a bake of a root folder is cut at the touches of gpuadm, of apt and of dpkg. The
// same bake then makes the same image, and undo leads back to the folder from before. The machine
// that bakes stays as it was.
func TestLabCrashBake(t *testing.T) {
	t.Parallel()
	d := bootDriver(t, lab.Options{Dist: "bookworm", Disk: true})
	d.copyRoot()
	d.Put(imageRoot+specFile, d.spec("", "1.18.0")+"[runtime]\nset_as_default = true\n", 0o644)

	folders := []string{"/etc", "/usr", "/var/lib"}
	without := packageNoise
	for _, folder := range packageFolders {
		folders = append(folders, imageRoot+folder)
	}
	for _, noise := range packageNoise {
		without = append(without, imageRoot+noise)
	}
	c := &cutting{
		node:    d.node,
		folders: folders, without: without,
		root:    imageRoot,
		command: []string{"gpuadm", "bake", "--root", imageRoot, "--gpu", "H100-80GB"},
		ask: func(n node) map[string]string {
			return map[string]string{
				"packages of the image": n.Must("dpkg-query", "--root="+imageRoot, "--show", "--showformat", packageLine),
				"packages of the host":  n.packages(),
				"mounts":                n.Exec("sh", "-c", "grep -o ' "+imageRoot+"[^ ]*' /proc/self/mountinfo").Stdout,
				"placeholders":          n.Exec("find", imageRoot, "-xdev", "-perm", "0400", "-empty", "-type", "f").Stdout,
			}
		},
	}
	c.ready()
	c.killed(c.sample(1))
	c.powerless(lab.Synced, c.sample(1))
	c.powerless(lab.Named, c.sample(1))
	c.count()
}

// copyRoot makes an image of the host's own programs: no documentation and no caches, since each
// picture of the disk has them. The host's repositories are mounted in it at each boot.
func (n node) copyRoot() {
	n.t.Helper()
	const without = "proc sys dev run tmp srv usr/share/doc usr/share/locale usr/share/man usr/share/i18n " +
		"usr/lib/python3 var/cache var/lib/containerd usr/local/sbin usr/bin/ctr"
	argv := []string{"tar", "--create", "--directory=/", "--one-file-system"}
	for _, name := range strings.Fields(without) {
		argv = append(argv, "--exclude=./"+name)
	}
	n.Must("mkdir", "-p", imageRoot)
	n.Must("sh", "-ec", strings.Join(argv, " ")+" . | tar --extract --directory="+imageRoot)
	n.Must("sh", "-ec", "cd "+imageRoot+" && mkdir -p proc sys dev run tmp srv usr/local/sbin var/cache/apt/archives/partial "+lab.RepoDir[1:]+" && chmod 1777 tmp")
	n.Must("ln", "-sfn", lab.RepoDir+"/"+string(repos.Good), imageRoot+repos.At)
	n.Put("/etc/fstab", lab.RepoDir+" "+imageRoot+lab.RepoDir+" none bind 0 0\n", 0o644)
	n.Must("mount", imageRoot+lab.RepoDir)
}
