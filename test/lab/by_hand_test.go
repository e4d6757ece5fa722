// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// What an administrator does by hand, and sees, on a host with the lab's repositories.

// aptExits runs apt-get without questions, which shall exit with a code and say some words.
func aptExits(t *testing.T, h *lab.Host, code int, says string, args ...string) {
	t.Helper()
	r := h.Exec(slices.Concat([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y"}, args)...)
	check.That(t, r.Exit == code && strings.Contains(r.Stdout+r.Stderr, says), "apt-get %s: want exit %d and %q: %s", strings.Join(args, " "), code, says, r)
}

// dnfExits runs dnf, which shall exit with a code and say some words.
func dnfExits(t *testing.T, h *lab.Host, code int, says string, args ...string) {
	t.Helper()
	r := h.Exec(slices.Concat([]string{"dnf", "-y"}, args)...)
	check.That(t, r.Exit == code && strings.Contains(r.Stdout+r.Stderr, says), "dnf %s: want exit %d and %q: %s", strings.Join(args, " "), code, says, r)
}

// driverSet are the members of an open driver for computing.
func driverSet(version string) []string {
	return repos.DebSet(version, "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-modprobe",
		"nvidia-persistenced", "firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-nvvm4",
		"libnvidia-ptxjitcompiler1", "libnvidia-gpucomp")
}

// names cuts the versions off.
func names(set []string) []string {
	var list []string
	for _, member := range set {
		name, _, _ := strings.Cut(member, "=")
		list = append(list, name)
	}

	return list
}

// driverPackages are NVIDIA's packages in a host.
func driverPackages(state map[string]string) map[string]string {
	return lab.Only(state, "nvidia-*", "libnvidia-*", "libcuda1", "firmware-nvidia-*", "cuda-*", "dkms")
}

// headersOf names the one kernel of which a host has the headers.
func headersOf(t *testing.T, h *lab.Host) string {
	t.Helper()
	kernels := strings.Fields(h.Must("sh", "-c", "cd /lib/modules && ls -d */build"))
	must.That(t, len(kernels) == 1, "want the headers of one kernel: %v", kernels)
	return strings.TrimSuffix(kernels[0], "/build")
}

// modinfo asks a module file of a kernel that does not run.
func modinfo(h *lab.Host, kernel, field, module string) string {
	return strings.TrimSpace(h.Must("modinfo", "-k", kernel, "-F", field, module))
}
