// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMIGOwner: another owner of the partitions is seen also while its pod does not run, by the link to its log that kubelet keeps;
// the DRA driver only where its gate DynamicMIG is on, as its chart hands it over.
func TestMIGOwner(t *testing.T) {
	const plugin = "-- sim.toml --\n-- proc/77/comm --\ngpu-kubelet-plu\n-- proc/77/environ --\n"
	for name, c := range map[string]struct{ tree, owner, dynamic string }{
		"nothing":       {"-- sim.toml --\n-- proc/7/comm --\nkubelet\n", "", ""},
		"its process":   {"-- sim.toml --\n-- proc/77/comm --\nnvidia-mig-mana\n", "nvidia-mig-manager (process 77)", ""},
		"its ended pod": {"-- sim.toml --\n-- var/log/containers/nvidia-mig-manager-x7_gpu-operator_nvidia-mig-manager-0f.log --\n", "nvidia-mig-manager (/var/log/containers/nvidia-mig-manager-x7_gpu-operator_nvidia-mig-manager-0f.log)", ""},
		"DRA":           {plugin + "A=b\x00FEATURE_GATES=TimeSlicingSettings=true,DynamicMIG=true,\x00C=d\x00\n", "", "process 77"},
		"DRA without":   {plugin + "FEATURE_GATES=TimeSlicingSettings=true,\x00\n", "", ""},
		"DRA off":       {plugin + "FEATURE_GATES=DynamicMIG=false,\x00\n", "", ""},
		"DRA, no gates": {plugin + "X=DynamicMIG=true\x00\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := must.Get(simhost.New([]byte(c.tree)))(t)
			f, err := Gather(t.Context(), n, Needs{Driver: true})
			if err != nil || f.MIGOwner != c.owner || f.DynamicMIG != c.dynamic {
				t.Errorf("%q %q, %v; want %q %q", f.MIGOwner, f.DynamicMIG, err, c.owner, c.dynamic)
			}
		})
	}
}
