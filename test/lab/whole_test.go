// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabWholeNode is the main job, in one apply on a machine that has a container engine and nothing of NVIDIA's: driver
// and toolkit installed from repositories, modules built and proven for the kernel, daemons, partitions by the driver just
// installed, and the engine. Then a second apply, a reboot, and all of it undone.
func TestLabWholeNode(t *testing.T) {
	t.Parallel()
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	n := gpuNode{node{lab.Boot(t, lab.Options{Dist: "bookworm", GPUs: 8, Repos: deb, Headers: true}), t}}
	n.answers()
	repos.Show(n.Host, repos.Good)
	n.Must("rm", "-f", "/usr/bin/nvidia-container-runtime") // the lab's own
	for from, to := range map[string]string{gpus.Tool: "/usr/local/bin/fakenvml", gpus.NvidiaSMI: "/usr/local/bin/nvidia-smi"} {
		data := must.Get(os.ReadFile(from))(t)
		n.Put(to, string(data), 0o755)
	}
	kernel := strings.TrimSpace(n.Must("ls", "/lib/modules"))
	n.Put("/lib/modules/"+kernel+"/modules.dep", "", 0o644) // as if the kernel were installed, too: its headers are
	n.Must("depmod", kernel)
	n = n.with(t, "H100-80:8")
	d := driverNode{n.node, repos.Fingerprint(t, deb)}
	n.Put(specFile, d.spec("580.65.06", "1.18.0")+"[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.40gb\" = 2 }\n[runtime]\nset_as_default = true\n", 0o644)
	packages, files := n.AptState(), n.TreeOutsideCaches()

	t.Log(n.gpuadm(0, "plan", "-v").Stdout)
	t.Log(n.gpuadm(0, "apply", "--install").Stderr)
	if g := geometry(n.dump().GPUs[0]); strings.Count(g, "3g.40gb@") != 2 {
		t.Errorf("partitioned by the driver just installed: %s", g)
	}
	d.has("580.65.06")
	for _, unit := range []string{"nvidia-persistenced.service", daemon} {
		if n.MainPID(unit) == 0 {
			t.Errorf("%s does not run", unit)
		}
	}
	pid := n.MainPID(daemon)
	says(t, n.gpuadm(0, "apply", "--install"), "Nothing to do.")
	says(t, n.gpuadm(0, "status"), "converged since")
	if now := n.MainPID(daemon); now != pid {
		t.Errorf("a second apply has restarted %s", daemon)
	}

	n.Must("ln", "-sf", fakeState, "/run/fakenvml.state")
	n.gpuadm(0, "undo", "--to", "all")
	if now := n.AptState(); !maps.Equal(now, packages) {
		t.Error("undo of all left other packages")
	}
	if g := geometry(n.dump().GPUs[0]); g != "mode 0 " {
		t.Errorf("undo of all left partitions: %s", g)
	}
	delete(files, fakeState)
	now := n.TreeOutsideCaches()
	delete(now, fakeState)
	if diff := ourOwn(now.Diff(files)); diff != "" {
		t.Errorf("undo of all left:\n%s", diff)
	}
}
