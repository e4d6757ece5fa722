// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// packageFolders are those that packages change something in, and packageNoise what is in them that
// is asked of dpkg.
var (
	packageFolders = []string{"/etc", "/usr", "/opt", "/var/lib"}
	packageNoise   = []string{"/var/lib/apt", "/var/lib/dpkg", "/etc/ld.so.cache"}
)

// packages are those that dpkg has. Of apt nothing is asked: a power cut may leave lists that apt
// cannot read, and then it says nothing at all.
func (n node) packages() string {
	return n.Must("dpkg-query", "--show", "--showformat", packageLine)
}

const packageLine = "${db:Status-Abbrev} ${Package} ${Version}\n"

// TestLabCrashMirror: a mirror is cut at its touches and at those of apt. It is not there, or whole,
// and the same command makes it; the machine stays as it was.
func TestLabCrashMirror(t *testing.T) {
	t.Parallel()
	d := bootDriver(t, lab.Options{Dist: "bookworm", Disk: true})
	d.headersRepo()
	d.Put("/root/mirror.toml", d.spec("580.65.06", "1.18.0"), 0o644)
	const made = "/srv/mirror"
	c := &cutting{
		node:    d.node,
		folders: packageFolders, without: packageNoise,
		command: []string{
			"gpuadm", "mirror", "--for", "debian-12", "--kernel", emptyKernel, "--gpu", "H100-80GB",
			"-f", "/root/mirror.toml", "--keep", "-o", made,
		},
		noUndo: true,
		makes:  []string{made, state, "/srv/.gpuadm-mirror-new", "/srv/.gpuadm-mirror-old"},
		ask: func(n node) map[string]string {
			// Signatures have a time.
			digests := n.Exec("sh", "-c", "cd "+made+" && sha256sum *.deb && ls").Stdout
			left := n.Exec("sh", "-c", "ls -d /srv/.gpuadm*").Stdout
			return map[string]string{"packages": n.packages(), "mirror": digests, "beside the mirror": fmt.Sprint(left != "")}
		},
	}
	c.ready()
	c.killed(c.sample(1))
	c.powerless(lab.Synced, c.sample(2))
	c.powerless(lab.Named, c.sample(2))
	c.count()
}
