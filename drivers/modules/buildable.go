// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// ignoreRealtime is the variable that makes NVIDIA's build accept a kernel with PREEMPT_RT:
// kernel-open/conftest.sh, and https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1240.
const ignoreRealtime = "IGNORE_PREEMPT_RT_PRESENCE"

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

	return things.Check("kernels that modules can be built for", look, "a build that cannot succeed is found out before packages are installed",
		"boot a kernel without PREEMPT_RT",
		"or, at your own risk, have DKMS set "+ignoreRealtime+`: in /etc/dkms/nvidia.conf, MAKE[0]="`+ignoreRealtime+`=1 make -j$(nproc) KERNEL_UNAME=${kernelver} modules"`)
}

// isRealtime says whether a kernel has PREEMPT_RT, by its configuration. If that cannot be read,
// the build's own log tells.
func isRealtime(v host.View, kernel string) bool {
	config, err := v.ReadFile("/boot/config-" + kernel)
	return err == nil && strings.Contains(string(config), "\nCONFIG_PREEMPT_RT=y\n")
}

// ignoresRealtime says whether the operator has DKMS build for kernels with PREEMPT_RT.
func ignoresRealtime(v host.View) bool {
	names, _ := v.ReadDir("/etc/dkms")
	for _, name := range names {
		text, err := v.ReadFile("/etc/dkms/" + name)
		if err == nil && strings.Contains(string(text), ignoreRealtime) {
			return true
		}
	}
	return false
}
