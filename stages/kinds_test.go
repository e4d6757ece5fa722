// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestToolkitConfigHasForm: undo finds out how to take gpuadm's keys out of the toolkit's file.
func TestToolkitConfigHasForm(t *testing.T) {
	s := specs.Of(t, "[toolkit]\nversion = \"1.18.0\"\nruntimes = [\"/usr/bin/crun\"]\n")
	seen := false
	for _, w := range must.Get(toolkit.Stage(nil).Wants(s, facts.Facts{}))(t) {
		if w.Ref().Name != toolkit.Config {
			continue
		}
		seen = true
		_, err := thingOf(kinds(nil, nil), w.Ref())
		check.That(t, err == nil && w.Ref().Form == engine.FormTOML, "form %q: %v", w.Ref().Form, err)
	}

	check.That(t, seen, "the stage does not edit the file")
}

// TestEnginesRestartOfKubeletsUnit: K3s and RKE2 run kubelet and engine in one unit. Undo also judges
// the restart that the engine's stage has made as kubelet's: after a failure for good it starts nothing.
func TestEnginesRestartOfKubeletsUnit(t *testing.T) {
	for unit, want := range map[string]converge.State{"k3s.service": "inactive", "k3s-gpus.service": "inactive", "rke2-agent.service": "inactive", "containerd.service": "failed"} {
		n := must.Get(simhost.New([]byte("-- sim.toml --\n[[unit]]\nname = \"" + unit + "\"\nenabled = \"enabled\"\nactive = \"failed\"\n")))(t)
		thing := must.Get(thingOf(kinds(nil, nil), things.NewRestart(unit, []string{"/usr/bin/nvidia-container-runtime"}, nil).Ref()))(t)
		found, err := thing.Look(t.Context(), n)
		check.That(t, err == nil && found == want, "%s is %q, want %q: %v", unit, found, want, err)
	}
}

// TestSectionsOfPackages: what [driver] names is [driver]'s whatever its name, and of the
// repositories the toolkit's own is [toolkit]'s.
func TestSectionsOfPackages(t *testing.T) {
	s := specs.Of(t, "[driver]\nversion = \"580\"\npackages = [\"cuda-toolkit-12-8\"]\n[toolkit]\nversion = \"1.18.0\"\n")
	f := facts.Facts{
		Live:    true,
		OS:      facts.OS{ID: "ubuntu", Version: "24.04"},
		Arch:    "amd64",
		Kernel:  facts.Kernel{Running: "6.8.0", Installed: []string{"6.8.0"}},
		Modules: &facts.Modules{},
		GPUs:    []facts.PCI{{Vendor: "10de", Device: "2330", Class: "030200"}},
	}
	seen := map[string]string{}
	for _, st := range Sequence() {
		if st.Name != "sources" && st.Name != "packages" {
			continue
		}
		for _, w := range must.Get(st.Wants(s, f))(t) {
			seen[w.Ref().Name] = w.Section
			check.That(t, slices.Contains(w.Brings, "nvidia") == (w.Ref().Name == "nvidia-dkms-580-open"), "%s brings modules: %v", w.Ref(), w.Brings)
		}
	}

	for name, want := range map[string]string{
		"cuda-toolkit-12-8": "driver", "nvidia-dkms-580-open": "driver", "nvidia-container-toolkit": "toolkit", "libnvidia-container1": "toolkit",
		"/etc/apt/sources.list.d/gpuadm-toolkit.sources": "toolkit", "/etc/apt/sources.list.d/gpuadm-driver.sources": "driver",
	} {
		check.That(t, seen[name] == want, "%s is of [%s], want [%s]", name, seen[name], want)
	}
}
