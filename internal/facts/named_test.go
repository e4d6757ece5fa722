// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import "testing"

// A model is found as people type it, with each of its ids. The ids are of the table of supported GPUs in NVIDIA's
// open-gpu-kernel-modules and of the PCI ID Repository.
func TestNamedModels(t *testing.T) {
	for name, ids := range map[string][]string{
		"H100 80GB": {"2330"}, "h100-80gb": {"2330"}, "V100_32GB": {"1db5", "1db8"}, "NVSwitch (H100)": {"22a3"}, "H100 81GB": nil, "": nil,
	} {
		all := Named(name)
		if len(all) != len(ids) {
			t.Errorf("%s: %+v", name, all)
			continue
		}
		for i, p := range all {
			if p.Device != ids[i] || p.Display() == (name == "NVSwitch (H100)") || model(p.Device, p.Subsystem) != p.Model {
				t.Errorf("%s: %+v", name, p)
			}
		}
	}
	for _, name := range Models() {
		if len(Named(name)) == 0 {
			t.Errorf("%s is listed and not found", name)
		}
	}
}
