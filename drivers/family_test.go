// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"path"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// The pin that keeps Ubuntu's driver out leaves its CUDA toolkit in: nvidia-cuda-toolkit of Ubuntu 24.04 depends on libcudart12
// (packages.ubuntu.com/noble/nvidia-cuda-toolkit).
func TestExcludedLeavesTheCUDAToolkit(t *testing.T) {
	ch := must.Get(Choose(Load(), machine("ubuntu", "24.04", "amd64", "2331"), driver("580.95.05")))(t)
	f := ch.Family()
	out := func(name string) bool {
		return slices.ContainsFunc(f.Excluded, func(glob string) bool { ok, err := path.Match(glob, name); return ok || err != nil })
	}
	if !out("nvidia-driver-580-open") || !out("linux-modules-nvidia-580-6.8.0-88-generic") {
		t.Errorf("the driver of %q is not excluded", f.Exclude)
	}
	for _, name := range []string{"libcudart12", "libcudart11.0", "nvidia-cuda-toolkit", "nvidia-cuda-dev", "nvidia-container-toolkit", "nvidia-fs-dkms", "linux-image-nvidia-6.8", "linux-modules-nvidia-fs-6.8.0-1030-nvidia"} {
		if out(name) {
			t.Errorf("%s of %q cannot be installed any more", name, f.Exclude)
		}
	}
}
