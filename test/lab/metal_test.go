// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabMetal: the check for machines with real GPUs changes nothing; the full one changes GPUs
// that no process uses, and restores them.
func TestLabMetal(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "metal")
	build := exec.Command("go", "build", "-o", binary, "../metal")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	program := must.Get(os.ReadFile(binary))(t)
	n := bootGPUs(t).with(t, "H100-80:2,A100-40,T4")
	n.Put("/usr/local/bin/metal", string(program), 0o755)
	n.wants(0, "[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.40gb\" = 1, \"1g.10gb\" = 2 }\n[[mig.gpu]]\ndevices = [1]\nlayout = { \"7g.80gb\" = 1 }\n")
	n.Must("rm", "-rf", state)
	n.fake("client", "add", "--gpu", "1", "--gi", fmt.Sprint(n.dump().GPUs[1].Instances[0].ID), "--pid", "4711")
	before := n.dump()

	n.fake("driver", "--init", "DRIVER_NOT_LOADED")
	bare := n.Exec("metal", "-o", "/root/bare.txt")
	n.fake("driver", "--init", "SUCCESS")
	check.That(t, strings.Count(bare.Stdout+bare.Stderr, "\n") == 1 && bare.Exit == 1 && n.Exec("test", "-e", "/root/bare.txt").Exit != 0, "no driver: %s", bare)
	says(t, bare, "metal: cannot check GPUs: no NVIDIA driver answers on this machine (", "where nvidia-smi lists GPUs")

	n.fake("forget")
	read := n.Exec("metal", "-o", "/root/metal.txt")
	if after := n.dump(); read.Exit != 0 || after.Mutations > 0 || !slices.Equal(geometries(before), geometries(after)) {
		t.Errorf("the check that only reads: %s\n%v", read, geometries(after))
	}
	says(t, read, "### README's row\n| ", " | 1 × NVIDIA A100-SXM4-40GB, 2 × NVIDIA H100 80GB HBM3, 1 × Tesla T4 | ", "### gpuadm facts --record: 0", "NVIDIA H100 80GB HBM3", "### gpuadm mig profiles: 0", "all-1g.10gb")
	check.That(t, n.Get("/root/metal.txt") == read.Stdout, "the file has another report")
	for _, g := range before.GPUs {
		if strings.Contains(read.Stdout, g.UUID) || strings.Contains(read.Stdout, g.Serial) && g.Serial != "0" {
			t.Errorf("the report names GPU %s", g.UUID)
		}
	}

	changed := n.Exec("metal", "-full")
	after := n.dump()
	check.That(t, changed.Exit == 0 && after.Mutations != 0, "the full check: %s", changed)
	ids := regexp.MustCompile(`#\d+`) // a new instance may have another one
	for i := range before.GPUs {
		was, is := geometry(before.GPUs[i]), geometry(after.GPUs[i])
		if i != 1 { // that one is in use, so its instance is the same
			was, is = ids.ReplaceAllString(was, ""), ids.ReplaceAllString(is, "")
		}
		check.That(t, was == is, "GPU %d: was %s, is %s", i, was, is)
	}

	says(t, changed, "the partitions are as before")
	again := n.Exec("metal", "-full")
	check.That(t, again.Exit == 1, "a machine that gpuadm has changed: %s", again)
	says(t, again, "gpuadm has changed this machine before")
}
