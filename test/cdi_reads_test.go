// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/must"
)

// A plan of the stage toolkit reads each CDI spec once, and says of the specs of others what it said before.
func TestCDISpecsAreReadOnce(t *testing.T) {
	archive := "-- sim.toml --\n" + a100s + "[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\n" +
		"\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n" +
		"-- var/run/cdi/nvidia.yaml --\nkind: nvidia.com/gpu\ndevices: []\n" +
		"-- var/run/cdi/other.yaml --\nkind: nvidia.com/gpu\ndevices: []\n" +
		"-- var/run/cdi/plugin.json --\n{\"kind\": \"k8s.device-plugin.nvidia.com/gpu\", \"devices\": []}\n" +
		"-- etc/cdi/old.yaml --\nkind: nvidia.com/gpu\ndevices: []\n"
	n := count(machine{"cdi", []byte(archive)}.boot(t))
	e := engine(t, "[runtime]\n")
	e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool { return st.Name != "toolkit" })
	p := must.Get(e.Plan(t.Context(), n))(t)
	for _, name := range []string{"/var/run/cdi/nvidia.yaml", "/var/run/cdi/other.yaml", "/var/run/cdi/plugin.json", "/etc/cdi/old.yaml"} {
		if n.reads[name] != 1 {
			t.Errorf("%s was read %d times", name, n.reads[name])
		}
	}
	notes := strings.Join(p.Notes, "\n")
	for _, says := range []string{"/var/run/cdi/other.yaml is a CDI spec", "/etc/cdi/old.yaml is a CDI spec", "a device plugin gives containers GPUs by CDI here"} {
		if !strings.Contains(notes, says) {
			t.Errorf("it does not say %q:\n%s", says, notes)
		}
	}
}
