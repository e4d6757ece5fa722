// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
)

// A unit's file that only root may read may hold a secret in its command line: a drop-in of ours that repeats it is as private.
func TestPrivateUnit(t *testing.T) {
	const args = "--cloud-secret=hunter2"
	for marker, mode := range map[string]string{"": "-rw-r--r--", " mode=0600": "-rw-------", " mode=0640": "-rw-------"} {
		unit := strings.Replace(plainUnit(args), "kubelet.service --", "kubelet.service"+marker+" --", 1)
		n := kubeletMachine(t, simKubelet+unit)
		mustApply(t, n, redSpec)
		data, err := n.ReadFile(facts.OwnDropIn)
		if err != nil || !strings.Contains(string(data), args) {
			t.Fatalf("%v, the command line is not repeated: %s", err, data)
		}
		if i, err := n.Stat(facts.OwnDropIn); err != nil || i.Mode.String() != mode {
			t.Errorf("beside a unit with%q our drop-in has %v, %v", marker, i.Mode, err)
		}
		if r := mustApply(t, n, redSpec); len(r.Made) > 0 {
			t.Errorf("again: %v", r.Made)
		}
	}
}

// What a private unit sets in a variable is not copied into the packages' file of variables, which all users may read.
func TestPrivateVariable(t *testing.T) {
	unit := plainUnit("$KUBELET_EXTRA_ARGS") + "EnvironmentFile=-/etc/default/kubelet\nEnvironment=\"KUBELET_EXTRA_ARGS=--cloud-secret=hunter2\"\n"
	n := kubeletMachine(t, simKubelet+strings.Replace(unit, "kubelet.service --", "kubelet.service mode=0600 --", 1))
	p, err := kubeletEngine(t, redSpec).Plan(t.Context(), n.View())
	if err != nil || len(p.Cannot()) == 0 || !strings.Contains(p.Cannot()[0].Cannot, "only root may read") {
		t.Errorf("%v, %+v", err, p.Changes)
	}
}
