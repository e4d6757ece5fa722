// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

//go:embed testdata/runfile.sh
var runfileScript string

// runfileSpec puts an installer on the host and returns the spec that asks for it.
func (n node) runfileSpec(version, kind string) string {
	n.t.Helper()
	text := strings.NewReplacer("@VERSION@", version, "@KIND@", kind).Replace(runfileScript)
	name := fmt.Sprintf("/srv/NVIDIA-Linux-x86_64-%s-%s.run", version, kind)
	n.Put(name, text, 0o644)
	return fmt.Sprintf("format = 1\n[driver]\nversion = %q\nsource = \"runfile\"\nmodules = \"open\"\n[driver.runfile]\nurl = %q\nsha256 = \"%x\"\n",
		version, name, sha256.Sum256([]byte(text)))
}

// TestLabRunfile: a driver of NVIDIA's installer there, to another version, and back; its modules
// really built by DKMS for a kernel that does not run.
func TestLabRunfile(t *testing.T) {
	t.Parallel()
	n := node{lab.Boot(t, lab.Options{
		Dist:    "bookworm",
		Headers: true,
		GPUs:    8,
	}), t}
	n.Put(specFile, "format = 1\n", 0o644)
	kernel := headersOf(t, n.Host)
	n.Put("/lib/modules/"+kernel+"/modules.dep", "", 0o644) // it is installed, not its headers alone
	wants := func(exit int, spec string) lab.Result {
		t.Helper()
		n.Put(specFile, spec, 0o644)
		return n.gpuadm(exit, "apply", "packages", "modules")
	}

	has := func(version string) {
		t.Helper()
		check.Equal(t, modinfo(n.Host, kernel, "version", "nvidia"), version, "the module is")
		to := strings.TrimSpace(n.Must("readlink", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"))
		check.That(t, to == "libnvidia-ml.so."+version, "the library is %s, want %s", to, version)
		out := n.Must("dkms", "status")
		check.That(t, strings.Count(out, "nvidia/") == 1 && strings.Contains(out, "nvidia/"+version+", "+kernel), "dkms status: %s", out)
	}

	old, fine, broken := n.runfileSpec("570.172.08", "fine"), n.runfileSpec("580.95.05", "fine"), n.runfileSpec("580.65.06", "broken")
	clean := n.TreeOutsideCaches()

	r := wants(1, fine[:strings.Index(fine, "sha256")]+"sha256 = \""+strings.Repeat("0f", 32)+"\"\n")
	says(t, r, "sha256")
	r = wants(1, broken)
	says(t, r, "Unable to build the NVIDIA kernel module", "Installation has failed")
	check.None(t, withoutLogs(ourOwn(n.TreeOutsideCaches().Diff(clean))), "a wrong digest and a failing installer left:")

	wants(0, old)
	has("570.172.08")
	says(t, wants(0, old), "Nothing to do.")
	wants(0, fine)
	has("580.95.05")
	r = wants(1, strings.NewReplacer(`source = "runfile"`, `source = "auto"`).Replace(fine[:strings.Index(fine, "[driver.runfile]")]))
	says(t, r, "nvidia-uninstall", "580.95.05 open")

	n.gpuadm(0, "undo", "--yes")
	has("570.172.08")
	n.gpuadm(0, "undo", "--to", "all")
	check.None(t, withoutLogs(ourOwn(n.TreeOutsideCaches().Diff(clean))), "undo of all left:")
}

// withoutLogs leaves out logs, and what depmod rewrites.
func withoutLogs(diff string) string {
	var left []string
	for line := range strings.Lines(diff) {
		if !strings.Contains(line, " /var/log") && !strings.Contains(line, "/modules.") && !strings.Contains(line, " /var/lib/dkms") {
			left = append(left, line)
		}
	}

	return strings.Join(left, "")
}
