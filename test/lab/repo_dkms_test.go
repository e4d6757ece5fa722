// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// headersOf names the one kernel of which a host has the headers.
func headersOf(t *testing.T, h *lab.Host) string {
	t.Helper()
	kernels := strings.Fields(h.Must("sh", "-c", "cd /lib/modules && ls -d */build"))
	if len(kernels) != 1 {
		t.Fatalf("want the headers of one kernel: %v", kernels)
	}
	return strings.TrimSuffix(kernels[0], "/build")
}

// modinfo asks a module file of a kernel that does not run.
func modinfo(h *lab.Host, kernel, field, module string) string {
	return strings.TrimSpace(h.Must("modinfo", "-k", kernel, "-F", field, module))
}

// TestLabDKMS: dkms really builds the package's modules for the kernel of the headers, not for the running one;
// an upgrade builds the new version's; a removal takes them away.
func TestLabDKMS(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.Dists() {
		t.Run(dist, func(t *testing.T) {
			h := lab.Boot(t, lab.Options{Dist: dist, Headers: true, Repos: repos.Deb(t, repos.Recipe{})})
			repos.AddApt(h)
			kernel := headersOf(t, h)
			if running := strings.TrimSpace(h.Must("uname", "-r")); running == kernel {
				t.Fatalf("the headers are of the running kernel %s", running)
			}
			aptExits(t, h, 0, "", slices.Concat([]string{"install"}, driverSet("580.65.06"))...)
			for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
				if v, magic := modinfo(h, kernel, "version", module), modinfo(h, kernel, "vermagic", module); v != "580.65.06" || !strings.HasPrefix(magic, kernel+" ") {
					t.Errorf("%s: version %q, vermagic %q", module, v, magic)
				}
			}
			if license := modinfo(h, kernel, "license", "nvidia"); license != "Dual MIT/GPL" {
				t.Errorf("license %q", license)
			}
			if out := h.Must("dkms", "status"); !strings.Contains(out, "nvidia/580.65.06, "+kernel+", ") || !strings.Contains(out, ": installed") {
				t.Errorf("dkms status: %s", out)
			}
			if dist == "trixie" {
				return // one build tells; each takes seconds of two processors
			}
			aptExits(t, h, 0, "", slices.Concat([]string{"install"}, driverSet("580.95.05"))...)
			if v := modinfo(h, kernel, "version", "nvidia"); v != "580.95.05" {
				t.Errorf("after the upgrade: %q", v)
			}
			if out := h.Must("dkms", "status"); strings.Count(out, "nvidia/") != 1 {
				t.Errorf("dkms status after the upgrade: %s", out)
			}
			aptExits(t, h, 0, "", "remove", "nvidia-kernel-open-dkms")
			if r := h.Exec("modinfo", "-k", kernel, "nvidia"); r.Exit == 0 {
				t.Errorf("after the removal: %s", r)
			}
		})
	}
}

// TestLabDKMSProprietary: the other package's module says so by its license.
func TestLabDKMSProprietary(t *testing.T) {
	t.Parallel()
	h := lab.Boot(t, lab.Options{Dist: "bookworm", Headers: true, Repos: repos.Deb(t, repos.Recipe{})})
	repos.AddApt(h)
	kernel := headersOf(t, h)
	aptExits(t, h, 0, "", "install", "nvidia-kernel-dkms")
	if license := modinfo(h, kernel, "license", "nvidia"); license != "NVIDIA" {
		t.Errorf("license %q", license)
	}
}
