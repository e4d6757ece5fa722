// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
)

// buildable refuses kernels that NVIDIA's build refuses, before anything is installed. An operator
// who wants such a build sets the variable where dkms(8) reads it: in the files of /etc/dkms.
func buildable(k KernelSide) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if k.Build != "dkms" {
			return "", nil
		}

		for _, kernel := range k.Kernels {
			loadable, err := k.loadable(v, kernel)
			if err != nil {
				return "", err
			}
			if loadable || !isRealtime(v, kernel) || ignoresRealtime(v) {
				continue
			}
			return fmt.Sprintf("cannot build modules for kernel %s: it has PREEMPT_RT, and NVIDIA's build refuses such kernels", kernel), nil
		}

		return "", nil
	}

	const why = "gpuadm finds a build that cannot succeed before it installs packages"
	return things.Check("kernels that modules can be built for", look, why,
		kmod.RealtimeRemedy()...)
}

// isRealtime says whether a kernel has PREEMPT_RT, by its configuration, which a kernel of one's
// own may have only beside its headers. If none can be read, the build's own log tells.
func isRealtime(v host.View, kernel string) bool {
	for _, name := range []string{"/boot/config-" + kernel, "/lib/modules/" + kernel + "/build/.config"} {
		config, err := v.ReadFile(name)
		if err == nil {
			return strings.Contains("\n"+string(config), "\nCONFIG_PREEMPT_RT=y\n")
		}
	}
	return false
}

// ignoresRealtime says whether the operator has DKMS build for kernels with PREEMPT_RT.
func ignoresRealtime(v host.View) bool {
	names, _ := v.ReadDir("/etc/dkms")
	for _, name := range names {
		text, err := v.ReadFile("/etc/dkms/" + name)
		if err == nil && kmod.IgnoresRealtime(string(text)) {
			return true
		}
	}

	return false
}
