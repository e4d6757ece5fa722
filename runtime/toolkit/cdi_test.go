// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// What others do about CDI and device plugins on this machine is said.
func TestToolkitNotes(t *testing.T) {
	const plugin = "-- var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json --\n{\"cdiVersion\": \"0.5.0\", \"kind\": \"k8s.device-plugin.nvidia.com/gpu\", \"devices\": [{\"name\": \"a\", \"containerEdits\": {\"env\": [\"A=b\"]}}]}\n"
	const unit = "-- etc/systemd/system/nvidia-device-plugin.service --\n[Service]\nExecStart=/usr/bin/nvidia-device-plugin\n"
	usual := func(facts.Facts) []string { return nil }
	for _, x := range []struct{ spec, archive, says string }{
		{"[runtime]\n", "-- etc/os-release --\n", ""},
		{"[runtime]\n", plugin, `a device plugin gives containers GPUs by CDI here: inject = "cdi"`},
		{"[runtime]\ninject = \"cdi\"\n", plugin, ""},
		{"[runtime]\ncdi = false\n", plugin, ""},
		{"[runtime]\n", unit, ""},
		{"[runtime]\n[sharing]\ntime_slicing = 4\n", unit, "nvidia-device-plugin.service runs the device plugin on this machine"},
	} {
		n := must.Get(simhost.New([]byte(x.archive)))(t)
		s := specs.Of(t, x.spec)
		said := strings.Join(Stage(usual).Notes(n, s, facts.Facts{}), "\n")
		check.That(t, strings.Contains(said, x.says) && (x.says == "") == (said == ""), "%q: %q, want %q", x.spec, said, x.says)
	}
}

// TestNotesOfTheEnginesFolders: specs are named where the engine looks for them, and not where it
// does not.
func TestNotesOfTheEnginesFolders(t *testing.T) {
	const text = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- {name: all, containerEdits: {env: [A=b]}}\n"
	n := must.Get(simhost.New([]byte("-- etc/cdi/a.yaml --\n" + text + "-- srv/cdi/b.yaml --\n" + text)))(t)
	s := specs.Of(t, "[runtime]\n")
	for folder, file := range map[string]string{"": "/etc/cdi/a.yaml", "/srv/cdi": "/srv/cdi/b.yaml"} {
		folders := func(facts.Facts) []string {
			if folder == "" {
				return nil
			}
			return []string{folder}
		}

		said := Stage(folders).Notes(n, s, facts.Facts{})
		check.That(t, len(said) == 1 && strings.HasPrefix(said[0], file+" is a CDI spec for"), "the engine looks in %q: %q", folder, said)
	}
}
